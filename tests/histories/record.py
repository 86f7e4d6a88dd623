"""Stories whose logs are kept for ever: `python tests/histories/record.py FOLDER` runs them with the Holdfast that is
installed and writes what it stored.

Two files a story. NAME.jsonl: the run row's parts and the base of a fork on the first line, then a row a line,
exactly as stored (a body that was packed is kept as base64). NAME.json: what the fold made of it, as a user sees it.
A file that is there is never written again: later versions of Holdfast read what this one wrote, they do not write it
anew.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, add, append, merge
from holdfast.core.events import Encoded
from holdfast.runtime import failures, history
from holdfast.runtime.views import run_view
from holdfast.storage.contract import Append, NewRun, Row, RunRow, View
from holdfast.storage.memory import MemoryStore
from holdfast.storage.rows import seal, unpack
from holdfast.testing.appends import dead_process
from holdfast.testing.clock import ManualClock

PACKED = b"\x28\xb5\x2f\xfd"


@dataclass
class Report:
    topic: str
    pages: list[str] = field(default_factory=list)
    facts: Annotated[list[str], append] = field(default_factory=list)
    seen: Annotated[dict[str, int], merge] = field(default_factory=dict)
    drafts: Annotated[int, add] = 0
    draft: str = ""


def report_flow(broken: set[str], **options: Any) -> Flow[Report]:
    """plan -> read (each page) -> write -> check -> write again or publish, which is not idempotent."""
    graph = Graph("report", Report)

    @graph.node
    def plan(state: Report) -> dict[str, Any]:
        return {"pages": [f"{state.topic} {number}" for number in (1, 2, 3)]}

    @graph.node(each=lambda state: state.pages, limit=2, retry=Retry(attempts=2, jitter=0.0))
    def read(page: str, ctx: hf.Context) -> dict[str, Any]:
        if "read" in broken and ctx.item == 1:
            raise hf.Recoverable("the page is slow") if ctx.attempt == 1 else ValueError("the page is torn")
        return {"facts": [f"fact of {page}"], "seen": {page: ctx.attempt}}

    @graph.node
    def write(state: Report, ctx: hf.Context) -> dict[str, Any]:
        if "write" in broken and ctx.attempt == 1:
            raise TimeoutError("no words")
        return {"drafts": 1, "draft": "long text, " * 200 + str(ctx.iteration)}

    @graph.node
    def check(state: Report) -> None:
        if "check" in broken:
            raise hf.Fatal("not worth it")

    @graph.node(idempotent=False)
    def publish(state: Report) -> dict[str, Any]:
        return {"draft": f"published {state.drafts}"}

    def route(state: Report) -> str:
        if "route" in broken:
            raise LookupError("no way")
        return "write" if state.drafts < 2 else "publish"

    graph.chain(START, "plan", "read", "write", "check").branch("check", route, to=["write", "publish"]).edge(
        "publish", END
    )
    return graph.compile(**options)


@dataclass
class Longest:
    word: Annotated[str, lambda old, new: max(old, new, key=len)] = ""
    words: Annotated[list[str], append] = field(default_factory=list)


def layered_flow(broken: set[str]) -> Flow[Longest]:
    graph = Graph("layers", Longest)
    for name in ("one", "three", "eleven", "end"):

        def say(state: Longest, ctx: hf.Context) -> dict[str, Any]:
            if ctx.node in broken:
                raise ValueError("speechless")
            return {"word": ctx.node, "words": [ctx.node]}

        graph.node(name=name)(say)
    graph.chain(START, "one", "end", END).chain(START, "three", "end").chain(START, "eleven", "end")
    return graph.compile(schedule="layered", max_parallel=2)


class Recorder:
    """One store on one thread, with a clock that jumps and luck that is always the same."""

    def __init__(self) -> None:
        self.clock = ManualClock(auto=True)
        self.store = MemoryStore(clock=self.clock.now)

    def call(self, use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any]) -> None:
        """Do this; a run that fails or is refused is part of the story."""

        async def main() -> None:
            options: dict[str, Any] = {"clock": self.clock, "luck": random.Random(1), "inline": True}
            async with hf.Engine(self.store, flows=flows, **options) as engine:
                with suppress(hf.RunFailed, hf.RunCancelled, hf.ResumeRefused):
                    await use(engine)

        asyncio.run(main())


def failed_and_resumed(recorder: Recorder) -> str:
    """A fan-out with a slow and then torn page, an edit, a retry, a loop."""
    broken = {"read", "write"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r", labels={"team": "red"}, by="ann"))
    broken.discard("read")
    recorder.call(
        lambda e: e.resume("r", edit={"topic": "sea otters"}, by="ann", reason="a better word"), flow
    )
    return "r"


def rewound(recorder: Recorder) -> str:
    """A fatal failure, a refusal, a rewind by name with force, and a skip."""
    broken = {"check"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    recorder.call(lambda e: e.resume("r", force=True, validate=lambda state: "not today", by="ann"), flow)
    recorder.call(lambda e: e.resume("r", restart_at="read", force=True), flow)
    recorder.call(lambda e: e.skip("r", "check", {"drafts": 5}, by="ann"), flow)
    return "r"


def forked(recorder: Recorder) -> str:
    """A fork of a completed run, edited."""
    flow = report_flow(set())
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    place = next(row.seq for row in recorder.store.events("r", kinds=("NodeCompleted",), node="write"))
    recorder.call(
        lambda e: e.fork("r", checkpoint=place, run_id="f", edit={"topic": "minks"}, labels={"copy": "1"}),
        flow,
    )
    recorder.call(lambda e: e.resume("f"), flow)
    return "f"


def routed_again(recorder: Recorder) -> str:
    """A router that raised, evaluated again; then a pause, and an end by cancelling."""
    broken = {"route"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    broken.discard("route")
    broken.add("check")
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.fork("r", run_id="f"), flow)
    recorder.call(lambda e: e.pause("f", "lunch", by="ann"), flow)
    recorder.call(lambda e: e.cancel("r", "given up", by="ann"), flow)
    return "r"


def paused(recorder: Recorder) -> str:
    """The fork of the story before, left as it was paused."""
    routed_again(recorder)
    return "f"


def layers(recorder: Recorder) -> str:
    """Layers with a reducer of the user's own, one of them failed first; two slots for three nodes."""
    broken = {"three"}
    flow = layered_flow(broken)
    recorder.call(lambda e: e.run(flow, Longest(), run_id="r"))
    broken.clear()
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def changed(recorder: Recorder) -> str:
    """A flow with a node more and a state of a newer version."""
    graph = Graph("growing")
    graph.node(name="a")(lambda state: {"a": 1})
    graph.node(name="b")(lambda state: {}[0])
    old = graph.chain(START, "a", "b", END).compile()
    recorder.call(lambda e: e.run(old, {}, run_id="r"))
    graph = Graph("growing", version=2, upgrades={1: lambda values: {**values, "version": 2}})
    graph.node(name="first")(lambda state: {"a": 1})
    graph.node(name="b")(lambda state: {"b": state["version"]})
    graph.node(name="c")(lambda state: {"c": 3})
    new = graph.chain(START, "first", "b", "c", END).compile()
    recorder.call(lambda e: e.resume("r", on_change="compatible", rename={"a": "first"}), new)
    return "r"


