"""Steps, maps, checkpoints and idempotency keys: what a node keeps is not done again by a later attempt of the execution."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.testing.appends import KilledAtFailpoint, hooked

NOW = Retry(attempts=3, backoff=0.0)


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1])
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """For what only a coroutine can do."""
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


class Calls:
    """Functions that are counted."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.threads: list[str] = []

    def __call__(self, what: Any) -> Any:
        self.made.append(what)
        self.threads.append(threading.current_thread().name)
        return f"{what}-{len(self.made)}"


class Boom(Exception):
    """Something that is not tried again by itself."""


# --- kept ---------------------------------------------------------------------------------------------


def test_a_step_done_before_a_crash_is_taken_from_the_log(stage: Stage) -> None:
    calls, lives = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        charged = yield ctx.step("charge", calls, "card")
        lives.append(ctx.attempt)
        if len(lives) == 1:
            yield stage.dies(ctx)
        return {"log": [charged]}

    flow = stage.one(body)
    stage.crash(flow)
    run = stage.resume(flow)
    assert (calls.made, lives, run.state.log) == (["card"], [1, 2], ["card-1"])
    assert [(step.step, step.value) for step in stage.told("StepCompleted")] == [("charge", "card-1")]
    assert stage.problems() == []


def test_a_step_done_before_a_failure_is_taken_by_the_next_try_and_by_a_retry(stage: Stage) -> None:
    calls, tries = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("charge", calls, "card")
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise hf.Recoverable("once")
        if len(tries) == 2:
            raise Boom("for good")
        return {"log": [(yield ctx.step("ship", calls, "box"))]}

    flow = stage.one(body, retry=NOW)
    failed = stage.fails(flow)
    assert (failed.nodes["only"].steps, tries) == (("charge",), [1, 2])
    run = stage.verb(flow, "retry")
    assert (calls.made, tries, run.state.log) == (["card", "box"], [1, 2, 3], ["box-2"])


def test_a_step_is_never_done_again_wherever_the_process_died(stage: Stage) -> None:
    """The log of a whole run, cut behind each of its events."""
    calls = Calls()

    def body(state: Work, ctx: Any) -> Any:
        found = []
        for number in range(3):
            found.append((yield ctx.step("part", calls, number, key=number)))
            yield ctx.checkpoint(number)
        return {"log": found}

    flow = stage.one(body)
    whole = stage.run(flow)
    for seq in range(1, whole.seq):
        kept = sum(kind == "StepCompleted" for kind in stage.kinds()[:seq])
        done = "NodeCompleted" in stage.kinds()[:seq]
        calls.made.clear()
        url = stage.crashed_at(seq)
        run = stage.verb(flow, "resume", url=url)
        assert calls.made == ([] if done else list(range(kept, 3))), seq
        assert len(run.state.log) == 3
        assert stage.problems(url) == []


@pytest.mark.parametrize("how", ["replay", "restart_at", "rewind", "fresh", "fork"])
def test_an_execution_that_is_asked_for_anew_starts_with_nothing(stage: Stage, how: str) -> None:
    calls, found, broken = Calls(), [], [True]

    def body(state: Work, ctx: Any) -> Any:
        found.append((ctx.execution, ctx.attempt, ctx.last_checkpoint))
        charged = yield ctx.step("charge", calls, "card")
        yield ctx.checkpoint(charged)
        if broken and how == "fresh":
            raise Boom("for good")
        return {"plain": charged}

    def behind(state: Work, ctx: Any) -> Any:
        if broken:
            raise Boom("behind it")
        yield ctx.checkpoint(1)

    graph = Graph("two", Work)
    for name, script in (("only", body), ("behind", behind)):
        graph.node(name=name)(stage.node(script))
    flow = graph.chain(START, "only", "behind", END).compile()
    stage.fails(flow)
    broken.clear()
    if how == "fork":
        stage.do(lambda engine: engine.fork("r", checkpoint=1, run_id="f"), flow)
        run = stage.do(lambda engine: engine.resume("f"), flow)
    else:
        named = {
            "replay": {"replay": True},
            "restart_at": {"restart_at": "only"},
            "rewind": {"checkpoint": 1},
        }
        run = stage.verb(flow, "retry", fresh=True) if how == "fresh" else stage.resume(flow, **named[how])
    execution = 1 if how == "fork" else 2
    assert calls.made == ["card", "card"]
    assert run.state.plain == "card-2"
    assert found == [(1, 1, None), (execution, 1, None)]


