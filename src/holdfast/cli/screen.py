"""Prints text, tables and JSON to the terminal, with control characters escaped.

All text from users, nodes and logs passes through `printable` (in `reading/text.py`): control characters are printed as escapes,
and no text is interpreted as markup. Rich is imported only when something is printed, so that `--help` does not wait for it. If
the output is not a terminal, there are no colours and nothing is shortened. A closed pipe is never an error of the command.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast
from unicodedata import combining, east_asian_width

from holdfast.reading.text import (
    ago,
    count,
    duration,
    json_text,
    last_of_line,
    one_line,
    printable,
    size,
    time_of_day,
    when,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "STYLES",
    "Part",
    "ago",
    "ascii_only",
    "console",
    "count",
    "cut",
    "cut_middle",
    "duration",
    "json_text",
    "last_of_line",
    "mute",
    "one_line",
    "padded",
    "picture_width",
    "prepare",
    "printable",
    "say",
    "say_json",
    "say_table",
    "shielded",
    "size",
    "text",
    "time_of_day",
    "unread",
    "when",
    "width_of",
]

Part: TypeAlias = "str | tuple[str, str]"
"""A piece of output: a text, or a pair of a text and its style."""

STYLES: dict[str, str] = {
    "pending": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "pausing": "yellow",
    "paused": "yellow",
    "interrupted": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "skipped": "yellow",
}
"""Status -> the colour in which every command prints it."""

# --- printing ----------------------------------------------------------------------------------------


def console(*, err: bool = False) -> Console:
    """Return a Rich console for stdout or stderr that does not interpret markup."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    made = Console(file=stream, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = 100_000
    return made


def text(*parts: Part) -> Text:
    """Join parts into one styled text, with control characters escaped."""
    from rich.text import Text

    made = Text()
    for part in parts:
        words, style = part if isinstance(part, tuple) else (part, "")
        made.append(printable(words), style)
    return made


def say(*parts: Part, err: bool = False) -> None:
    """Print one line without wrapping it, so that a command in it can be copied."""
    if _is_coloured(err=err):
        console(err=err).print(text(*parts), soft_wrap=True)
        return
    stream = sys.stderr if err else sys.stdout
    words = "".join(part[0] if isinstance(part, tuple) else part for part in parts)
    stream.write(printable(words).rstrip(" ") + "\n")


def _is_coloured(*, err: bool) -> bool:
    """Return whether the stream gets colours, which need Rich. A pipe or file gets plain text, without importing Rich."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() or "FORCE_COLOR" in os.environ


def say_json(value: Any, *, indent: int | None = 2, err: bool = False) -> None:
    """Print a value as one JSON document, on one line if `indent` is None."""
    stream = sys.stderr if err else sys.stdout
    stream.write(json_text(value, indent=indent) + "\n")
    stream.flush()


def say_table(columns: Sequence[str], rows: Sequence[Sequence[Part]], *, flexible: int | None = None) -> None:
    """Print a table. On a terminal, the `flexible` column is shortened if a line would be too wide."""
    cells = [[(name, "bold") for name in columns], *([_cell(part) for part in row] for row in rows)]
    widths = [max(width_of(row[number][0]) for row in cells) for number in range(len(columns))]
    shortens = flexible is not None and sys.stdout.isatty()
    if flexible is not None and shortens:
        rest = sum(widths) - widths[flexible] + 2 * (len(columns) - 1)
        widths[flexible] = max(12, min(widths[flexible], shutil.get_terminal_size().columns - rest))
    for row in cells:
        line: list[Part] = []
        for number, (words, style) in enumerate(row):
            shown = one_line(words, widths[number]) if shortens and number == flexible else words
            line += [(shown, style), " " * (widths[number] - width_of(shown) + 2)]
        say(*line[:-1])


def width_of(words: str) -> int:
    """Return the width of a text on a terminal: a wide character takes two columns, a combining character none."""
    if words.isascii():
        return len(words)
    return sum(2 if east_asian_width(char) in "WF" else not combining(char) for char in words)


def cut(words: str, width: int) -> str:
    """Return the text in one line of at most `width` columns, without its end if it is longer."""
    line = one_line(words)
    return line if width_of(line) <= width else _first(line, width - 1) + "…"


def cut_middle(words: str, width: int) -> str:
    """Return the text in one line of at most `width` columns, without its middle if it is longer: similar names often differ at
    their ends.
    """
    line = one_line(words)
    if width_of(line) <= width:
        return line
    end = _first(line[::-1], (width - 1) // 2)[::-1]
    return _first(line, width - 1 - width_of(end)) + "…" + end


def _first(line: str, width: int) -> str:
    """Return as many of the first characters as fit into `width` columns."""
    taken = 0
    for number, char in enumerate(line):
        taken += width_of(char)
        if taken > width:
            return line[:number]
    return line


def padded(words: str, width: int, *, right: bool = False) -> str:
    """Return the text with spaces after it, or before it with `right`, so that it takes `width` columns."""
    spaces = " " * (width - width_of(words))
    return spaces + words if right else words + spaces


def _cell(part: Part) -> tuple[str, str]:
    words, style = part if isinstance(part, tuple) else (part, "")
    return one_line(words), style


def picture_width() -> int:
    """Return how many columns a drawing of a graph may take."""
    return min(shutil.get_terminal_size((120, 40)).columns, 160)


def ascii_only(*, err: bool = False) -> bool:
    """Return whether the stream cannot show the non-ASCII characters in drawings."""
    encoding = (getattr(sys.stderr if err else sys.stdout, "encoding", None) or "ascii").lower()
    return not encoding.replace("-", "").startswith("utf")


# --- closed pipes ------------------------------------------------------------------------------------


class _Shielded:
    """A stream that drops output without an error after the reader has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, words: str) -> int:
        try:
            return self._stream.write(words)
        except (OSError, ValueError):
            mute(self._stream)
            return len(words)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            mute(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def shielded(*, json_only: bool = False) -> Iterator[TextIO]:
    """During the block, let nodes print without an error even if the reader closes the pipe. Yields the stream for results.

    If `json_only` is true, the output of nodes goes to stderr, so that stdout has only the JSON document.
    """
    out, err = sys.stdout, sys.stderr
    result, aside = cast(TextIO, _Shielded(out)), cast(TextIO, _Shielded(err))
    sys.stdout, sys.stderr = aside if json_only else result, aside
    try:
        yield result
    finally:
        sys.stdout, sys.stderr = out, err


@contextmanager
def unread(*, err: bool = False) -> Iterator[None]:
    """Ignore a pipe that its reader closes while the block prints."""
    stream = sys.stderr if err else sys.stdout
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        mute(stream)


def mute(stream: TextIO) -> None:
    """Redirect a stream to the null device, with what is still in its buffer."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def prepare() -> None:
    """Make stdout and stderr print characters that their encoding lacks as escapes. Called before anything is printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            cast(Any, stream).reconfigure(errors="backslashreplace")
