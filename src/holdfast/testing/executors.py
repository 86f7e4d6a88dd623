"""The suite that every executor must pass: the rules of `holdfast.runtime.calls.executors` as tests.

    from holdfast.testing.executors import ExecutorConformance

    class TestMyExecutor(ExecutorConformance):
        def open(self):
            return MyExecutor()

Run it with pytest (importing it does not need pytest). An executor that cannot kill a call sets `kills = False`; an executor
whose calls run in the process of the engine sets `isolates = False`.

No test here sleeps. A called function opens a named pipe, which blocks until the test opens the other end; a test that reads
such a pipe to its end knows that every process that had it open is dead.
"""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.core.definition import END, START
from holdfast.core.events import Changes
from holdfast.core.graph import Flow, Graph, Retry
from holdfast.errors import Fatal, ProcessEnded, Recoverable
from holdfast.runtime import failures
from holdfast.runtime.calls.executors import Call, Executor, ExecutorTraits, Handle, Killed

PATIENCE_S = 60.0
AT_ONCE = 16

# --- functions of nodes: at module level, so that another process can import them ----------------------


def double(state: dict[str, Any]) -> dict[str, Any]:
    """Return a partial update of the state."""
    return {"n": state["n"] * 2, "text": "é🐙", "nested": {"list": [1, 2.5, None, True]}}


def grow(state: dict[str, Any]) -> dict[str, Any]:
    """Change the given state in place, and return it."""
    state["seen"].append("here")
    return state


def identify(state: dict[str, Any]) -> dict[str, Any]:
    """Return the id of this process."""
    return {"pid": os.getpid()}


def nothing(state: dict[str, Any]) -> None:
    """Return no update."""


def touch(state: dict[str, Any]) -> None:
    """Change the given state in place, but do not return it."""
    state["n"] = 1


def square(item: int) -> dict[str, Any]:
    """Process one item of a fan-out."""
    return {f"square_{item}": item * item}


def wait(state: dict[str, Any]) -> dict[str, Any]:
    """Report through a pipe that the call has begun, and wait until the test lets it continue."""
    with open(state["begun"], "w") as pipe:
        pipe.write("begun")
    with open(state["go"]) as pipe:
        pipe.read()
    return {"done": True}


def hog(state: dict[str, Any]) -> None:
    """Hold a pipe open, and loop without ever giving up the processor."""
    with open(state["begun"], "w") as pipe:
        pipe.write("begun")
        pipe.flush()
        while True:
            pass


def raise_it(state: dict[str, Any]) -> None:
    """Raise the exception that the state names."""
    made = RAISED[state["what"]]()
    raise made


def leave(state: dict[str, Any]) -> None:
    """End the process at once, with exit code 3."""
    os._exit(3)


def die(state: dict[str, Any]) -> None:
    """End the process with SIGSEGV, as a memory fault does."""
    os.kill(os.getpid(), signal.SIGSEGV)


class TooMany(Recoverable):
    """An exception that says after how many seconds to retry."""

    retry_after = 7.0


RAISED: dict[str, Callable[[], BaseException]] = {
    "partial": lambda: ValueError("wrong"),
    "passing": lambda: TimeoutError("late"),
    "connection": lambda: ConnectionResetError("cut"),
    "recoverable": lambda: TooMany("busy"),
    "fatal": lambda: Fatal("never"),
    "exit": lambda: SystemExit(3),
    "group": lambda: ExceptionGroup("two", [TimeoutError("late"), ValueError("wrong")]),
    "silent": ValueError,
}


# --- the suite ----------------------------------------------------------------------------------------


class Submitted:
    """A call that was submitted to an executor, and its result."""

    def __init__(self, executor: Executor, call: Call) -> None:
        self._call = call
        self._ends: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.handle: Handle = executor.submit(call, lambda value, error: self._ends.put((value, error)))

    def error(self) -> BaseException:
        """Wait for the end of the call, and return the exception that it raised."""
        value, error = self._ends.get(timeout=PATIENCE_S)
        assert value is None
        assert error is not None
        return error

    def changes(self) -> Changes:
        """Wait for the end of the call, and return its changes to the state. If the executor returns the function's result
        instead of the changes, compute them from the result.
        """
        value, error = self._ends.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        if isinstance(value, Changes):
            return value
        call = self._call
        values = {} if call.item is not None else call.plain
        return call.flow.state.changes(value, values, node=call.node.name, given=call.given)

    def ended_more_than_once(self) -> bool:
        return not self._ends.empty()