def test_the_next_iteration_of_a_loop_has_steps_of_its_own(stage: Stage) -> None:
    calls = Calls()

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step("turn", calls, ctx.iteration))], "total": 1}

    graph = Graph("loop", Work)
    graph.node(name="turn")(stage.node(body))
    graph.edge(START, "turn").branch("turn", lambda s: END if s.total == 3 else "turn", to=["turn", END])
    assert stage.run(graph.compile()).state.log == ["1-1", "2-2", "3-3"]


# --- identity -----------------------------------------------------------------------------------------


def test_steps_are_known_by_name_so_that_their_order_may_change(stage: Stage) -> None:
    calls, lives = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(1)
        names = ["a", "b"] if len(lives) == 1 else ["c", "b", "a"]
        found = {}
        for name in names:
            found[name] = yield ctx.step(name, calls, name)
        if len(lives) == 1:
            yield stage.dies(ctx)
        return {"log": [found["a"], found["b"], found["c"]]}

    flow = stage.one(body)
    stage.crash(flow)
    assert stage.resume(flow).state.log == ["a-1", "b-2", "c-3"]


def test_gathered_steps_are_kept_each_under_its_own_name(quick: Stage) -> None:
    calls, lives = Calls(), []

    async def slowly(name: str, gate: asyncio.Event | None) -> str:
        if gate is not None:
            await gate.wait()
        return str(calls(name))

    def body(state: Work, ctx: Any) -> Any:
        lives.append(1)
        first = len(lives) == 1

        async def both() -> list[str]:
            gate = asyncio.Event()

            async def last() -> str:
                found = await ctx.step("last", slowly, "last", None)
                gate.set()
                if first:
                    await quick.dies(ctx)
                return str(found)

            # On the first life "first" ends behind "last"; on the second it does not run at all.
            return list(await asyncio.gather(ctx.step("first", slowly, "first", gate), last()))

        return {"log": (yield both())}

    flow = quick.one(body)
    quick.crash(flow)
    assert quick.resume(flow).state.log[1] == "last-1"
    assert calls.made.count("last") == 1


def test_the_same_name_twice_is_refused_and_a_key_tells_them_apart(stage: Stage) -> None:
    calls = Calls()

    def twice(state: Work, ctx: Any) -> Any:
        yield ctx.step("charge", calls, 1)
        yield ctx.step("charge", calls, 2)

    failed = stage.fails(stage.one(twice))
    assert failed.error.type == "ContextError"
    assert all(part in failed.error.message for part in ("'only'", "'charge'", "twice", "key="))
    assert calls.made == [1]

    def keyed(state: Work, ctx: Any) -> Any:
        one = yield ctx.step("charge", calls, 1, key="a")
        return {"log": [one, (yield ctx.step("charge", calls, 2, key="b"))]}

    graph = Graph("keyed", Work)
    graph.node(name="only")(stage.node(keyed))
    run = stage.run(graph.chain(START, "only", END).compile(), run_id="k")
    assert run.state.log == ["1-2", "2-3"]


