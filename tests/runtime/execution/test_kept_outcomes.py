"""Declared steps (`hf.Step`): exceptions that are outcomes are kept, tries are counted in the log, and a try has a time limit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, until

import holdfast as hf
from holdfast import END, START, Graph, Retry, Step

NOW = Retry(attempts=3, backoff=0.0)


class Declined(Exception):
    """An outcome."""


class TrulyDeclined(Declined):
    """A subclass that no step lists."""


class Priced(Exception):
    """Its text is made of its arguments."""

    def __init__(self, code: str, amount: int) -> None:
        super().__init__(code, amount)
        self.code, self.amount = code, amount

    def __str__(self) -> str:
        return f"{self.code}: {self.amount}"


class Forgetful(Exception):
    """Does not pass all of its arguments on."""

    def __init__(self, code: str, amount: int) -> None:
        super().__init__(f"{code}: {amount}")


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1])
    yield found
    found.close()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Stage]:
    found = Stage("memory", tmp_path)
    yield found
    found.close()


class Calls:
    """A function that raises what it is given, one after the other, and then returns how often it was called."""

    def __init__(self, *raised: Exception | None) -> None:
        self.raised = list(raised)
        self.made: list[Any] = []

    def __call__(self, *args: Any) -> int:
        self.made.append(args)
        error = self.raised.pop(0) if self.raised else None
        if error is not None:
            raise error
        return len(self.made)


def saga(
    calls: Calls, step: Step, seen: list[Any], *, dies_at: list[int] | None = None, stage: Any = None
) -> Any:
    """A script: call the step; if it is declined, undo two things, one after the other."""

    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.step(step, calls, "card")
        except Declined as declined:
            seen.append(declined)
            for number in (1, 2):
                yield ctx.step("undo", int, number, key=number)
                if dies_at and dies_at[0] == number:
                    dies_at.clear()
                    yield stage.dies(ctx)
            return {"log": [f"undone: {declined}"]}

    return body


# --- exceptions that are outcomes -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_a_declared_exception_is_not_called_for_again_after_a_crash_during_the_undo(
    stage: Stage, number: int
) -> None:
    calls, seen = Calls(Declined("no", {"code": 51})), list[Any]()
    step = Step("charge", raises=(Declined,))
    flow = stage.one(saga(calls, step, seen, dies_at=[number], stage=stage))
    stage.crash(flow)
    run = stage.resume(flow)
    assert (len(calls.made), run.state.log) == (1, ["undone: ('no', {'code': 51})"])
    assert [type(one) for one in seen] == [Declined, Declined]
    assert seen[0].args == seen[1].args == ("no", {"code": 51})
    (failed,) = stage.told("StepFailed")
    assert (failed.step, failed.failure.type, failed.arguments) == (
        "charge",
        "Declined",
        ["no", {"code": 51}],
    )
    assert failed.retry_at is None
    assert stage.problems() == []


def test_a_saga_goes_on_wherever_its_log_ends(stage: Stage) -> None:
    calls, seen = Calls(Declined("no")), list[Any]()
    flow = stage.one(saga(calls, Step("charge", raises=(Declined,)), seen))
    whole = stage.run(flow)
    kinds = stage.kinds()
    for seq in range(1, whole.seq):
        url = stage.crashed_at(seq)
        calls.raised[:] = [Declined("no")]
        calls.made.clear()
        run = stage.verb(flow, "resume", url=url)
        assert len(calls.made) == ("StepFailed" not in kinds[:seq])
        assert run.state.log == ["undone: no"]
        assert stage.problems(url) == []


def test_the_node_gets_a_rebuilt_exception_the_first_time_too(stage: Stage) -> None:
    original = Priced("cover", 5)
    original.note = "not an argument"  # type: ignore[attr-defined]
    got: list[Priced] = []

    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.step(Step("charge", raises=(Priced,)), Calls(original))
        except Priced as declined:
            got.append(declined)
        return {
            "log": [ctx.kept("charge"), ctx.kept(Step("charge")), ctx.kept("charge", key=1), ctx.kept("x")]
        }

    run = stage.run(stage.one(body))
    assert run.state.log == [True, True, False, False]
    (declined,) = got
    assert declined is not original
    assert (str(declined), declined.code, declined.amount) == ("cover: 5", "cover", 5)
    assert not hasattr(declined, "note")
    assert (declined.__cause__, declined.__context__) == (None, None)


def test_a_kept_exception_that_leaves_the_node_is_partial_and_not_retried(stage: Stage) -> None:
    calls = Calls(Declined("no"))

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("reserve", lambda: 1)
        yield ctx.step(Step("charge", raises=(Declined,), retry=NOW), calls)

    flow = stage.one(body, retry=Retry(attempts=5, backoff=0.0, on=(Declined,)))
    run = stage.fails(flow)
    failure = run.nodes["only"].error
    assert (failure.kind, failure.type, run.nodes["only"].attempt) == ("partial", "Declined", 1)
    assert failure.message == "no"  # that of the exception, and nothing else
    assert "`holdfast skip r only`" in failure.advice
    assert "also 'reserve': `holdfast retry r only --fresh`" in failure.advice
    with pytest.raises(hf.RunFailed, match="This is the outcome of the step 'charge'"):
        stage.resume(flow)
    assert len(calls.made) == 1
    again = stage.verb(flow, "retry", "only", fresh=True)
    assert (again.status, len(calls.made)) == ("completed", 2)
    assert stage.problems() == []


def test_a_subclass_that_is_not_listed_is_not_kept_and_is_named_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(TrulyDeclined("1"), TrulyDeclined("2"), TrulyDeclined("3"))

    def body(state: Work, ctx: Any) -> Any:
        for _ in range(2):
            try:
                yield ctx.step(Step("charge", raises=(Declined,)), calls)
            except TrulyDeclined:
                continue
        return {"log": [ctx.kept("charge")]}

    with caplog.at_level(logging.WARNING, "holdfast"):
        run = stage.run(stage.one(body))
    assert (run.state.log, len(calls.made), stage.told("StepFailed")) == ([False], 2, [])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "raised TrulyDeclined, a subclass of Declined" in warning


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        (Forgetful("cover", 5), "missing 1 required positional argument: 'amount'"),
        (FileNotFoundError(2, "no such file", "there"), "has another text"),
        (ValueError(object()), "arguments that JSON can represent"),
    ],
)
def test_an_exception_that_cannot_be_made_again_is_said_plainly(
    stage: Stage, raised: Exception, why: str
) -> None:
    calls = Calls(raised)

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step(Step("charge", raises=(Forgetful, FileNotFoundError, ValueError)), calls)
        return {"log": ["charged"]}

    flow = stage.one(body)
    run = stage.fails(flow)
    failure = run.nodes["only"].error
    assert failure.type == "ContextError"
    assert "the step 'charge' raised" in failure.message
    assert why in failure.message
    assert stage.resume(flow).state.log == ["charged"]


def test_a_class_that_the_code_does_not_list_any_more_fails_the_node_with_a_remedy(stage: Stage) -> None:
    listed: list[Any] = [Step("charge", raises=(Declined,))]

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step(listed[0], Calls(Declined("no")))

    flow = stage.one(body)
    stage.fails(flow)
    for changed in (Step("charge", raises=(Priced,)), Step("charge"), "charge"):
        listed[:] = [changed]
        with pytest.raises(hf.RunFailed, match="does not list that class any more") as failed:
            stage.resume(flow)
        assert "the step 'charge' raised Declined: no" in str(failed.value)
        assert "`holdfast retry r only --fresh`" in str(failed.value)


def test_a_kept_exception_in_a_group_is_not_retried(quick: Stage) -> None:
    async def body(state: Work, ctx: hf.Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(Step("a", raises=(Declined,)), Calls(Declined("no"))))
            group.create_task(ctx.step("b", lambda: 1))

    graph = Graph("one", Work)
    graph.node(name="only", retry=NOW)(body)
    run = quick.fails(graph.chain(START, "only", END).compile())
    assert (run.nodes["only"].attempt, run.nodes["only"].error.kind) == (1, "partial")


def test_an_item_of_a_fan_out_keeps_its_own_outcomes(stage: Stage) -> None:
    calls = Calls()

    def body(item: int, ctx: Any) -> Any:
        try:
            yield ctx.step(Step("charge", raises=(Declined,)), calls if item else Calls(Declined(item)))
        except Declined as declined:
            return {"log": [f"{declined.args[0]} is declined"]}
        return {"log": ["paid"]}

    graph = Graph("many", Work)
    graph.node(name="only", each=lambda state: [0, 1])(stage.node(body))
    run = stage.run(graph.chain(START, "only", END).compile())
    assert run.state.log == ["0 is declined", "paid"]
    assert [(one.item, one.step) for one in stage.told("StepFailed")] == [(0, "charge")]
    assert stage.problems() == []


# --- tries ----------------------------------------------------------------------------------------------


def test_tries_are_counted_in_the_log_and_a_crash_does_not_reset_them(stage: Stage) -> None:
    calls = Calls(ConnectionError("1"), ConnectionError("2"), ConnectionError("3"), ConnectionError("4"))

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step(Step("charge", retry=NOW), calls)

    flow = stage.one(body, retry=Retry(attempts=1))
    failed = stage.fails(flow)
    assert (len(calls.made), failed.nodes["only"].error.type) == (3, "ConnectionError")
    tries = stage.told("StepFailed")
    assert [one.failure.message for one in tries] == ["1", "2"]
    assert all(one.retry_at is not None for one in tries)
    last = [row.seq for row in stage.store.events("r", kinds=("StepFailed",))][-1]
    for seq, left in ((last - 1, 2), (last, 1)):
        calls.raised[:] = [ConnectionError("again")] * 9
        calls.made.clear()
        with pytest.raises(hf.RunFailed, match="again"):
            stage.verb(flow, "resume", url=stage.crashed_at(seq))
        assert len(calls.made) == left, "the tries before the crash count"
        assert stage.problems(f"{stage.url}-{seq}") == []


def test_the_count_of_tries_begins_again_when_the_node_fails(stage: Stage) -> None:
    calls = Calls(*[ConnectionError("down")] * 5)

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(Step("charge", retry=NOW), calls))]}

    run = stage.run(stage.one(body, retry=Retry(attempts=2, backoff=0.0)))
    assert (run.state.log, len(calls.made), run.nodes["only"].attempt) == ([6], 6, 2)
    assert stage.problems() == []


def test_a_step_waits_between_its_tries_as_a_node_does(quick: Stage) -> None:
    calls = Calls(ConnectionError("1"), ConnectionError("2"))

    def body(state: Work, ctx: Any) -> Any:
        step = Step("charge", retry=Retry(attempts=3, backoff=3600.0, max_delay=86_400.0, jitter=0.0))
        return {"log": [(yield ctx.step(step, calls))]}

    run = quick.run(quick.one(body))
    first, second = (one.retry_at for one in quick.told("StepFailed"))
    assert (run.state.log, second - first >= 7200.0) == ([3], True)
    assert quick.kinds().count("NodeWaiting") == 2, "a long wait keeps no node in memory"
    assert [one.attempt for one in quick.told("NodeStarted")] == [1, 1, 1]
    assert quick.problems() == []


def test_a_wait_between_tries_ends_when_it_would_have_ended_without_the_crash(quick: Stage) -> None:
    calls = Calls(ConnectionError("1"))

    def body(state: Work, ctx: Any) -> Any:
        step = Step("charge", retry=Retry(attempts=2, backoff=3600.0, max_delay=86_400.0, jitter=0.0))
        return {"log": [(yield ctx.step(step, calls))]}

    flow = quick.one(body)
    quick.run(flow)
    (failed,) = quick.told("StepFailed")
    seq = quick.store.events("r", kinds=("StepFailed",))[0].seq
    url = quick.crashed_at(seq)
    quick.verb(flow, "resume", url=url)
    (fired,) = quick.open(url).events("r", kinds=("TimerFired",))
    assert fired.at >= failed.retry_at
    assert len(calls.made) == 3


def test_a_declared_exception_is_final_whatever_the_retry_says(stage: Stage) -> None:
    calls = Calls(Declined("no"))

    def body(state: Work, ctx: Any) -> Any:
        step = Step("charge", raises=(Declined,), retry=Retry(attempts=9, backoff=0.0, on=(Declined,)))
        try:
            yield ctx.step(step, calls)
        except Declined:
            return {"log": ["declined"]}

    assert (stage.run(stage.one(body)).state.log, len(calls.made)) == (["declined"], 1)


def test_a_step_inside_a_step_and_in_a_node_that_must_not_run_twice_waits_in_memory(quick: Stage) -> None:
    inner = Step("inner", retry=Retry(attempts=2, backoff=600.0, max_delay=600.0))

    def nested(state: Work, ctx: Any) -> Any:
        calls = Calls(ConnectionError("1"))

        async def outer() -> int:
            return await hf.current().step(inner, calls)

        return {"log": [(yield ctx.step("outer", outer))]}

    def alone(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(inner, Calls(ConnectionError("1"))))]}

    graph = Graph("two", Work)
    graph.node(name="nested")(quick.node(nested))
    graph.node(name="alone", idempotent=False)(quick.node(alone))
    run = quick.run(graph.chain(START, "nested", "alone", END).compile())
    assert (run.state.log, quick.kinds().count("NodeWaiting")) == ([2, 2], 0)
    assert quick.problems() == []


# --- time limits ----------------------------------------------------------------------------------------


def test_a_try_that_takes_too_long_is_stopped_and_tried_again(quick: Stage) -> None:
    tries: list[int] = []

    async def slow() -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.get_running_loop().create_future()
        return "done"

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(Step("charge", timeout=10, retry=NOW), slow))]}

    run = quick.run(quick.one(body))
    assert (run.state.log, len(tries)) == (["done"], 2)
    (failed,) = quick.told("StepFailed")
    assert (failed.failure.type, failed.failure.message) == (
        "TimeoutError",
        "the step 'charge' took longer than 10 s",
    )


def test_a_plain_function_that_takes_too_long_is_not_tried_beside_its_thread(tmp_path: Path) -> None:
    stage, release, calls = Stage("memory", tmp_path, "def"), threading.Event(), list[int]()

    def slow() -> None:
        calls.append(1)
        release.wait(60)

    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.step(Step("charge", timeout=10, retry=NOW), slow)
        except TimeoutError as late:
            release.set()
            return {"log": [str(late)]}

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        run = asyncio.create_task(engine.run(stage.one(body), None, run_id="r"))
        await until(lambda: calls)
        stage.clock.advance(11)
        return await run

    run = stage.do(use)
    assert calls == [1]
    assert "its thread still runs, so it is not tried again" in run.state.log[0]


def test_no_attempt_starts_beside_the_thread_of_a_try_that_took_too_long(tmp_path: Path) -> None:
    stage, release, calls = Stage("memory", tmp_path, "def"), threading.Event(), list[int]()

    def slow() -> str:
        calls.append(1)
        if len(calls) == 1:
            release.wait(60)
        return "done"

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(Step("charge", timeout=10), slow))]}

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        run = asyncio.create_task(engine.run(stage.one(body, retry=NOW), None, run_id="r"))
        await until(lambda: calls)
        stage.clock.advance(11)
        await until(lambda: "NodeFailed" in stage.kinds())
        for _ in range(50):
            await asyncio.sleep(0)
        assert stage.kinds().count("NodeStarted") == 1
        release.set()
        return await run

    run = stage.do(use)
    assert (run.state.log, len(calls)) == (["done"], 2)


# --- bad declarations -----------------------------------------------------------------------------------


class ByName(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(code)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": ""}, "must be text that is not empty"),
        ({"name": 3}, "must be text that is not empty"),
        ({"raises": Declined}, "give a tuple of exception classes"),
        ({"raises": (Declined("no"),)}, "is not a subclass of Exception"),
        ({"raises": (asyncio.CancelledError,)}, "is not a subclass of Exception"),
        ({"raises": (KeyboardInterrupt,)}, "is not a subclass of Exception"),
        ({"raises": (ByName,)}, "its argument 'code' can only be given by name"),
        ({"raises": (ExceptionGroup,)}, "a group contains other exceptions"),
        ({"raises": (Declined, type("Declined", (Exception,), {}))}, "two classes are named 'Declined'"),
        ({"retry": "3"}, "give the number of attempts, or an hf.Retry"),
        ({"timeout": 0}, "greater than 0"),
        ({"timeout": "10"}, "greater than 0"),
        ({"idempotent": "no"}, "must be True or False"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_when_it_is_made(
    given: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Step(**{"name": "charge", **given})
