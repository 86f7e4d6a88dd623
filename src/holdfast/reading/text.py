"""Formats values as text for people: safe to print, in readable units.

All text from users, nodes and logs passes through `printable` or `one_line` before it reaches a terminal or a page, so that
control characters are printed as escapes and have no effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, assert_never

import msgspec

from holdfast.core import situation
from holdfast.core.events import Uncleaned
from holdfast.errors import describe_failure

# C0, DEL and C1 move the cursor or colour the terminal; the others break lines, reverse text, or cannot be encoded (surrogates).
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return the text with its control characters escaped. Line breaks stay."""
    return _CONTROL_BUT_NEWLINE.sub(_shown, text)


def one_line(text: str, width: int = 0) -> str:
    """Return the text in one line, with control characters escaped, shortened to `width` columns (0: not shortened)."""
    line = _CONTROL.sub(_shown, text)
    if not width or len(line) <= width:
        return line
    cut = line[: max(1, width - 1)]
    command = cut.rfind("`holdfast ")
    if command > 0 and "`" not in cut[command + 1 :]:  # half of a command cannot be pasted
        cut = cut[:command].rstrip()
    return cut + "…"


def last_of_line(text: str, width: int) -> str:
    """Return the end of the text in one line of at most `width` columns."""
    line = one_line(text)
    return line if len(line) <= width else "…" + line[len(line) - max(1, width - 1) :]


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON that is safe to print: control characters are escaped in the way that JSON allows."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    dumped = json.dumps(plain, indent=indent, ensure_ascii=False)
    return _CONTROL_BUT_NEWLINE.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


# --- quantities --------------------------------------------------------------------------------------


_SECONDS_MAX = 1e12
"""The longest duration that is shown (30,000 years): only a damaged store has a longer one."""


def duration(seconds: float) -> str:
    """Format a duration: `0.31 s`, `12.4 s`, `3 min 20 s`, `5 h 02 min`, `3 d 4 h`."""
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
    """Format how long ago something was: `12 s ago`, `3 min 20 s ago`."""
    return f"{int(max(0.0, seconds))} s ago" if seconds < 100 else f"{duration(seconds)} ago"


def when(at: float) -> str:
    """Format an instant as local date and time: `2026-03-01 14:05:09`."""
    return _local(at, "%Y-%m-%d %H:%M:%S")


def soon(at: float, now: float) -> str:
    """Format an instant as short as the present allows: `14:05:09` today, `18 Nov, 14:05` this year, else `18 Nov 2027`."""
    day, today = (_local(one, "%Y-%m-%d") for one in (at, now))
    if day == today:
        return _local(at, "%H:%M:%S")
    return _local(at, "%d %b, %H:%M" if day[:4] == today[:4] else "%d %b %Y").removeprefix("0")


def time_of_day(at: float) -> str:
    """Format an instant as local time of day with milliseconds: `14:05:09.123`."""
    return _local(at, "%H:%M:%S.%f")[:-3]


def _local(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # not a possible instant: the store is damaged, and `holdfast verify` reports where
        return f"{at:g} s   "


def size(count: int) -> str:
    """Format a number of bytes: `812 B`, `1.2 KB`, `3.4 MB`."""
    for unit, scale in (("MB", 1_000_000), ("KB", 1_000)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 node`, `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_line(given: str) -> str:
    """Return the first non-blank line of a text, shortened if it is long."""
    return one_line(situation.first_line(given), situation.LINE_MAX)


def describe_fault(failure: Mapping[str, Any]) -> str:
    """Return type and message of a failure as an event has it, with the item for which a fan-out failed."""
    return describe_failure(
        failure.get("type", ""), failure.get("message", ""), failure.get("item"), failure.get("label", "")
    )


def until(until: float | None, now: float) -> str:
    """Say until when something is waited for, and whether that has passed; empty for a wait without a time limit."""
    if until is None:
        return ""
    past = (
        ", which has passed: the next process that executes the run records the timeout"
        if until <= now
        else ""
    )
    return f" (until {soon(until, now)}{past})"


def name_item(node: str, item: int | None, labels: Mapping[str, Mapping[int, str]] | None = None) -> str:
    """Return the name of a node, with the item of its fan-out, and the label of the item, if there is one."""
    if item is None:
        return node
    label = (labels or {}).get(node, {}).get(item)
    return f"{node} (item {item}, {one_line(label)})" if label else f"{node} (item {item})"


def not_cleaned_up(left: Uncleaned) -> str:
    """Say which visit did not clean up when its run was cancelled, why, and what it has kept."""
    place = name_item(left.node, left.item)
    match left.why:
        case "died":
            why = f"the process of {place} died before the run was cancelled, so the rest of its cleanup was not done"
        case "unwound":
            why = f"{place} waited and was not in memory, so its cleanup did not run"
        case "interrupted":
            why = f"{place} had been interrupted, so the rest of its cleanup was not done"
        case "abandoned":
            why = f"{place} did not stop in time, so the rest of its cleanup was not recorded"
        case "killed":
            why = f"{place} ran in a process of its own, which was killed, so its cleanup did not run"
        case unknown:
            assert_never(unknown)
    return f"{why}; {_kept_steps(left)}"


def will_not_clean_up(left: Uncleaned) -> str:
    """Say which visit would not clean up if its run were cancelled now, why, and what it has kept."""
    place = name_item(left.node, left.item)
    match left.why:
        case "died":
            why = f"the process of {place} died, so the rest of its cleanup will not be done"
        case "unwound":
            why = f"{place} waits and is not in memory, so its cleanup will not run"
        case "interrupted":
            why = f"{place} was interrupted, so the rest of its cleanup will not be done"
        case "abandoned":
            why = f"{place} does not stop in time, so the rest of its cleanup will not be recorded"
        case "killed":
            why = f"{place} runs in a process of its own, which is killed, so its cleanup will not run"
        case unknown:
            assert_never(unknown)
    return f"{why}; {_kept_steps(left)}"


def _kept_steps(left: Uncleaned) -> str:
    return f"its kept steps: {', '.join(left.steps)}" if left.steps else "it has kept no steps"
