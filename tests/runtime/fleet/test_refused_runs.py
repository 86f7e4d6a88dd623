"""A worker that cannot continue a run records that beside the queue: old and new workers of a rolling deploy disagree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import OnServer, Stage, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import SchemaTooNew
from holdfast.reading import attention
from holdfast.reading.cases import case_of
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.reading.reader import Reader
from holdfast.runtime.clock import sleep
from holdfast.runtime.worker import Trouble
from holdfast.storage.contract import Holder, Query, Store
from holdfast.upkeep import doctor
from holdfast.upkeep.recovery import Recovery
from newer_version import NEWER, write_as_newer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    stage.close()


async def nothing(state: dict[str, Any]) -> dict[str, Any]:
    return {}


def chain(*names: str) -> Flow[Any]:
    graph = Graph("one", dict)
    for name in names:
        graph.node(name=name)(nothing)
    return graph.chain(START, *names, END).compile()


OLD, NEW = chain("a"), chain("a", "b")


def starts(stage: Stage, *ids: str, flow: Flow[Any] = OLD) -> None:
    async def use(engine: hf.Engine) -> None:
        for run_id in ids:
            await engine.start(flow, {}, run_id=run_id)

    stage.do(use)


def looked_at(store: Store, run_id: str = "r") -> Diagnosis:
    case = case_of(store, store.run(run_id), holders=store.queues.holders())
    return diagnose(compare(store, case, None), store.now())


def reported(store: Store) -> dict[str | None, str]:
    """Run -> the kind of problem that the doctor reports; a sweep finds the same."""
    told = doctor.examine(store, None, store.now(), check=False)
    found = {one.run_id: one.kind for one in told if one.run_id}
    assert found == {one.run_id: one.kind for one in Recovery(store).sweep().findings}
    return found


def needing_attention(store: Store) -> dict[str, str]:
    """Run -> the reason why it needs attention, as listings give it."""
    page = Reader(store).page(Query(), attention=True)
    return {one.row.run_id: one.found.reason for one in page.runs}


class Told:
    """What a worker reports."""

    def __init__(self) -> None:
        self.troubles: list[Trouble] = []
        self.ended: list[str] = []

    @asynccontextmanager
    async def working(self, engine: hf.Engine, **options: Any) -> AsyncIterator[None]:
        options |= {"on_report": self.troubles.append, "on_end": lambda run: self.ended.append(run.id)}
        work = asyncio.create_task(engine.work(**options))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


# --- a changed flow ----------------------------------------------------------------------------------


def test_a_run_that_every_live_worker_refuses_is_reported_with_a_command_that_works(stage: Stage) -> None:
    starts(stage, "r")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles))
            (refusal,) = stage.store.queues.refusals(["r"])
            assert (refusal.fingerprint, refusal.seq, refusal.too_new) == (NEW.fingerprint, 1, False)
            assert "on_change" in refusal.reason
            found = looked_at(stage.store)
            assert found.kind == "flow changed"
            assert "no live worker can continue it: " in found.reason
            assert found.remedies[0].arguments == {"run": "r", "on_change": "compatible"}
            assert found.remedies[0].command.endswith("resume r --on-change compatible --no-execute")
            assert reported(stage.store) == {"r": "flow changed"}
            assert needing_attention(stage.store) == {"r": found.reason}
            await engine.resume(**found.remedies[0].arguments)
        assert stage.store.run("r").status == "completed"
        assert stage.store.queues.refusals(["r"]) == []

    stage.do(use, NEW)
    assert len(told.troubles) == 1, "it is reported once"
    assert "RunClaimed" not in stage.kinds(), "a refusal is not in the log"


def test_a_run_is_reported_also_while_the_worker_that_refuses_it_has_claimed_it_again(stage: Stage) -> None:
    starts(stage, "r")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles) and not stage.store.run("r").held)
            (worker,) = [one.holder for one in stage.store.queues.holders() if one.holder.flows]
            stage.store.claim("r", worker)
            assert stage.store.run("r").held
            assert reported(stage.store) == {"r": "flow changed"}
            (listed,) = Reader(stage.store).page(Query()).runs
            assert "no live worker can continue it" in listed.found.reason

    stage.do(use, NEW)


def test_the_caller_of_a_run_that_every_live_worker_refuses_names_the_command_for_that_run(
    stage: Stage,
) -> None:
    flows = [waits_first("a"), waits_first("a", "b")]
    graph = Graph("top", dict)

    @graph.node
    async def call(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.call(flows[0], {}, key="child")

    top = graph.chain(START, "call", END).compile()
    assert stage.run(top, {}).status == "waiting"
    (child,) = (row.run_id for row in stage.store.runs(Query(origin="r")))
    del flows[0]  # the deploy
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine, queues=["default"]):
            async with stage.engine() as other:
                await other.signal(child, "go")
            while not told.troubles:
                await sleep(stage.clock, 1.0)
            found = looked_at(stage.store)
            ways = [one.arguments for one in found.remedies if one.verb == "resume"]
            assert ways == [{"run": child, "on_change": "compatible"}]  # the worker continues the caller then
            assert [one.verb for one in found.remedies] == ["resume"]
            assert "no live worker can continue it: " in found.reason
            (listed,) = [one.found for one in Reader(stage.store).page(Query()).runs if one.row.run_id == "r"]
            assert [one.command for one in listed.remedies] == [one.command for one in found.remedies]
            await engine.resume(**ways[0])
            while told.ended != ["r"]:
                await sleep(stage.clock, 1.0)

    stage.do(use, flows[0], top)
    assert stage.store.run("r").status == "completed"


@pytest.mark.parametrize("has_worker", [True, False])
def test_a_caller_that_is_resumed_here_returns_if_its_child_is_refused_here_and_by_every_worker(
    stage: Stage, has_worker: bool
) -> None:
    flows = [waits_first("a"), waits_first("a", "b")]
    graph = Graph("top", dict)

    @graph.node
    async def call(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.call(flows[0], {}, key="child")

    top = graph.chain(START, "call", END).compile()
    stage.run(top, {})
    (child,) = (row.run_id for row in stage.store.runs(Query(origin="r")))
    stage.do(lambda engine: engine.signal(child, "go"))
    del flows[0]  # the deploy
    told = Told()

    async def resume() -> None:
        async with stage.engine(flows[0], top) as here:
            assert (await here.resume("r")).status == "waiting"
            found = here.reader.diagnose("r")
            assert "its flow has changed in shape: node b is new" in found.reason
            ways = [one.arguments for one in found.remedies]
            assert ways == [{"run": child, "on_change": "compatible"}, {"run": "r"}]
            await here.resume(**ways[0])
            assert (await here.resume(**ways[1])).status == "completed"

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            while not told.troubles:
                await sleep(stage.clock, 1.0)
            await resume()

    if has_worker:
        stage.do(use, flows[0])
    else:
        asyncio.run(asyncio.wait_for(resume(), 60.0))


def waits_first(*names: str) -> Flow[Any]:
    """The same chain; its first node waits for the signal `go`."""
    graph = Graph("one", dict)

    @graph.node(name=names[0])
    async def first(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.wait_for("go")

    for name in names[1:]:
        graph.node(name=name)(nothing)
    return graph.chain(START, *names, END).compile()


def test_runs_that_wait_are_reported_as_soon_as_all_workers_have_another_shape(stage: Stage) -> None:
    old, new = waits_first("a"), waits_first("a", "b")

    async def begin(engine: hf.Engine) -> None:
        for number in range(30):  # more than a worker records
            await engine.run(old, {}, run_id=f"r{number}")

    stage.do(begin)
    ids = {f"r{number}" for number in range(30)}

    async def use(engine: hf.Engine) -> None:
        assert needing_attention(stage.store) == {}
        async with Told().working(engine):
            await until(lambda: len(stage.store.queues.refusals()) == 20)
            assert {row.fence for row in stage.store.runs(Query())} == {1}, "no run was claimed for it"
            told = doctor.examine(stage.store, None, stage.store.now(), check=False)
            assert {one.run_id: one.kind for one in told if not one.waits} == dict.fromkeys(
                ids, "flow changed"
            )
            assert needing_attention(stage.store).keys() == ids
            assert attention.count(stage.store, stage.store.queues.board(), {}) == 30
            (remedy, signal) = looked_at(stage.store, "r0").remedies
            assert (remedy.verb, signal.verb, signal.link) == ("resume", "signal", "then")
            stage.store.renew(Holder(id="old", host="elsewhere", pid=77, ttl_s=600.0, flows=("one",)))
            found = looked_at(stage.store, "r0")
            assert (found.kind, [one.verb for one in found.remedies]) == ("signal", ["signal"])
            assert "; process 77 on elsewhere takes it, which process " in found.reason
            assert (
                needing_attention(stage.store),
                attention.count(stage.store, stage.store.queues.board(), {}),
            ) == ({}, 0)

    stage.do(use, new)


def test_the_command_for_a_child_run_has_the_condition_of_the_child_and_not_of_its_caller(
    stage: Stage,
) -> None:
    flows = [waits_first("a", "b"), waits_first("a")]
    tops = []
    for names in (("before", "call"), ("call",)):
        graph = Graph("top", dict)
        for name in names[:-1]:
            graph.node(name=name)(nothing)

        @graph.node
        async def call(state: dict[str, Any], ctx: hf.Context) -> None:
            await ctx.call(flows[0], {}, key="child")

        tops.append(graph.chain(START, *names, END).compile())
    stage.run(tops[0], {})
    (child,) = (row.run_id for row in stage.store.runs(Query(origin="r")))

    async def use(engine: hf.Engine) -> None:
        async with Told().working(engine):
            await until(lambda: len(stage.store.queues.refusals()) == 2)
            found = looked_at(stage.store).remedies
            assert [(one.verb, one.arguments.get("run"), one.words) for one in found[:2]] == [
                ("resume", child, "resume it; it continues to wait (with the flow as it is now)"),
                (
                    "resume",
                    "r",
                    "resume it; completed work does not run again (with the code that the run was created with)",
                ),
            ]

    stage.do(use, flows[1], tops[1])


def test_workers_that_come_and_go_leave_no_refusals(stage: Stage) -> None:
    starts(stage, "r")

    async def use(engine: hf.Engine) -> None:
        await engine.work(until="idle", on_report=lambda trouble: None)
        assert len(stage.store.queues.refusals(["r"])) == 1

    for _ in range(3):
        stage.do(use, NEW)
        assert stage.store.queues.refusals() == []
    found = looked_at(stage.store)
    assert (found.kind, found.remedies[0].verb) == ("no worker", "work")


def test_a_refusal_is_recorded_although_another_worker_has_claimed_the_run_since(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts(stage, "r")
    other = Holder(id="other", host="elsewhere", pid=77, ttl_s=600.0, flows=("one",))
    stage.store.renew(other)
    kind = type(stage.store)
    release = kind.release

    def release_to_other(store: Any, run_id: str, holder: str, fence: int) -> None:
        release(store, run_id, holder, fence)
        if store.run(run_id).holder is None:
            store.claim(run_id, other)

    monkeypatch.setattr(kind, "release", release_to_other)
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles))
            assert stage.store.run("r").fence == 2
            (refusal,) = stage.store.queues.refusals(["r"])
            assert refusal.holder != "other"

    stage.do(use, NEW)


def test_a_live_worker_that_can_take_the_run_is_named_and_nothing_is_reported(stage: Stage) -> None:
    starts(stage, "r")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles))
            old = Holder(id="old", host="elsewhere", pid=77, ttl_s=600.0, flows=("one",))
            stage.store.renew(old)
            found = looked_at(stage.store)
            assert found.kind == "no worker"
            assert "; process 77 on elsewhere takes it, which " in found.reason
            assert (reported(stage.store), needing_attention(stage.store)) == ({}, {})
            stage.store.renew(Holder(id="old", ttl_s=0.0))
            assert reported(stage.store) == {"r": "flow changed"}

    stage.do(use, NEW)


def test_every_run_of_a_rolling_deploy_ends_at_a_worker_that_has_its_code(stage: Stage) -> None:
    starts(stage, "o1", "o2", flow=OLD)
    starts(stage, "n1", "n2", flow=NEW)
    new, old = Told(), Told()

    async def use(engine: hf.Engine) -> None:
        async with new.working(engine):
            await until(lambda: len(new.troubles) == 2 and sorted(new.ended) == ["n1", "n2"])
            async with stage.engine(OLD) as other, old.working(other):
                await until(lambda: sorted(old.ended) == ["o1", "o2"])
            assert stage.store.queues.refusals() == []
            assert (reported(stage.store), needing_attention(stage.store)) == ({}, {})

    stage.do(use, NEW)
    assert len(stage.store.runs(Query(status=("completed",)))) == 4


def test_a_request_to_a_refused_run_is_carried_out_at_once(stage: Stage) -> None:
    starts(stage, "r")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles))
            before = stage.clock.now()
            async with stage.engine() as other:
                await other.resume("r", on_change="compatible", execute=False)
            await until(lambda: told.ended == ["r"])
            assert stage.clock.now() - before < 5.0, "it was not tried again because time has passed"

    stage.do(use, NEW)
    assert stage.store.run("r").status == "completed"


def test_a_request_to_any_of_many_refused_runs_is_carried_out_at_once(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path)
    starts(stage, *(f"r{number:04}" for number in range(1_100)))
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: len(told.troubles) == 1_100)
            before = stage.clock.now()
            async with stage.engine() as other:
                await other.resume(str(told.troubles[0].run_id), on_change="compatible", execute=False)
            await until(lambda: bool(told.ended))
            assert stage.clock.now() - before < 1.0, "it was not tried again because time has passed"

    stage.do(use, NEW)
    stage.close()


def test_a_refused_run_is_not_claimed_in_a_loop(stage: Stage) -> None:
    starts(stage, *(f"r{number}" for number in range(20)))
    told = Told()

    over = stage.clock.now() + 600
    stage.do(
        lambda engine: engine.work(until=lambda: stage.clock.now() > over, on_report=told.troubles.append),
        NEW,
    )
    fences = [stage.store.run(f"r{number}").fence for number in range(20)]
    assert max(fences) <= 6, fences  # at 0, 5, 25, 105 and 425 seconds
    assert len(told.troubles) == 20


def fails_once(*names: str) -> Flow[Any]:
    """The same chain; its first node fails until the switch `broken` is off."""
    graph = Graph("one", dict)

    @graph.node(name=names[0])
    async def first(state: dict[str, Any]) -> None:
        if broken:
            raise ValueError("torn")

    for name in names[1:]:
        graph.node(name=name)(nothing)
    return graph.chain(START, *names, END).compile()


broken: set[str] = set()


@pytest.mark.parametrize("verb", ["resume", "retry", "previewed"])
def test_a_request_that_does_not_fit_the_code_of_one_worker_waits_for_another(
    stage: Stage, verb: str
) -> None:
    old, new = fails_once("a"), fails_once("a", "b")
    broken.add("torn")
    stage.fails(old, {})
    broken.clear()
    wrong, right = Told(), Told()

    async def ask() -> None:
        async with stage.engine(old) as other:
            if verb == "retry":
                await other.retry("r", "a", execute=False)
            else:
                expects = (await other.preview("r", "resume")).digest if verb == "previewed" else None
                await other.resume("r", execute=False, expects=expects)

    async def use(engine: hf.Engine) -> None:
        async with wrong.working(engine):
            stage.store.renew(Holder(id="busy", host="elsewhere", pid=77, ttl_s=600.0, flows=("one",)))
            await ask()
            await until(lambda: bool(wrong.troubles))
            assert "RequestRefused" not in stage.kinds()
            (waiting,) = stage.store.queues.waiting(["r"])
            assert waiting.verb in ("resume", "retry")
            async with stage.engine(old) as other, right.working(other):
                while right.ended != ["r"]:
                    await sleep(stage.clock, 1.0)

    stage.do(use, new)
    assert stage.store.run("r").status == "completed"
    assert (wrong.ended, "RequestRefused" in stage.kinds()) == ([], False)


def test_a_child_that_is_resumed_with_its_caller_waits_for_a_worker_with_its_code(stage: Stage) -> None:
    old, new = fails_once("a"), fails_once("a", "b")
    graph = Graph("top", dict)

    @graph.node
    async def call(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.call(old, {}, key="child")

    top = graph.chain(START, "call", END).compile()
    broken.add("torn")
    stage.fails(top, {})
    broken.clear()
    (child,) = stage.store.runs(Query(origin="r"))
    wrong, right = Told(), Told()

    async def use(engine: hf.Engine) -> None:
        async with (
            stage.engine(top, old) as other,
            right.working(other, concurrency=1),
            wrong.working(engine),
        ):
            await other.resume("r", execute=False)
            while "r" not in right.ended:
                await sleep(stage.clock, 0.1)
        if not isinstance(stage, OnServer):  # news from a server takes its time
            assert wrong.troubles, "the wrong worker has found the request first"

    stage.do(use, new)
    assert [stage.store.run(run).status for run in ("r", child.run_id)] == ["completed", "completed"]
    assert stage.store.events(child.run_id, kinds=("RequestRefused",)) == []


def test_a_request_is_refused_when_no_live_worker_has_code_that_fits(stage: Stage) -> None:
    old, new = fails_once("a"), fails_once("a", "b")
    broken.add("torn")
    stage.fails(old, {})
    broken.clear()
    first, second = Told(), Told()

    async def use(engine: hf.Engine) -> None:
        async with first.working(engine), stage.engine(new) as other, second.working(other):
            async with stage.engine() as asking:
                await asking.resume("r", execute=False)
            while "RequestRefused" not in stage.kinds():
                await sleep(stage.clock, 1.0)

    stage.do(use, new)
    (refused,) = stage.told("RequestRefused")
    assert "the flow has changed in shape" in refused.reason
    assert stage.store.queues.waiting(["r"]) == []


# --- a newer version ---------------------------------------------------------------------------------


def test_a_run_of_a_newer_version_is_left_alone_and_the_worker_goes_on(stage: Stage) -> None:
    starts(stage, "newer", "r1", "r2")
    write_as_newer(stage.store, "newer")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: sorted(told.ended) == ["r1", "r2"] and bool(told.troubles))
            (refusal,) = stage.store.queues.refusals(["newer"])
            assert refusal.too_new
            assert NEWER in refusal.reason
            assert reported(stage.store) == {"newer": "unreadable"}
            assert NEWER in needing_attention(stage.store)["newer"]
            await engine.start(OLD, {}, run_id="r3")
            await until(lambda: "r3" in told.ended)

    stage.do(use, OLD)
    (trouble,) = told.troubles
    assert (trouble.run_id, NEWER in trouble.message) == ("newer", True)
    with pytest.raises(SchemaTooNew):
        stage.do(lambda engine: engine.resume("newer"), OLD)


def test_a_worker_tries_a_run_once_whose_code_it_does_not_have(stage: Stage) -> None:
    """Otherwise a thousand such runs are tried again before the next run that it could continue."""
    starts(stage, "r")
    told = Told()

    async def use(engine: hf.Engine) -> None:
        async with told.working(engine):
            await until(lambda: bool(told.troubles))
            tried = stage.store.run("r").fence
            for _ in range(20):
                await sleep(stage.clock, 30.0)
            assert stage.store.run("r").fence == tried

    stage.do(use, NEW)