def test_the_same_name_twice_is_refused_also_behind_a_kept_step(stage: Stage) -> None:
    """A second attempt finds the step done: the fault must not turn into somebody else's result."""
    calls, tries = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        tries.append(1)
        yield ctx.step("charge", calls, 1)
        if len(tries) == 1:
            raise hf.Recoverable("once")
        yield ctx.step("charge", calls, 2)

    assert stage.fails(stage.one(body, retry=NOW)).error.type == "ContextError"
    assert calls.made == [1]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_step_without_a_name_is_refused(stage: Stage, name: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step(name, list)

    error = stage.fails(stage.one(body)).error
    assert (error.type, "is not a valid name of a step" in error.message) == ("ContextError", True)


# --- values -------------------------------------------------------------------------------------------


@dataclass
class Receipt:
    id: int
    lines: list[str]


def test_the_decoded_value_is_returned_the_first_time_too(stage: Stage) -> None:
    """By annotation, by `type=`, and otherwise JSON's own types: the first attempt sees what the second will."""
    seen: list[Any] = []

    def annotated() -> Receipt:
        return Receipt(1, ["a"])

    def body(state: Work, ctx: Any) -> Any:
        found = [
            (yield ctx.step("annotated", annotated)),
            (yield ctx.step("typed", lambda: Receipt(2, []), type=Receipt)),
            (yield ctx.step("plain", lambda: {"a": [1, 2]})),
        ]
        seen.append(found)
        if len(seen) == 1:
            yield stage.dies(ctx)

    flow = stage.one(body)
    stage.crash(flow)
    stage.resume(flow)
    assert seen[0] == seen[1] == [Receipt(1, ["a"]), Receipt(2, []), {"a": [1, 2]}]
    assert [type(value) for value in seen[0]] == [Receipt, Receipt, dict]


def test_what_a_node_does_to_a_result_does_not_change_what_is_kept(stage: Stage) -> None:
    seen: list[Any] = []
    made = {"lines": ["a"]}

    def body(state: Work, ctx: Any) -> Any:
        found = yield ctx.step("list", lambda: made)
        seen.append([*found["lines"]])
        found["lines"].append("spoiled")
        made["lines"].append("spoiled too")
        if len(seen) == 1:
            raise hf.Recoverable("once")
        if len(seen) == 2:
            yield stage.dies(ctx)

    flow = stage.one(body, retry=NOW)
    stage.crash(flow)
    stage.resume(flow)
    assert seen == [["a"]] * 3


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {1: 2}, "a\0b"], ids=["object", "nan", "key", "nul"]
)
def test_a_result_that_cannot_be_kept_names_the_step_and_the_node(stage: Stage, value: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("charge", lambda: value)

    error = stage.fails(stage.one(body)).error
    assert (error.type, error.kind) == ("CodecError", "partial")
    assert all(part in error.message for part in ("'only'", "'charge'")), error.message
    assert stage.told("StepCompleted") == []


def test_a_result_that_does_not_fit_its_type_is_an_error_too(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("charge", lambda: "text", type=int)

    error = stage.fails(stage.one(body)).error
    assert (error.type, "'charge'" in error.message) == ("CodecError", True)


def test_none_is_a_result_like_any_other(stage: Stage) -> None:
    calls, lives = Calls(), []

    def nothing() -> None:
        calls("x")

    def body(state: Work, ctx: Any) -> Any:
        lives.append((yield ctx.step("nothing", nothing)))
        if len(lives) == 1:
            yield stage.dies(ctx)

    flow = stage.one(body)
    stage.crash(flow)
    stage.resume(flow)
    assert (lives, calls.made) == ([None, None], ["x"])


def test_a_step_takes_arguments_by_place_and_by_name(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step("add", lambda a, b, c: a + b + c, 1, 2, c=3))]}

    assert stage.run(stage.one(body)).state.log == [6]


def test_a_step_that_raises_keeps_nothing_and_raises_in_the_node(stage: Stage) -> None:
    calls: list[str] = []

    def flaky() -> str:
        calls.append("x")
        if len(calls) == 1:
            raise KeyError("gone")
        return "ok"

    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.step("flaky", flaky)
        except KeyError as raised:
            return {"log": [raised.args[0]]}

    assert stage.run(stage.one(body)).state.log == ["gone"]
    assert stage.told("StepCompleted") == []


