"""Prints where a run failed: the last line of the user's code in the traceback and, with `--debug`, the whole traceback."""

from __future__ import annotations

import os
import traceback

from holdfast.cli import screen
from holdfast.core.events import Failure
from holdfast.reading.places import place_of

_WIDTH_MAX = 300


def where(failure: Failure | None) -> str | None:
    """Return the last line of the user's code in the traceback of a failure, with a path relative to the current folder if
    possible.
    """
    place = place_of(failure)
    return screen.one_line(place.seen_from(os.getcwd()), _WIDTH_MAX) if place is not None else None


def say_where(
    failure: Failure | None, *, debug: bool = False, raised: BaseException | None = None, err: bool = False
) -> None:
    """Print where a run failed. With `debug`, also print the traceback: that of the exception `raised` in this process, or else
    the recorded one.
    """
    found = where(failure)
    if found is not None:
        screen.say(("  at ", "dim"), found, err=err)
    trace = "".join(traceback.format_exception(raised)) if raised is not None else ""
    trace = trace or (failure.traceback if failure is not None else "")
    if debug and trace:
        screen.say(trace.rstrip("\n"), err=err)
