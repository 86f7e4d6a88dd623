"""Failures inside a run: their classes and records, retries that outlive processes, quarantine, safe failures, and costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.reading.views import Cost, Run
from holdfast.testing.clock import STARTS_AT


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1])
    yield found
    found.close()


class Boom(Exception):
    """Something that is not tried again by itself."""


def failing(stage: Stage, errors: list[Any], **options: Any) -> Flow[Any]:
    """Raises these one after the other, and then succeeds."""

    def body(state: Work, ctx: Any) -> Any:
        if errors:
            raise errors.pop(0)
        yield ctx.checkpoint(1)
        return {"total": 1}

    return stage.one(body, **options)


# --- classes and records ------------------------------------------------------------------------------


def test_a_failure_record_holds_class_type_message_traceback_and_attempt(stage: Stage) -> None:
    failed = stage.fails(failing(stage, [hf.Recoverable("busy"), Boom("broken")], retry=Retry(backoff=0.0)))
    first, second = stage.told("NodeFailed")
    assert (first.attempt, first.failure.kind, first.failure.type) == (1, "recoverable", "Recoverable")
    assert (second.attempt, second.failure.kind, second.failure.type) == (2, "partial", "Boom")
    assert second.failure.message == "broken"
    assert "in body" in second.failure.traceback
    assert "raise errors.pop(0)" in second.failure.traceback
    assert failed.error == second.failure
    assert (failed.failed_node, failed.nodes["only"].attempt) == ("only", 2)


@pytest.mark.parametrize(
    ("error", "tries", "kind"),
    [
        (hf.Recoverable("busy"), 3, "partial"),
        (TimeoutError("slow"), 3, "partial"),
        (ConnectionResetError("gone"), 3, "partial"),
        (ValueError("wrong"), 1, "partial"),
        (hf.Fatal("never"), 1, "fatal"),
        (hf.CodecError("wrong", path="x"), 1, "partial"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_what_a_failure_is_decides_how_often_it_is_tried_and_how_it_is_resumed(
    quick: Stage, error: BaseException, tries: int, kind: str
) -> None:
    errors = [error] * tries
    flow = failing(quick, errors)
    failed = quick.fails(flow)
    assert (failed.nodes["only"].attempt, failed.error.kind) == (tries, kind)
    if kind == "fatal":
        with pytest.raises(hf.ResumeRefused, match="force"):
            quick.resume(flow)
    assert quick.resume(flow, force=kind == "fatal").state.total == 1


def test_a_step_that_raises_is_judged_by_what_it_raised(stage: Stage) -> None:
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("gone")
        return "ok"

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step("call", call))]}

    assert stage.run(stage.one(body, retry=Retry(backoff=0.0))).state.log == ["ok"]
    assert len(calls) == 3


def test_a_node_that_is_not_idempotent_is_not_retried_unless_it_says_so(quick: Stage) -> None:
    failed = quick.fails(failing(quick, [hf.Recoverable("busy")] * 5, idempotent=False))
    assert failed.nodes["only"].attempt == 1
    own = failing(quick, [hf.Recoverable("busy")], idempotent=False, retry=Retry(attempts=2, backoff=0.0))
    assert quick.run(own, run_id="own").nodes["only"].attempt == 2


# --- retries ------------------------------------------------------------------------------------------


def waits(stage: Stage) -> list[float]:
    """Seconds between the starts of attempts."""
    starts = [row.at for row in stage.store.events("r", kinds=("NodeStarted",))]
    return [round(later - sooner, 6) for sooner, later in pairwise(starts)]


def test_waits_grow_by_their_factor_up_to_the_longest(quick: Stage) -> None:
    retry = Retry(attempts=6, backoff=2.0, factor=3.0, max_delay=20.0, jitter=0.0)
    quick.run(failing(quick, [hf.Recoverable("busy")] * 5, retry=retry))
    assert waits(quick) == [2, 6, 18, 20, 20]


def test_jitter_moves_a_wait_by_its_share_at_most(quick: Stage) -> None:
    retry = Retry(attempts=11, backoff=10.0, factor=1.0, jitter=0.5)
    quick.run(failing(quick, [hf.Recoverable("busy")] * 10, retry=retry))
    assert all(5 <= wait <= 15 for wait in waits(quick))
    assert len(set(waits(quick))) > 1


def test_on_names_exactly_what_is_tried_again(quick: Stage) -> None:
    retry = Retry(attempts=5, backoff=0.0, on=(KeyError,))
    failed = quick.fails(failing(quick, [KeyError("a"), KeyError("b"), ConnectionError("c")], retry=retry))
    assert (failed.nodes["only"].attempt, failed.error.type) == (3, "ConnectionError")


def test_an_attempt_is_in_the_log_before_its_node_runs(stage: Stage) -> None:
    seen: list[tuple[int, list[int]]] = []

    def body(state: Work, ctx: Any) -> Any:
        seen.append((ctx.attempt, [start.attempt for start in stage.told("NodeStarted")]))
        if ctx.attempt < 3:
            raise hf.Recoverable("again")
        yield ctx.checkpoint(1)

    stage.run(stage.one(body, retry=Retry(backoff=0.0)))
    assert seen == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]


def test_a_retry_wait_outlives_its_process_and_is_not_begun_anew(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path, still=True)
    flow = failing(
        stage, [hf.Recoverable("busy")], retry=Retry(attempts=2, backoff=100.0, max_delay=200.0, jitter=0.0)
    )

    async def first(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await until(lambda: failures(stage))
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    async def second(engine: hf.Engine) -> Run[Any]:
        run = asyncio.create_task(engine.resume("r"))
        await turns(50)
        stage.clock.advance(39)
        await turns(50)
        assert len(stage.told("NodeStarted")) == 1
        stage.clock.advance(1)
        return await run

    stage.do(first, flow)
    assert stage.store.run("r").due_at == STARTS_AT + 100
    stage.clock.advance(60)
    run = stage.do(second, flow)
    assert (run.status, run.nodes["only"].attempt, run.updated_at) == ("completed", 2, STARTS_AT + 100)
    stage.close()


def failures(stage: Stage) -> int:
    try:
        return len(stage.told("NodeFailed"))
    except hf.RunNotFound:
        return 0


def test_neither_a_crash_nor_a_resume_gives_new_tries(stage: Stage) -> None:
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(ctx.attempt)
        if len(lives) == 2:
            yield stage.dies(ctx)
        yield ctx.checkpoint(len(lives))
        raise hf.Recoverable("busy")

    flow = stage.one(body, retry=Retry(attempts=3, backoff=0.0))
    stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    assert lives == [1, 2, 3, 4], "one crash and three failures"
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    assert lives == [1, 2, 3, 4, 5], "a resume is one more attempt, and no more"


# --- quarantine ---------------------------------------------------------------------------------------


def deadly(
    stage: Stage, ran: list[int], keeps: Callable[[Any, int], Any] | None = None, **options: Any
) -> Flow[Any]:
    """Kills its process, as long as `ran` does not say otherwise."""

    def body(state: Work, ctx: Any) -> Any:
        ran.append(ctx.attempt)
        if keeps is not None:
            yield keeps(ctx, len(ran))
        if 0 not in ran:
            yield stage.dies(ctx)
        yield ctx.checkpoint("survived")
        return {"total": 1}

    return stage.one(body, **options)


@pytest.mark.parametrize("limit", [3, 1, 5])
def test_a_node_that_kills_its_process_again_and_again_is_quarantined(stage: Stage, limit: int) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran, **({} if limit == 3 else {"crash_limit": limit}))
    for _ in range(limit):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed) as failed:
        stage.resume(flow)
    run = failed.value.run
    assert (run.status, run.error.kind, run.error.type) == ("failed", "fatal", "Quarantined")
    assert all(part in run.error.message for part in ("'only'", f"{limit} times"))
    assert "force=True (--force), or skip the node" in run.error.advice
    assert ran == list(range(1, limit + 1))
    for _ in range(2):
        with pytest.raises(hf.ResumeRefused, match="force"):
            stage.resume(flow)
    assert len(ran) == limit
    assert stage.problems() == []


def test_force_tries_a_quarantined_node_again(stage: Stage) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran)
    for _ in range(3):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    ran.append(0)  # the cause is gone
    run = stage.resume(flow, force=True)
    assert (run.status, run.state.total) == ("completed", 1)


def test_a_quarantined_node_can_be_skipped_or_retried_by_name(stage: Stage) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran)
    for _ in range(3):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    assert stage.verb(flow, "skip", "only", {"total": 5}).state.total == 5
    assert ran == [1, 2, 3]


@pytest.mark.parametrize(
    "keeps",
    [
        lambda ctx, life: ctx.step("part", int, key=life),
        lambda ctx, life: ctx.checkpoint(life),
    ],
    ids=["step", "checkpoint"],
)
def test_a_node_that_gets_on_between_its_crashes_is_not_quarantined(stage: Stage, keeps: Any) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran, keeps)
    for _ in range(6):
        stage.crash(flow)
    ran.append(0)
    assert stage.resume(flow).status == "completed"


def test_a_step_that_was_kept_before_is_no_getting_on(stage: Stage) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran, lambda ctx, life: ctx.step("part", int))
    for _ in range(3):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed, match="Quarantined"):
        stage.resume(flow)
    assert len(ran) == 3


def test_an_item_that_is_done_is_getting_on_and_one_that_kills_is_quarantined(stage: Stage) -> None:
    ran: list[int] = []

    def body(page: int, ctx: Any) -> Any:
        ran.append(page)
        if page == 2:
            yield stage.dies(ctx)
        yield ctx.step("read", int)
        return {"log": [page]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2, 3], limit=1)(stage.node(body))
    flow = graph.chain(START, "only", END).compile()
    for _ in range(3):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed, match="Quarantined"):
        stage.resume(flow)
    assert ran == [1, 2, 2, 2]


def test_an_engine_that_stops_is_no_crash(quick: Stage) -> None:
    ran: list[int] = []
    flow = deadly(quick, ran)

    async def use(engine: hf.Engine) -> str:
        quick._died = asyncio.Event()
        known = await engine.runs()
        run = asyncio.create_task(engine.resume("r") if known else engine.run(flow, run_id="r"))
        await quick._died.wait()
        engine.stop("deploy")
        return str((await run).status)

    for _ in range(5):
        assert quick.do(use, flow, grace=0.0) == "interrupted"
    ran.append(0)
    assert quick.resume(flow).status == "completed"


def test_crashes_before_a_failure_do_not_count_behind_it(quick: Stage) -> None:
    """A node that ended in an orderly way has not killed its process."""
    ran: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        ran.append(1)
        if len(ran) == 3:
            raise hf.Recoverable("busy")
        if len(ran) < 6:
            yield quick.dies(ctx)
        yield ctx.checkpoint(1)

    flow = quick.one(body, retry=Retry(backoff=0.0))
    for _ in range(4):
        quick.crash(flow)
    assert quick.resume(flow).status == "completed"


def test_doing_a_node_over_does_not_forget_how_often_it_killed_its_process(quick: Stage) -> None:
    """Counted in a row: doing it over is no getting on."""
    ran: list[int] = []
    flow = deadly(quick, ran)
    for _ in range(2):
        quick.crash(flow)

    async def rewound(engine: hf.Engine) -> None:
        quick._died = asyncio.Event()
        run = asyncio.create_task(engine.resume("r", restart_at="only"))
        await quick._died.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    quick.do(rewound, flow)
    with pytest.raises(hf.RunFailed, match="Quarantined"):
        quick.resume(flow)
    assert len(ran) == 3


def test_a_node_that_is_left_out_when_cut_is_never_quarantined(quick: Stage) -> None:
    ran: list[int] = []
    flow = deadly(quick, ran, on_interrupt="skip", crash_limit=1)
    quick.crash(flow)
    run = quick.resume(flow)
    assert (run.status, run.nodes["only"].status, ran) == ("completed", "skipped", [1])


# --- safe to fail -------------------------------------------------------------------------------------


def beside(stage: Stage, errors: list[Any], **options: Any) -> Flow[Any]:
    """`hint -> after`, where the hint may fail."""

    def hint(state: Work, ctx: Any) -> Any:
        if errors:
            raise errors.pop(0)
        yield ctx.checkpoint(1)
        return {"log": ["hint"]}

    def after(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        return {"log": ["after"]}

    graph = Graph("safe", Work)
    graph.node(name="hint", safe_to_fail=True, **options)(stage.node(hint))
    graph.node(name="after")(stage.node(after))
    return graph.chain(START, "hint", "after", END).compile()


@pytest.mark.parametrize("error", [Boom("broken"), hf.Fatal("never")], ids=["partial", "fatal"])
def test_a_node_that_is_safe_to_fail_lets_the_run_go_on_with_a_warning(
    stage: Stage, error: Exception
) -> None:
    run = stage.run(beside(stage, [error]))
    assert (run.status, run.state.log, run.error) == ("completed", ["after"], None)
    (warning,) = run.warnings
    assert (warning.node, warning.iteration, warning.failure.message) == ("hint", 1, str(error))
    assert run.nodes["hint"].status == "skipped"
    (skipped,) = stage.told("NodeSkipped")
    assert (skipped.reason, skipped.warning.type) == ("safe_to_fail", type(error).__name__)
    again = stage.do(lambda engine: engine.get("r"))
    assert again.warnings == run.warnings, "it is in the log"
    assert stage.problems() == []


def test_a_node_that_is_safe_to_fail_is_tried_as_often_as_any_other(stage: Stage) -> None:
    busy = hf.Recoverable("busy")
    run = stage.run(beside(stage, [busy, busy], retry=Retry(attempts=3, backoff=0.0)))
    assert (run.state.log, run.warnings) == (["hint", "after"], ())


def test_a_node_that_is_safe_to_fail_and_kills_its_process_is_given_up(stage: Stage) -> None:
    ran: list[int] = []
    flow = deadly(stage, ran, safe_to_fail=True)
    for _ in range(3):
        stage.crash(flow)
    run = stage.resume(flow)
    assert (run.status, run.warnings[0].failure.type, ran) == ("completed", "Quarantined", [1, 2, 3])


def test_a_fan_out_that_is_safe_to_fail_goes_on_without_its_result(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        if page == 2:
            raise Boom("page 2")
        return {"log": [page]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2, 3], safe_to_fail=True)(quick.node(body))
    run = quick.run(graph.chain(START, "only", END).compile())
    assert (run.status, run.state.log, len(run.warnings)) == ("completed", [], 1)


def test_a_safe_failure_in_a_layer_does_not_hold_it(quick: Stage) -> None:
    def hint(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        raise Boom("broken")

    def work(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        return {"log": [ctx.node]}

    graph = Graph("layers", Work)
    graph.node(name="hint", safe_to_fail=True)(quick.node(hint))
    for name in ("work", "after"):
        graph.node(name=name)(quick.node(work))
    graph.chain(START, "hint", "after", END).chain(START, "work", END)
    run = quick.run(graph.compile(schedule="layered"))
    assert (run.status, run.state.log, len(run.warnings)) == ("completed", ["work", "after"], 1)


# --- metrics ------------------------------------------------------------------------------------------


def test_costs_and_active_seconds_are_kept_across_failures_crashes_resumes_and_rewinds(stage: Stage) -> None:
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(ctx.attempt)
        ctx.cost(usd=0.25, tokens=100)
        ctx.cost(tokens=1)
        yield ctx.checkpoint(len(lives))
        if stage.colour == "async":
            stage.clock.advance(2)
        if len(lives) == 1:
            yield stage.dies(ctx)
        if len(lives) == 2:
            raise Boom("for good")
        return {"total": 1}

    def behind(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        if len(lives) < 4:
            raise Boom("behind it")

    graph = Graph("cost", Work)
    graph.node(name="only")(stage.node(body))
    graph.node(name="behind")(stage.node(behind))
    flow = graph.chain(START, "only", "behind", END).compile()
    stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    assert stage.do(lambda engine: engine.get("r")).cost == Cost(0.5, 202)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)
    before = stage.do(lambda engine: engine.get("r"))
    assert (before.cost, before.nodes["only"].cost) == (Cost(0.75, 303), Cost(0.75, 303))
    run = stage.resume(flow, checkpoint=1)
    assert (run.status, run.cost, lives[-1]) == ("completed", Cost(1.0, 404), 1)
    assert run.active_s >= before.active_s
    if stage.colour == "async":
        assert run.active_s >= 6, "three lives of two seconds ended; nobody knows how long the first one was"


def test_attempts_are_counted_over_all_visits(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        if ctx.attempt == 1:
            raise hf.Recoverable("once")
        return {"total": 1}

    graph = Graph("loop", Work)
    graph.node(name="turn", retry=Retry(backoff=0.0))(quick.node(body))
    graph.edge(START, "turn").branch("turn", lambda s: END if s.total == 3 else "turn", to=["turn", END])
    node = quick.run(graph.compile()).nodes["turn"]
    assert (node.attempt, node.iteration, node.tries) == (2, 3, 6)


def test_items_and_parallel_nodes_add_up(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        ctx.cost(usd=1, tokens=page)
        yield ctx.checkpoint(1)

    graph = Graph("pages", Work)
    for name in ("a", "b"):
        graph.node(name=name, each=lambda state: [1, 2, 3])(quick.node(body))
        graph.chain(START, name, END)
    run = quick.run(graph.compile())
    assert (run.cost, run.nodes["a"].cost) == (Cost(6.0, 12), Cost(3.0, 6))


@pytest.mark.parametrize(
    "amounts",
    [
        {"usd": -1},
        {"usd": float("nan")},
        {"usd": float("inf")},
        {"usd": "1"},
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": True},
    ],
    ids=str,
)
def test_what_is_no_cost_is_refused(stage: Stage, amounts: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.cost(**amounts)
        yield ctx.checkpoint(1)

    failed = stage.fails(stage.one(body))
    assert (failed.error.type, failed.cost) == ("ContextError", Cost(0.0, 0))
