"""Values as text for a person: one line, safe to print, in units that people read.

Everything a user, a node or a log supplied passes `printable` or `one_line` before it reaches a terminal or a page: control
characters are shown, not obeyed.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import msgspec

# C0, DEL and C1 move the cursor or colour the terminal; the others break lines, turn text around, or have no bytes at all.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text with its control characters shown instead of obeyed. Line breaks stay."""
    return _CONTROL_BUT_NEWLINE.sub(_shown, text)


def one_line(text: str, width: int = 0) -> str:
    """The text in one line, shortened to `width` columns (0: not shortened)."""
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


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """A value as JSON that is safe to look at: what would steer a terminal is escaped, as JSON allows within strings."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    dumped = json.dumps(plain, indent=indent, ensure_ascii=False)
    return _CONTROL_BUT_NEWLINE.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


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