# --- colours ------------------------------------------------------------------------------------------


def test_a_plain_function_is_called_in_a_thread_and_a_coroutine_on_the_loop(quick: Stage) -> None:
    calls = Calls()

    async def on_the_loop(what: str) -> str:
        return str(calls(what))

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("plain", calls, "a")
        yield ctx.step("coroutine", on_the_loop, "b")
        yield ctx.step("behind a lambda", lambda: on_the_loop("c"))

    quick.run(quick.one(body), inline=False)
    assert calls.made == ["a", "b", "c"]
    assert calls.threads[0] == "holdfast-node"
    assert calls.threads[1:] == ["MainThread"] * 2


def test_a_plain_node_may_await_a_coroutine_as_a_step(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path, "def")
    calls = Calls()

    async def on_the_loop(what: str) -> str:
        return str(calls(what))

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step("plain", calls, "a")), (yield ctx.step("awaited", on_the_loop, "b"))]}

    assert stage.run(stage.one(body)).state.log == ["a-1", "b-2"]
    assert calls.threads == ["holdfast-node", "MainThread"]


def test_an_attempt_that_was_given_up_keeps_nothing_any_more(tmp_path: Path) -> None:
    """A thread that outlived its cancellation calls its context, and is refused."""
    stage = Stage("memory", tmp_path, "def")
    entered, leave, refused = threading.Event(), threading.Event(), []
    gone = threading.Event()

    def node(state: Work, ctx: Any) -> None:
        entered.set()
        leave.wait(20)
        for act in (
            lambda: ctx.step("late", list),
            lambda: ctx.checkpoint(1),
            lambda: ctx.cost(usd=1),
            lambda: ctx.emit("x"),
        ):
            try:
                act()
            except BaseException as stopped:
                refused.append(type(stopped).__name__)
        gone.set()

    graph = Graph("late", Work)
    graph.node(name="only")(node)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await until(entered.is_set)
        await engine.cancel("r")
        await asyncio.gather(run, return_exceptions=True)
        leave.set()
        await until(gone.is_set)

    stage.do(use, flow)
    assert refused == ["Stopped"] * 4
    assert stage.kinds()[-1] == "RunCancelled"


# --- items --------------------------------------------------------------------------------------------


def test_items_of_a_fan_out_have_steps_of_their_own(stage: Stage) -> None:
    calls, lives = Calls(), []

    def body(page: str, ctx: Any) -> Any:
        found = yield ctx.step("read", calls, page)
        lives.append((ctx.item, ctx.attempt))
        if len(lives) == 2:
            yield stage.dies(ctx)
        if len(lives) == 1:
            raise hf.Recoverable("once")
        return {"log": [found]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: ["a", "b"], limit=1, retry=NOW)(stage.node(body))
    flow = graph.chain(START, "only", END).compile()
    stage.crash(flow)
    assert stage.resume(flow).state.log == ["a-1", "b-2"]
    assert lives == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert calls.made == ["a", "b"]
    assert [(step.item, step.step) for step in stage.told("StepCompleted")] == [(0, "read"), (1, "read")]


# --- map ----------------------------------------------------------------------------------------------


