"""How every run in `old_stores/` is read, resumed and forked. The script that wrote the stores and the test that reads them both
use this module; `old_stores/expected.json` has the results of the version that wrote the stores.

Only public names of Holdfast are used: `Engine` and its verbs, and the fields of what they return.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from old_store_flows import FLOWS

import holdfast as hf

FOLDER = Path(__file__).parent / "old_stores"
EXPECTED = FOLDER / "expected.json"

PATIENCE_S = 30.0
"""A call that takes longer than this hangs."""


class Do(NamedTuple):
    """A method of the engine to call on a run, with its arguments."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def do(verb: str, *args: Any, **options: Any) -> Do:
    return Do(verb, args, options)


RESUME = do("resume")
PRICE = do("answer", "price", 12, by="ann", reason="the list says so")
APPROVE_SENDING = do("answer", "send", "approve", by="ann")
WORTH = do("answer", "worth", 30, by="ann")

WAYS_ON: dict[str, list[Do]] = {
    # Every status.
    "pending": [RESUME],
    "queued": [RESUME],
    "running": [RESUME],
    "timer": [RESUME],
    "next-try": [RESUME],
    "signal": [RESUME, do("signal", "paid", {"eur": 5}, by="bank"), RESUME],
    "told": [do("signal", "paid", {"eur": 7}, id="bank-1"), RESUME],
    "confirm": [do("answer", "confirm", "yes"), RESUME],
    "price": [do("answer", "price", "dear"), PRICE, RESUME, APPROVE_SENDING, RESUME],
    "approval": [do("retry"), APPROVE_SENDING, RESUME],
    "rejection": [do("answer", "send", "reject", by="ann"), RESUME, RESUME],
    "paused": [RESUME, do("signal", "paid", None), RESUME],
    "interrupted": [RESUME],
    "completed": [RESUME, do("cancel")],
    "failed": [RESUME],
    "fatal": [RESUME, do("resume", force=True)],
    "cancelled": [RESUME],
    # Interrupted in the middle of a node.
    "fan-out": [RESUME],
    "steps": [RESUME, PRICE, RESUME, APPROVE_SENDING, RESUME],
    "publish-cut": [RESUME, do("skip", "publish", {"draft": "it was published"}, by="ann")],
    "asks-retry": [do("answer", "publish", "retry", by="ann"), RESUME],
    "asks-skip": [do("answer", "publish", "skip", update={"draft": "by hand"}), RESUME],
    "asks-abort": [do("answer", "publish", "abort", by="ann"), RESUME],
    "streaming": [RESUME],
    # Everything that can have happened to a run before.
    "layered": [RESUME],
    "rewound": [RESUME, do("fork", run_id="fork-of-it")],
    "replayed": [RESUME],
    "edited": [RESUME],
    "forked": [RESUME],
    "streamed": [RESUME],
    "large": [do("answer", "keep", "approve"), RESUME],
    "compacted": [do("resume", checkpoint=1), RESUME],
    "trimmed": [do("resume", checkpoint=1), RESUME],
    # Requests that the process had not read when it died.
    "asked-to-pause": [RESUME, RESUME],
    "asked-to-cancel": [RESUME],
    "asked-to-answer": [RESUME],
    "asked-to-signal": [do("signal", "paid", {"eur": 9}, id="bank-2"), RESUME],
    "asked-to-retry": [RESUME, WORTH, RESUME],
    "asked-to-skip": [RESUME, WORTH, RESUME],
}
"""Run -> the calls that bring it to its end."""

FORK_EDITS: dict[str, dict[str, Any]] = {"timer": {"seconds": 0}}
"""Run -> the edit with which it is forked: a fork starts a new execution, which would sleep again."""


def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return found


async def read(engine: hf.Engine, run_id: str) -> dict[str, Any]:
    """Return everything about a run that must be the same in every store."""
    run = await engine.get(run_id)
    return {
        "flow": run.flow,
        "status": run.status,
        "seq": run.seq,
        "labels": run.labels,
        "parent": run.parent,
        "held_by": run.held_by,
        "nodes": {name: _visit(node) for name, node in sorted(run.nodes.items())},
        "failure": [run.failed_node, run.error.kind, run.error.type, run.error.message]
        if run.error
        else None,
        "questions": [_question(question) for question in run.questions],
        "waits": list(run.waits),
        "signals": run.signals,
        "warnings": [[warned.node, warned.failure.message] for warned in run.warnings],
        "cost": [run.cost.usd, run.cost.tokens],
        "state": run.state,
        "events": [_event(event) for event in await engine.events(run_id)],
        "states": {
            str(point.seq): await engine.state(point.id) for point in await engine.checkpoints(run_id)
        },
    }