class ExecutorConformance:
    """Tests for everything that an executor promises. Subclass it, name the class `Test…` and implement `open`."""

    kills = True
    isolates = True

    def open(self) -> Executor:
        """Make a new executor."""
        raise NotImplementedError("implement open(): return a new executor")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.executor = self.open()

    def teardown_method(self) -> None:
        self.executor.close()
        shutil.rmtree(self.folder)

    def submit(self, fn: Callable[..., Any], item: int | None = None, **given: Any) -> Submitted:
        flow = _flow(fn, each=item is not None)
        node = flow.nodes[fn.__name__]
        plain: Any = given if item is None else item
        typed = flow.state.load(given) if item is None else item
        return Submitted(self.executor, Call(flow=flow, node=node, item=item, plain=plain, given=typed))

    def pipe(self, name: str) -> str:
        path = str(self.folder / name)
        os.mkfifo(path)
        return path

    def start_waiting(self, count: int = 1) -> list[tuple[Submitted, Callable[[], None]]]:
        """Start calls that wait, and return each call with a function that lets it continue."""
        calls: list[tuple[Submitted, Callable[[], None]]] = []
        for number in range(count):
            begun, go = self.pipe(f"begun-{number}"), self.pipe(f"go-{number}")
            calls.append((self.submit(wait, begun=begun, go=go), partial(_let_go, go)))
        for number in range(count):
            with open(self.folder / f"begun-{number}") as told:
                assert told.read() == "begun"
        return calls

    # --- traits ---------------------------------------------------------------------------------------

    def test_its_traits_say_whether_it_calls_functions_in_this_process(self) -> None:
        assert isinstance(self.executor.traits, ExecutorTraits)
        pid = self.submit(identify).changes().set["pid"]
        assert (pid == os.getpid()) is self.executor.traits.here

    # --- ends ----------------------------------------------------------------------------------------

    def test_what_a_function_returns_comes_back(self) -> None:
        expected = {"n": 42, "text": "é🐙", "nested": {"list": [1, 2.5, None, True]}}
        assert self.submit(double, n=21).changes().set == expected

    def test_a_whole_state_comes_back_as_what_was_changed(self) -> None:
        assert self.submit(grow, seen=[], other=1).changes().set == {"seen": ["here"]}

    def test_what_a_function_does_to_what_it_was_given_stays_with_it(self) -> None:
        call = self.submit(grow, seen=[])
        call.changes()
        assert call._call.plain == {"seen": []}  # noqa: SLF001

    def test_nothing_is_no_change(self) -> None:
        assert self.submit(nothing, n=1).changes() == Changes()

    def test_an_item_of_a_fan_out_is_given_the_item(self) -> None:
        assert self.submit(square, item=7).changes().set == {"square_7": 49}

    def test_an_exception_has_the_class_message_and_kind_that_it_has_anywhere(self) -> None:
        for what, make in RAISED.items():
            expected = failures.describe(make())
            found = failures.describe(self.submit(raise_it, what=what).error())
            assert (found.kind, found.type, found.message) == (expected.kind, expected.type, expected.message)

    def test_an_exception_is_tried_again_as_it_is_anywhere(self) -> None:
        luck = random.Random(1)
        retry = Retry(attempts=3, backoff=1.0, jitter=0.0)
        choosy = Retry(attempts=3, backoff=1.0, jitter=0.0, on=(TooMany, ArithmeticError))
        for what, make in RAISED.items():
            expected, found = make(), self.submit(raise_it, what=what).error()
            kind = failures.classify(expected)
            for policy in (retry, choosy):
                delays = [
                    failures.retry_delay(policy, error, kind, 1, luck, now=0.0) for error in (expected, found)
                ]
                assert delays[0] == delays[1], what

    def test_an_end_is_told_once(self) -> None:
        calls = [self.submit(double, n=1), self.submit(raise_it, what="partial")]
        calls[0].changes()
        calls[1].error()
        for call in calls:
            call.handle.kill()
        self.executor.close()
        assert not any(call.ended_more_than_once() for call in calls)

    # --- at once: the engine submits no more calls than `traits.at_once` allows ---------------------------

    def test_as_many_run_at_once_as_are_submitted(self) -> None:
        limit = self.executor.traits.at_once
        assert limit is None or limit > 0
        for call, let_go in reversed(self.start_waiting(min(AT_ONCE, limit or AT_ONCE))):
            let_go()
            assert call.changes().set == {"done": True}

    def test_calls_may_come_from_many_threads(self) -> None:
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def several(first: int) -> None:
            for number in range(first, first + 5):
                results.put((number, self.submit(double, n=number).changes().set["n"]))

        threads = [threading.Thread(target=several, args=(first,)) for first in (0, 5, 10, 15)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        found = dict(results.get_nowait() for _ in range(20))
        assert found == {number: 2 * number for number in range(20)}

    # --- killing -------------------------------------------------------------------------------------

    def test_a_call_is_killed_whatever_it_does_or_says_that_it_cannot_be(self) -> None:
        if not self.kills:
            [(call, let_go)] = self.start_waiting()
            assert call.handle.kill() is False
            let_go()
            assert call.changes().set == {"done": True}  # reported when the call has really ended
            return
        begun = self.pipe("begun")
        call = self.submit(hog, begun=begun)
        with open(begun) as told:
            assert told.read(5) == "begun"
            assert call.handle.kill() is True
            assert told.read() == ""  # the end of the pipe: no process has it open any more
        assert isinstance(call.error(), Killed)
        assert call.handle.kill() is True
        assert not call.ended_more_than_once()

    def test_a_call_can_be_killed_before_it_has_begun(self) -> None:
        call = self.submit(double, n=1)
        if call.handle.kill():
            try:
                call.changes()
            except Killed:
                return
        else:
            call.changes()

    def test_killing_one_call_leaves_the_others_alone(self) -> None:
        (one, go_one), (other, go_other) = self.start_waiting(2)
        if one.handle.kill():
            assert isinstance(one.error(), Killed)
        else:
            go_one()
        go_other()
        assert other.changes().set == {"done": True}

    def test_closing_kills_what_still_runs(self) -> None:
        [(call, let_go)] = self.start_waiting()
        self.executor.close()
        if self.kills:
            assert isinstance(call.error(), Killed)
        else:
            let_go()
            call.changes()

    # --- dying ---------------------------------------------------------------------------------------

    def test_a_process_that_dies_is_a_failure_of_its_call_only(self) -> None:
        if not self.isolates:
            return
        [(other, let_go)] = self.start_waiting()
        for fn, code, told in ((leave, 3, "exited with code 3"), (die, -signal.SIGSEGV, "signal SIGSEGV")):
            error = self.submit(fn).error()
            assert isinstance(error, ProcessEnded)
            assert error.code == code
            assert told in str(error)
            assert repr(fn.__name__) in str(error)
            assert failures.classify(error) == "recoverable"
        let_go()
        assert other.changes().set == {"done": True}
        assert self.submit(double, n=1).changes().set["n"] == 2

    def test_what_could_not_be_kept_is_refused_where_the_types_are(self) -> None:
        if not self.isolates:
            return
        failure = failures.describe(self.submit(touch, n=0).error())
        assert failure.type == "StateError"
        assert "returned None" in failure.message


def _let_go(pipe: str) -> None:
    with open(pipe, "w"):
        pass


def _flow(fn: Callable[..., Any], *, each: bool) -> Flow[Any]:
    graph: Graph[dict[str, Any]] = Graph("conformance")
    graph.node(each=(lambda state: []) if each else None)(fn)
    return graph.chain(START, fn, END).compile()