def cut(recorder: Recorder) -> str:
    """A process that died in a node that is not idempotent: the run waits for a decision."""
    flow = report_flow(set())
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="whole"))
    place = recorder.store.events("whole", kinds=("NodeStarted",), node="publish")[0].seq
    copy_of(recorder.store, "whole", "r", place)
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def interrupted(recorder: Recorder) -> str:
    """A process that was asked to stop while its node ran."""
    graph = Graph("stopped")

    @graph.node
    async def slow(state: dict[str, Any], ctx: hf.Context) -> None:
        ctx.resources["engine"][0].stop("SIGTERM")
        await asyncio.Event().wait()

    flow = graph.chain(START, "slow", END).compile()

    async def main() -> None:
        engines: list[hf.Engine] = []
        options: dict[str, Any] = {
            "clock": recorder.clock,
            "luck": random.Random(1),
            "inline": True,
            "resources": {"engine": engines},
        }
        async with hf.Engine(recorder.store, grace=0.0, **options) as engine:
            engines.append(engine)
            await engine.run(flow, {}, run_id="r")

    asyncio.run(main())
    return "r"


STORIES = (failed_and_resumed, rewound, forked, routed_again, paused, layers, changed, cut, interrupted)


def copy_of(store: MemoryStore, parent: str, run_id: str, upto: int) -> None:
    """A log that ends there, of a process that died: the rows are sealed anew, because a chain belongs to one run."""
    holder, row = dead_process(), store.run(parent)
    store.renew(holder)
    rows: list[Row] = []
    for found in store.events(parent, 0, upto):
        encoded = Encoded(
            found.kind, found.node, found.iteration, found.execution, found.attempt, unpack(found.body)
        )
        rows += seal(rows[-1].digest if rows else b"", run_id, found.seq - 1, found.at, [encoded], found.salt)
    view = View(
        status="running", fingerprint=row.fingerprint, state_version=row.state_version, active=("publish",)
    )
    create = NewRun(flow=row.flow, input_digest=row.input_digest, created_at=row.created_at)
    (verdict,) = store.append(
        [
            Append(
                run_id=run_id,
                expected_seq=0,
                rows=tuple(rows),
                view=view,
                holder=holder.id,
                fence=1,
                create=create,
            )
        ]
    )
    assert verdict is None, verdict


