"""Where a failure happened, read from the traceback that is recorded with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.events import Failure
from holdfast.reading.places import CodePlace, place_of
from holdfast.runtime import failures


def place_of_raised(call: Callable[[], Any]) -> CodePlace | None:
    try:
        call()
    except BaseException as raised:
        return place_of(failures.describe(raised))
    raise AssertionError("nothing was raised")


def wrong() -> None:
    raise ValueError("no luck")


def of_a_library() -> None:
    json.loads("{")


def chained() -> None:
    try:
        wrong()
    except ValueError as fault:
        raise KeyError("other") from fault


async def _grouped() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(wrong))


@pytest.mark.parametrize(
    ("call", "function", "source"),
    [
        (wrong, "wrong", 'raise ValueError("no luck")'),
        (of_a_library, "of_a_library", 'json.loads("{")'),
        (chained, "chained", 'raise KeyError("other") from fault'),
        (lambda: asyncio.run(_grouped()), "wrong", 'raise ValueError("no luck")'),
    ],
    ids=["raised", "inside a library", "raised from another", "in a group"],
)
def test_the_place_of_a_failure_is_the_last_line_of_the_users_own_code(
    call: Callable[[], Any], function: str, source: str
) -> None:
    place = place_of_raised(call)
    assert place is not None
    assert (place.file, place.function, place.source) == (__file__, function, source)


def test_the_line_that_called_a_library_is_kept_however_deep_the_library_goes() -> None:
    scope: dict[str, Any] = {}
    code = "def dive(depth):\n    return dive(depth - 1) if depth else 1 / 0\n"
    exec(compile(code, "/usr/lib/python3.11/site-packages/deep.py", "exec"), scope)

    def calls() -> None:
        scope["dive"](50)

    place = place_of_raised(calls)
    assert place is not None
    assert (place.file, place.function) == (__file__, "calls")


@pytest.mark.parametrize("length", [1, 3_000])
def test_a_traceback_in_the_message_is_not_the_place(length: int) -> None:
    told = 'the tool failed:\n  File "/srv/tool.py", line 3, in main\n    work()\nValueError: no\n' * length

    def fails() -> None:
        raise RuntimeError(told)

    place = place_of_raised(fails)
    assert place is not None
    assert (place.file, place.source) == (__file__, "raise RuntimeError(told)")


def test_a_long_message_does_not_push_the_place_out() -> None:
    def fails() -> None:
        raise RuntimeError("<html>" * 10_000)

    place = place_of_raised(fails)
    assert place is not None
    assert place.file == __file__


def test_a_flow_that_is_installed_as_a_package_has_the_last_frame_of_all() -> None:
    trace = 'Traceback:\n  File "/venv/lib/python3.12/site-packages/mine.py", line 7, in pay\n    charge()\nValueError: x\n'
    assert place_of(Failure("partial", "ValueError", "x", trace)) == CodePlace(
        "/venv/lib/python3.12/site-packages/mine.py", 7, "pay", "charge()"
    )


def test_a_failure_without_frames_has_no_place() -> None:
    assert place_of(None) is None
    assert place_of(Failure("partial", "RunTimeout", "took too long")) is None


def test_a_path_is_shown_from_the_folder_that_it_is_inside_of() -> None:
    place = CodePlace("/home/me/flows/work.py", 3, "first", "pay()")
    assert place.seen_from("/home/me") == "flows/work.py:3, in first: pay()"
    assert place.seen_from("/home/m") == str(place) == "/home/me/flows/work.py:3, in first: pay()"