def test_map_keeps_each_item_and_returns_them_in_order(stage: Stage) -> None:
    calls, lives = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(1)
        found = yield ctx.map("embed", lambda item: calls(item) and item * 10, [3, 1, 2], limit=2)
        if len(lives) == 1:
            yield stage.dies(ctx)
        return {"log": found}

    flow = stage.one(body)
    stage.crash(flow)
    assert stage.resume(flow).state.log == [30, 10, 20]
    assert sorted(calls.made) == [1, 2, 3]
    names = {step.step.partition(":")[0] for step in stage.told("StepCompleted")}
    assert names == {"embed[0]", "embed[1]", "embed[2]"}


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_map_runs_no_more_at_once_than_its_limit(quick: Stage, limit: int) -> None:
    now, most = [0], [0]

    async def embed(item: int) -> int:
        now[0] += 1
        most[0] = max(most[0], now[0])
        for _ in range(5):
            await asyncio.sleep(0)
        now[0] -= 1
        return item

    def body(state: Work, ctx: Any) -> Any:
        return {"log": (yield ctx.map("embed", embed, range(10), limit=limit))}

    assert quick.run(quick.one(body)).state.log == list(range(10))
    assert most == [limit]


def test_when_an_item_of_a_map_fails_no_more_start_and_those_under_way_are_kept(quick: Stage) -> None:
    calls, broken = Calls(), [1]

    async def embed(item: int) -> int:
        calls(item)
        await asyncio.sleep(0)
        if item in broken:
            raise Boom(f"item {item}")
        await asyncio.sleep(0)
        return item

    def body(state: Work, ctx: Any) -> Any:
        return {"log": (yield ctx.map("embed", embed, range(6), limit=3))}

    flow = quick.one(body)
    failed = quick.fails(flow)
    assert (failed.error.type, failed.error.message) == ("Boom", "item 1")
    assert sorted(calls.made) == [0, 1, 2]
    assert {step.partition(":")[0] for step in failed.nodes["only"].steps} == {"embed[0]", "embed[2]"}
    broken.clear()
    calls.made.clear()
    assert quick.resume(flow).state.log == list(range(6))
    assert sorted(calls.made) == [1, 3, 4, 5]


def test_a_map_over_nothing_is_nothing(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": (yield ctx.map("embed", str, []))}

    assert stage.run(stage.one(body)).state.log == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, None])