def _visit(node: Any) -> str:
    parts = [node.status, f"{node.iteration}.{node.execution}.{node.attempt}"]
    parts += [f"items {node.items[0]}/{node.items[1]}"] if node.items else []
    parts += [f"steps {' '.join(node.steps)}"] if node.steps else []
    parts += [f"checkpoint {json.dumps(node.checkpoint)}"] if node.checkpoint is not None else []
    parts += [f"chunks {node.chunks}"] if node.chunks else []
    return ", ".join(parts)


def _question(question: Any) -> dict[str, Any]:
    return {
        "key": question.key,
        "node": question.node,
        "text": question.text,
        "options": list(question.options),
        "about": question.about,
    }


def _event(event: Any) -> str:
    said = [f"{event.seq} {event.kind}", event.node, event.by and f"by {event.by}", event.body.get("reason")]
    return ", ".join(part for part in said if part)


async def bring_to_its_end(engine: hf.Engine, run_id: str) -> dict[str, Any]:
    """Make the calls that bring a run to its end. Return the outcome of every call, the nodes that ran, and the final run."""
    before = (await engine.get(run_id)).seq
    came = [f"{done.verb}: {await _outcome(engine, run_id, done)}" for done in WAYS_ON[run_id]]
    return {"came": came, **await _stands(engine, run_id, before)}


async def _outcome(engine: hf.Engine, run_id: str, done: Do) -> str:
    try:
        async with asyncio.timeout(PATIENCE_S):
            run = await getattr(engine, done.verb)(run_id, *done.args, **done.options)
    except hf.RunCancelled:
        return "cancelled"
    except hf.RunFailed as failed:
        return f"failed, {failed.run.error.type}"
    except (hf.ResumeRefused, hf.AnswerRefused) as refused:
        kind = hf.ResumeRefused if isinstance(refused, hf.ResumeRefused) else type(refused)
        return f"refused, {kind.__name__}"
    return run if isinstance(run, str) else f"{run.status}, repeated" if run.repeated else str(run.status)


async def _stands(engine: hf.Engine, run_id: str, after: int) -> dict[str, Any]:
    run = await engine.get(run_id)
    events = await engine.events(run_id, after)
    return {
        "status": run.status,
        "state": msgspec.to_builtins(run.state),
        "started": sorted(event.node for event in events if event.kind == "NodeStarted"),
        "steps": [event.body["step"] for event in events if event.kind == "StepCompleted"],
        "chunks": [event.body["chunks"] for event in events if event.kind == "NodeStreamed"],
    }


async def fork_in_the_middle(engine: hf.Engine, run_id: str) -> dict[str, Any]:
    """Fork a run from the middle one of its checkpoints, and resume the fork."""
    points = await engine.checkpoints(run_id)
    point = points[len(points) // 2]
    edit, fork_id = FORK_EDITS.get(run_id), f"fork-of-{run_id}"
    fork = await engine.fork(point.id, edit=edit, run_id=fork_id, repeat="run", by="ann")
    begins = await engine.get(fork)
    came = await _outcome(engine, fork, RESUME)
    told = {
        "at": point.seq,
        "parent": begins.parent,
        "begins": msgspec.to_builtins(begins.state),
        "came": came,
    }
    return {**told, **await _stands(engine, fork, begins.seq)}


async def let_a_worker_work(engine: hf.Engine) -> dict[str, str]:
    """Let a worker execute runs until it finds nothing more to do. Return run -> its status."""
    async with asyncio.timeout(PATIENCE_S):
        await engine.work(concurrency=1, until="idle")
    return {run_id: (await engine.get(run_id)).status for run_id in WAYS_ON}


def with_flows(store: Any) -> hf.Engine:
    return hf.Engine(store, flows=FLOWS, park_after=0)


def reading(store: Any) -> hf.Engine:
    """Make an engine that knows no flow, so that states are plain data."""
    return hf.Engine(store)