# --- files --------------------------------------------------------------------------------------------


def told(store: MemoryStore, run_id: str) -> dict[str, Any]:
    """The run as a user sees it, without the flow."""
    row = store.run(run_id)
    view: dict[str, Any] = msgspec.to_builtins(
        run_view(history.load(store, run_id, row=row), None, None), str_keys=True
    )
    return view


def lines_of(store: MemoryStore, run_id: str) -> list[dict[str, Any]]:
    row = store.run(run_id)
    rows = store.events(run_id)
    base = store.snapshot(run_id, [(rows[0].seq - 1, rows[0].seq - 1)]) if rows[0].seq > 1 else None
    head: dict[str, Any] = {
        "run_id": run_id,
        "create": _part(row, NewRun),
        "view": _part(row, View),
        "definition": json.loads(store.definition(row.fingerprint) or b"{}"),
    }
    if base is not None:
        head["base"] = {"seq": base.seq, "digest": base.digest.hex(), **_body(base.body)}
    return [head, *(_line(found) for found in rows)]


def _part(row: RunRow, kind: type[Any]) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in kind.__struct_fields__}
    return {
        name: value.hex() if isinstance(value, bytes) else msgspec.to_builtins(value)
        for name, value in found.items()
    }


def _line(row: Row) -> dict[str, Any]:
    header = {
        name: getattr(row, name)
        for name in ("seq", "at", "kind", "node", "iteration", "execution", "attempt")
    }
    return {**header, "salt": row.salt.hex(), "digest": row.digest.hex(), **_body(row.body)}


def _body(body: bytes) -> dict[str, str]:
    return {"packed": base64.b64encode(body).decode()} if body.startswith(PACKED) else {"body": body.decode()}


def main(folder: Path) -> None:
    for story in STORIES:
        name = story.__name__
        if (folder / f"{name}.jsonl").exists():
            print(f"{name} is there and stays as it is")
            continue
        recorder = Recorder()
        run_id = story(recorder)
        lines = (json.dumps(line, ensure_ascii=False) for line in lines_of(recorder.store, run_id))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{name}.json").write_text(
            json.dumps(told(recorder.store, run_id), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(f"{name}: {recorder.store.run(run_id).seq} events, {recorder.store.run(run_id).status}")


def no_paths(error: BaseException) -> str:
    """A traceback that does not tell where this file lies."""
    return f'Traceback (most recent call last):\n  File "flow.py", line 1, in node\n{type(error).__name__}: {error}\n'


if __name__ == "__main__":
    failures._trace = no_paths
    main(Path(sys.argv[1]))