def test_a_map_with_no_limit_to_speak_of_is_refused(stage: Stage, limit: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.map("embed", str, [1], limit=limit)

    error = stage.fails(stage.one(body)).error
    assert (error.type, "limit" in error.message) == ("ContextError", True)


def test_two_maps_of_one_name_are_refused(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.map("embed", str, [1])
        yield ctx.map("embed", str, [2])

    assert stage.fails(stage.one(body)).error.type == "ContextError"


def test_map_results_have_the_type_that_was_asked_for(stage: Stage) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        seen.extend((yield ctx.map("read", lambda item: Receipt(item, []), [1, 2], type=Receipt)))

    stage.run(stage.one(body))
    assert seen == [Receipt(1, []), Receipt(2, [])]


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_long_loop_goes_on_from_its_last_checkpoint(stage: Stage) -> None:
    seen: list[Any] = []
    did: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        seen.append(ctx.last_checkpoint)
        at = ctx.last_checkpoint or {"page": 0}
        for page in range(at["page"], 6):
            did.append(page)
            yield ctx.checkpoint({"page": page + 1})
            if page == 1:
                raise hf.Recoverable("once")
            if page == 3 and len(seen) == 2:
                yield stage.dies(ctx)
        return {"log": [ctx.last_checkpoint]}

    flow = stage.one(body, retry=NOW)
    stage.crash(flow)
    assert stage.do(lambda engine: engine.get("r"), flow).nodes["only"].checkpoint == {"page": 4}
    assert stage.resume(flow).state.log == [{"page": 6}]
    assert seen == [None, {"page": 2}, {"page": 4}]
    assert did == list(range(6))
    assert len(stage.told("NodeCheckpointed")) == 6


def test_what_a_node_does_to_its_checkpoint_does_not_change_what_is_kept(stage: Stage) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        value = {"pages": [1]}
        if ctx.last_checkpoint is None:
            yield ctx.checkpoint(value)
            value["pages"].append(2)
            ctx.last_checkpoint["pages"].append(3)
        seen.append(ctx.last_checkpoint)
        if len(seen) == 1:
            raise hf.Recoverable("once")
        yield ctx.checkpoint(None)

    stage.run(stage.one(body, retry=NOW))
    assert seen == [{"pages": [1]}] * 2


def test_a_checkpoint_that_cannot_be_kept_is_refused_by_name(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(object())

    error = stage.fails(stage.one(body)).error
    assert error.type == "CodecError"
    assert "'only'" in error.message
    assert "checkpoint" in error.message


def test_items_have_checkpoints_of_their_own(stage: Stage) -> None:
    seen: list[Any] = []

    def body(page: int, ctx: Any) -> Any:
        seen.append((ctx.item, ctx.attempt, ctx.last_checkpoint))
        yield ctx.checkpoint(page)
        if ctx.attempt == 1:
            raise hf.Recoverable("once")

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [10, 20], limit=1, retry=NOW)(stage.node(body))
    stage.run(graph.chain(START, "only", END).compile())
    assert sorted(seen) == [(0, 1, None), (0, 2, 10), (1, 1, None), (1, 2, 20)]


# --- idempotency keys ---------------------------------------------------------------------------------


def keyed(stage: Stage, keys: list[str], broken: list[Any], **options: Any) -> Flow[Any]:
    def body(state: Work, ctx: Any) -> Any:
        keys.append(ctx.idempotency_key("charge"))
        yield ctx.checkpoint(1)
        if broken:
            trouble = broken.pop(0)
            if trouble == "crash":
                yield stage.dies(ctx)
            raise trouble
        return {"total": 1}

    def behind(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        raise Boom("behind it")

    graph = Graph("keyed", Work)
    graph.node(name="only", **options)(stage.node(body))
    graph.node(name="behind")(stage.node(behind))
    return graph.chain(START, "only", "behind", END).compile()


def test_an_idempotency_key_outlives_attempts_crashes_and_executions(stage: Stage) -> None:
    keys: list[str] = []
    flow = keyed(stage, keys, [hf.Recoverable("once"), "crash", Boom("for good")], retry=NOW)
    stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    for how in ({}, {"replay": True}, {"restart_at": "only"}, {"checkpoint": 1}):
        with pytest.raises(hf.RunFailed):
            stage.resume(flow, **how)
    assert len(keys) == 7
    assert len(set(keys)) == 1


def test_only_fresh_makes_a_new_idempotency_key_and_it_stays(stage: Stage) -> None:
    keys: list[str] = []
    flow = keyed(stage, keys, [Boom("for good"), Boom("again"), Boom("and again")])
    stage.fails(flow)
    for fresh in (True, False, True):
        with pytest.raises(hf.RunFailed):
            stage.verb(flow, "retry", "only", fresh=fresh)
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3
    with pytest.raises(hf.RunFailed):
        stage.resume(flow, restart_at="only")
    assert keys[4] == keys[3], "an execution that was not asked to be fresh keeps the key"


def test_idempotency_keys_differ_by_name_node_item_iteration_and_run(stage: Stage) -> None:
    keys: list[str] = []

    def body(item: int, ctx: Any) -> Any:
        keys.extend([ctx.idempotency_key("a"), ctx.idempotency_key("b"), ctx.idempotency_key()])
        yield ctx.checkpoint(1)
        return {"total": 1}

    graph = Graph("keys", Work)
    graph.node(name="one", each=lambda state: [1, 1])(stage.node(body))
    graph.node(name="two", each=lambda state: [1, 1])(stage.node(body))
    graph.chain(START, "one", "two").branch("two", lambda s: END if s.total >= 8 else "one", to=["one", END])
    flow = graph.compile()
    stage.run(flow)
    stage.run(flow, run_id="other")
    assert len(keys) == 3 * 2 * 2 * 2 * 2
    assert len(set(keys)) == len(keys)


# --- durability ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_of_less_durability_keeps_steps_and_does_not_wait_for_them(
    stage: Stage, durability: str
) -> None:
    calls, tries = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        found = yield ctx.step("charge", calls, "card")
        yield ctx.checkpoint(found)
        mapped = yield ctx.map("embed", str, [1, 2])
        tries.append(1)
        if len(tries) == 1:
            raise hf.Recoverable("once")
        return {"log": [found, *mapped]}

    run = stage.run(stage.one(body, retry=NOW), durability=durability)
    assert (run.state.log, calls.made) == (["card-1", "1", "2"], ["card"])
    assert stage.problems() == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_step_is_durable_before_the_node_goes_on_where_that_is_asked(
    stage: Stage, durability: str, idempotent: bool
) -> None:
    seen: list[bool] = []

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("charge", lambda: 1)
        seen.append("StepCompleted" in stage.kinds())

    stage.run(stage.one(body, idempotent=idempotent), durability=durability)
    if durability == "sync" or not idempotent:
        assert seen == [True]
    assert "StepCompleted" in stage.kinds()


def test_a_step_whose_append_fails_stops_the_run_and_calls_nothing_failed(quick: Stage) -> None:
    calls, lives = Calls(), []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(1)
        found = yield ctx.step("charge", calls, "card")
        return {"log": [found]}

    class Die:
        """At the append that holds the step."""

        def __call__(self, name: str) -> None:
            if name == "append.before" and calls.made and len(lives) == 1:
                raise KilledAtFailpoint(name)

    flow = quick.one(body)
    with hooked(Die()), pytest.raises(KilledAtFailpoint):
        quick.run(flow)
    assert "NodeFailed" not in quick.kinds()
    assert "StepCompleted" not in quick.kinds()
    assert quick.resume(flow).state.log == ["card-2"]
    assert quick.problems() == []


def test_large_results_become_blobs_and_come_back_whole(stage: Stage) -> None:
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        found = yield ctx.step("large", lambda: "x" * 5000)
        lives.append(len(found))
        if len(lives) == 1:
            yield stage.dies(ctx)

    flow = stage.one(body)
    stage.crash(flow, blob_over=1000)
    stage.do(lambda engine: engine.resume("r"), flow, blob_over=1000)
    assert lives == [5000, 5000]
    assert list(stage.store.blobs.digests()) != []
    assert stage.problems() == []


def test_no_step_is_kept_by_a_context_of_another_attempt(quick: Stage) -> None:
    """A context that is kept around and used when its node is long over."""
    kept: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        kept.append(ctx)
        yield ctx.checkpoint(1)

    async def use(engine: hf.Engine) -> str:
        await engine.run(flow, run_id="r")
        try:
            await kept[0].step("late", list)
        except BaseException as refused:
            return type(refused).__name__
        return "taken"

    flow = quick.one(body)
    assert quick.do(use, flow) == "Stopped"
    assert quick.told("StepCompleted") == []


def test_a_plain_node_on_the_event_loop_is_told_that_it_cannot_wait_there(quick: Stage) -> None:
    """An engine with `inline=True` has no threads: a context that blocks would wait for itself."""

    def node(state: Work, ctx: Any) -> None:
        ctx.checkpoint(1)

    graph = Graph("inline", Work)
    graph.node(name="only")(node)
    error = quick.fails(graph.chain(START, "only", END).compile()).error
    assert error.type == "ContextError"
    assert all(part in error.message for part in ("'only'", "inline=True", "async def"))


def test_a_step_that_raised_may_be_called_again_in_the_same_attempt(stage: Stage) -> None:
    tried: list[int] = []

    def flaky() -> int:
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError("not yet")
        return len(tried)

    def body(state: Work, ctx: Any) -> Any:
        for _ in range(5):
            try:
                total = yield ctx.step("call", flaky)
            except ConnectionError:
                continue
            return {"total": total}

    run = stage.run(stage.one(body))
    assert (run.state.total, run.nodes["one"].attempt if "one" in run.nodes else 1) == (3, 1)
