"""What reaches the terminal: text, tables and JSON, with nothing in them that could steer it.

Everything a user, a node or a log supplied passes `printable`: control characters are shown, not obeyed, and no text is read as
markup. Rich is imported when something is printed, so that `--help` need not wait for it. Where the output is no terminal there
are no colours, and nothing is cut to a width. A reader who went away (a closed pipe) is never an error of the command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast
from unicodedata import combining, east_asian_width

import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Part: TypeAlias = "str | tuple[str, str]"
"""Text, or text and its style."""

STYLES: dict[str, str] = {
    "pending": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "paused": "yellow",
    "interrupted": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "skipped": "yellow",
}
"""One colour a status, the same on every screen."""

# C0, DEL and C1 move the cursor or colour the terminal; the others break lines, turn text around, or have no bytes at all.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text with its control characters shown instead of obeyed. Line breaks stay."""
    return _CONTROL_BUT_NEWLINE.sub(_shown, text)


def one_line(text: str, width: int = 0) -> str:
    """The text in one line, cut to `width` columns (0: not cut)."""
    line = _CONTROL.sub(_shown, text)
    return line if not width or len(line) <= width else line[: max(1, width - 1)] + "…"


def last_of_line(text: str, width: int) -> str:
    """The end of the text in one line of at most `width` columns."""
    line = one_line(text)
    return line if len(line) <= width else "…" + line[len(line) - max(1, width - 1) :]


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


# --- printing ----------------------------------------------------------------------------------------


def console(*, err: bool = False) -> Console:
    """A console for one of the two streams that reads no text as markup."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    made = Console(file=stream, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = 100_000
    return made


def text(*parts: Part) -> Text:
    """One styled text of parts; the parts are printable afterwards."""
    from rich.text import Text

    made = Text()
    for part in parts:
        words, style = part if isinstance(part, tuple) else (part, "")
        made.append(printable(words), style)
    return made


def say(*parts: Part, err: bool = False) -> None:
    """Print one line. It is not wrapped: a command in it can be copied."""
    if _is_coloured(err=err):
        console(err=err).print(text(*parts), soft_wrap=True)
        return
    stream = sys.stderr if err else sys.stdout
    words = "".join(part[0] if isinstance(part, tuple) else part for part in parts)
    stream.write(printable(words).rstrip(" ") + "\n")


def _is_coloured(*, err: bool) -> bool:
    """Whether it takes Rich to print here. A pipe or a file gets plain text, and need not wait for the import."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() or "FORCE_COLOR" in os.environ


def say_json(value: Any, *, indent: int | None = 2, err: bool = False) -> None:
    """Print a value as one JSON document; with `indent=None` on one line."""
    stream = sys.stderr if err else sys.stdout
    stream.write(json_text(value, indent=indent) + "\n")
    stream.flush()


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """A value as JSON that is safe to look at: what would steer a terminal is escaped, as JSON allows within strings."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    dumped = json.dumps(plain, indent=indent, ensure_ascii=False)
    return _CONTROL_BUT_NEWLINE.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


def say_table(columns: Sequence[str], rows: Sequence[Sequence[Part]], *, flexible: int | None = None) -> None:
    """Print rows in columns. On a terminal the `flexible` column is cut where a line would be too wide."""
    cells = [[(name, "bold") for name in columns], *([_cell(part) for part in row] for row in rows)]
    widths = [max(_columns(row[number][0]) for row in cells) for number in range(len(columns))]
    cut = flexible is not None and sys.stdout.isatty()
    if flexible is not None and cut:
        rest = sum(widths) - widths[flexible] + 2 * (len(columns) - 1)
        widths[flexible] = max(12, min(widths[flexible], shutil.get_terminal_size().columns - rest))
    for row in cells:
        line: list[Part] = []
        for number, (words, style) in enumerate(row):
            shown = one_line(words, widths[number]) if cut and number == flexible else words
            line += [(shown, style), " " * (widths[number] - _columns(shown) + 2)]
        say(*line[:-1])


def _columns(words: str) -> int:
    """How many columns of a terminal the text takes: two for a wide character, none for what stands above another."""
    return sum(2 if east_asian_width(char) in "WF" else not combining(char) for char in words)


def _cell(part: Part) -> tuple[str, str]:
    words, style = part if isinstance(part, tuple) else (part, "")
    return one_line(words), style


def picture_width() -> int:
    """How wide a picture may be."""
    return min(shutil.get_terminal_size((120, 40)).columns, 160)


def ascii_only(*, err: bool = False) -> bool:
    """Whether the stream cannot show the marks of our pictures."""
    encoding = (getattr(sys.stderr if err else sys.stdout, "encoding", None) or "ascii").lower()
    return not encoding.replace("-", "").startswith("utf")


# --- quantities --------------------------------------------------------------------------------------


_SECONDS_MAX = 1e12
"""More than there has ever been: only a damaged store says so."""


def duration(seconds: float) -> str:
    """`0.31 s`, `12.4 s`, `3 min 20 s`, `5 h 02 min`, `3 d 4 h`."""
    seconds = min(max(0.0, seconds), _SECONDS_MAX)
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60:02d} s"
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes < 48 * 60
        else f"{minutes // 1440} d {minutes // 60 % 24} h"
    )


def ago(seconds: float) -> str:
    """How long ago something was, in whole units."""
    return f"{int(max(0.0, seconds))} s ago" if seconds < 100 else f"{duration(seconds)} ago"


def when(at: float) -> str:
    """An instant in local time."""
    return _local(at, "%Y-%m-%d %H:%M:%S")


def time_of_day(at: float) -> str:
    """An instant in local time, for lines that follow each other closely."""
    return _local(at, "%H:%M:%S.%f")[:-3]


def _local(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # no instant that there is: the store is damaged, and `verify` says where
        return f"{at:g} s   "


def size(count: int) -> str:
    """Bytes, in a unit a person reads."""
    for unit, scale in (("MB", 1_000_000), ("KB", 1_000)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def count(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- readers who went away ---------------------------------------------------------------------------


class _Shielded:
    """A stream whose reader may go away: what is written then goes nowhere, and the writer is not told."""

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
    """While nodes run: what they print cannot break them when the reader goes away. Yields the stream for results.

    With `json_only` what they print goes to stderr, so that stdout holds the document and nothing else.
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
    """What is printed inside may find nobody who reads it; that changes nothing."""
    stream = sys.stderr if err else sys.stdout
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        mute(stream)


def mute(stream: TextIO) -> None:
    """Let what is still in the stream's buffer, and all that follows, go nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def prepare() -> None:
    """Before anything is printed: text that the terminal's encoding does not have is shown as its number."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            cast(Any, stream).reconfigure(errors="backslashreplace")
