"""Logs that earlier versions of Holdfast wrote, replayed for ever: they verify, fold to what they meant then, and can
be carried on.

`record.py` wrote them, each version into a folder of its own. A test that fails here says that stored runs of users
would be read differently, or not at all: change the code, or give the event a new version and an upcaster; never the
files.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.core import event_encoding
from holdfast.core.events import KINDS
from holdfast.documents.ledger_file import LedgerFile, export
from holdfast.reading import history, verification
from holdfast.reading.ledger import read_ledger
from holdfast.reading.views import run_view
from holdfast.storage.contract import Append, NewRun, Row, Snapshot, View
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row, unpack
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock

FOLDER = Path(__file__).parent
HISTORIES = sorted(FOLDER.glob("v*/*.jsonl"))


def ids(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


class Kept:
    """A log as it was stored."""

    def __init__(self, path: Path) -> None:
        head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self.run_id: str = head["run_id"]
        self.rows = tuple(_row(line) for line in lines)
        self.meant: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        self._head = head

    def put_into(self, store: Any) -> None:
        """Store it as it was, as a run that nobody holds."""
        head, base = self._head, self._head.get("base")
        create = {**head["create"], "input_digest": bytes.fromhex(head["create"]["input_digest"])}
        snapshots = (
            (Snapshot(base["seq"], _body(base), base=True, digest=bytes.fromhex(base["digest"])),)
            if base
            else ()
        )
        append = Append(
            run_id=self.run_id,
            expected_seq=self.rows[0].seq - 1,
            rows=self.rows,
            view=msgspec.convert(head["view"], View),
            create=NewRun(**create),
            snapshots=snapshots,
            definition=json.dumps(head["definition"]).encode(),
        )
        (verdict,) = store.append([append])
        assert verdict is None, verdict


def _row(line: dict[str, Any]) -> Row:
    header = [line[name] for name in ("seq", "at", "kind", "node", "iteration", "execution", "attempt")]
    return Row(*header, bytes.fromhex(line["salt"]), _body(line), bytes.fromhex(line["digest"]))


def _body(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line["packed"]) if "packed" in line else line["body"].encode()


@cache
def stories() -> ModuleType:
    """The module that told them, for the flows that carry them on."""
    spec = importlib.util.spec_from_file_location("holdfast_histories", FOLDER / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_there_are_histories_of_every_kind_of_event() -> None:
    found = {row.kind for path in HISTORIES for row in Kept(path).rows}
    assert found == set(KINDS)


@pytest.mark.parametrize("path", HISTORIES, ids=ids)
def test_a_history_verifies(path: Path, tmp_path: Path) -> None:
    kept = Kept(path)
    for store in (MemoryStore(), SqliteStore(tmp_path / "runs.db")):
        kept.put_into(store)
        assert verification.verify(store, kept.run_id).problems == []
        store.close()


@pytest.mark.parametrize("path", HISTORIES, ids=ids)
def test_the_ledger_of_a_history_is_verified_and_can_be_exported(path: Path, tmp_path: Path) -> None:
    kept, store = Kept(path), MemoryStore()
    kept.put_into(store)
    found = read_ledger(store, kept.run_id, check=True)
    assert found.verified
    assert found.entries
    export(store, kept.run_id, tmp_path / "ledger.jsonl")
    assert LedgerFile(tmp_path / "ledger.jsonl").ledger == found


@pytest.mark.parametrize("path", HISTORIES, ids=ids)
def test_a_history_folds_to_what_it_meant(path: Path) -> None:
    kept, store = Kept(path), MemoryStore()
    kept.put_into(store)
    view = run_view(history.load(store, kept.run_id), None, None)
    assert said_before(json.loads(msgspec.json.encode(view)), kept.meant) == kept.meant


def said_before(view: Any, meant: Any) -> Any:
    """A later version may say more of a run; what it said before must be the same, but for the iteration of a visit that has
    not begun: it was 0.
    """
    if isinstance(view, dict) and isinstance(meant, dict):
        if meant.get("attempt") == meant.get("iteration") == 0:
            view = view | {"iteration": 0}
        return {name: said_before(view[name], meant[name]) for name in meant if name in view}
    return view


@pytest.mark.parametrize("path", HISTORIES, ids=ids)
def test_every_checkpoint_of_a_history_can_be_loaded(path: Path) -> None:
    kept, store = Kept(path), MemoryStore()
    kept.put_into(store)
    for point in history.checkpoints(store, kept.run_id):
        assert history.load(store, kept.run_id, point.seq).seq == point.seq


@pytest.mark.parametrize("path", HISTORIES, ids=ids)
def test_every_body_of_a_history_says_what_it_said(path: Path) -> None:
    """What is read and written again is what was written: nothing was dropped, and no default has changed."""
    for row in Kept(path).rows:
        assert json.loads(
            event_encoding.encode(open_row(row, MemoryBlobs()).event).body or b"{}"
        ) == json.loads(unpack(row.body) or b"{}"), row.seq


def resume(store: MemoryStore, flow: Any, verb: str = "resume", *args: Any, **named: Any) -> hf.Run[Any]:
    async def use() -> Any:
        async with hf.Engine(store, flows=[flow]) as engine:
            return await getattr(engine, verb)(*args, **named)

    return asyncio.run(use())


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_run_that_an_old_version_left_waiting_is_carried_on(version: str) -> None:
    kept, store = Kept(FOLDER / version / "cut.jsonl"), MemoryStore()
    kept.put_into(store)
    run = resume(store, stories().report_flow(set()), "retry", kept.run_id)
    assert (run.status, run.state.draft) == ("completed", "published 2")
    again = [row.node for row in store.events(kept.run_id, kept.rows[-1].seq, kinds=("NodeStarted",))]
    assert again == ["publish"]


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_fork_that_an_old_version_left_paused_is_carried_on(version: str) -> None:
    kept, store = Kept(FOLDER / version / "paused.jsonl"), MemoryStore()
    kept.put_into(store)
    run = resume(store, stories().report_flow(set()), "resume", kept.run_id)
    assert (run.status, run.state.draft) == ("completed", "published 2")
    assert verification.verify(store, kept.run_id).problems == []


def left(version: str, name: str) -> tuple[MemoryStore, str, int]:
    """A store with that run in it, at the time it was recorded; its id, and where its log ends."""
    kept, store = Kept(FOLDER / version / f"{name}.jsonl"), MemoryStore(clock=ManualClock().now)
    kept.put_into(store)
    return store, kept.run_id, kept.rows[-1].seq


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_run_that_an_old_version_left_with_a_question_is_answered_and_carried_on(version: str) -> None:
    store, run_id, seq = left(version, "kept")
    flow = stories().order_flow()
    resume(store, flow, "answer", run_id, "price.1.1", 12)
    assert resume(store, flow, "resume", run_id).status == "waiting"
    resume(store, flow, "answer", run_id, "send", "approve")
    run = resume(store, flow, "resume", run_id)
    assert (run.status, run.state.price, run.state.log[-1]) == ("completed", 12, "sent")
    assert [row.node for row in store.events(run_id, seq, kinds=("NodeStarted",))] == ["price", "send"]


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_items_that_an_old_version_left_waiting_get_their_signals_and_keep_their_steps(version: str) -> None:
    store, run_id, seq = left(version, "waiting")
    flow = stories().wait_flow()
    for number in (1, 2):
        resume(store, flow, "signal", run_id, "stamp", number)
    run = resume(store, flow, "resume", run_id)
    assert (run.status, run.state.log[-4:]) == ("completed", ["a", 1, "b", 2])
    assert store.events(run_id, seq, kinds=("StepCompleted",)) == []


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_node_that_an_old_version_quarantined_runs_again_only_by_force(version: str) -> None:
    store, run_id, _ = left(version, "quarantined")
    flow = stories().order_flow(crash_limit=2)
    with pytest.raises(hf.ResumeRefused, match="Quarantined"):
        resume(store, flow, "resume", run_id)
    run = resume(store, flow, "resume", run_id, force=True)
    assert (run.status, run.nodes["charge"].status) == ("waiting", "completed")


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
@pytest.mark.parametrize(("answer", "items"), [("run", 1), ("skip", 0)])
def test_a_fork_that_an_old_version_left_with_a_question_about_a_repeat_is_answered_and_carried_on(
    version: str, answer: str, items: int
) -> None:
    store, run_id, seq = left(version, "repeat_asked")
    flow = stories().parcels_flow(set())
    resume(store, flow, "answer", run_id, "send", answer)
    run = resume(store, flow, "resume", run_id)
    assert (run.status, run.state.sent, run.state.note) == ("completed", [10, 20, 30], "billed by f")
    assert len(store.events(run_id, seq, kinds=("ItemStarted",))) == items
    assert history.load(store, run_id).lineage == "r"


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_run_that_an_old_version_left_inside_a_step_in_doubt_is_answered_and_carried_on(
    version: str,
) -> None:
    store, run_id, seq = left(version, "outcomes")
    flow = stories().outcome_flow([ValueError("the bank is asked again")])
    resume(store, flow, "answer", run_id, "ship", "retry")
    run = resume(store, flow, "resume", run_id)
    assert (run.status, run.state.log) == ("completed", ["declined: ('no cover', 51)", "shipped"])
    assert [row.kind for row in store.events(run_id, seq) if row.kind.startswith("Step")] == [
        "StepStarted",
        "StepCompleted",
    ]


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_step_that_was_stated_under_an_old_version_is_not_called_and_the_other_one_can_be_stated(
    version: str,
) -> None:
    store, run_id, seq = left(version, "stated")
    flow = stories().stated_flow()
    said = {"by": "ben", "reason": "the parcel is on its way"}
    resume(store, flow, "answer", run_id, "ship", "happened", result={"number": 8}, **said)
    run = resume(store, flow, "resume", run_id)
    assert (run.status, run.state.log) == ("completed", ["stamped, {'number': 8}"])
    assert [row.kind for row in store.events(run_id, seq) if row.kind.startswith("Step")] == []


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_what_an_old_version_kept_of_a_declined_step_is_not_asked_for_again(version: str) -> None:
    kept, store = Kept(FOLDER / version / "outcomes.jsonl"), MemoryStore()
    kept.put_into(store)
    declined = [row.seq for row in kept.rows if row.kind == "StepFailed"][1]
    state = history.load(store, kept.run_id, declined)
    (slots,) = state.nodes["pay"].kept.values()
    assert slots["raised:charge"] == {
        "type": "CardDeclined",
        "message": "('no cover', 51)",
        "arguments": ["no cover", 51],
    }


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_what_a_task_had_returned_is_accepted_and_used_without_a_second_call(version: str) -> None:
    """The plan is read from the definition that was stored with the run."""
    store, run_id, seq = left(version, "judging")
    desk = stories().plan_flows.desk
    resume(store, desk, "answer", run_id, "charge", "approve")
    run = resume(store, desk, "resume", run_id)
    assert (run.status, run.state.outputs["tell"]) == ("completed", {"id": "c-1"})
    assert [row.kind for row in store.events(run_id, seq, node="charge")] == [
        "QuestionAnswered",
        "NodeStarted",
        "NodeCompleted",
    ]
    assert verification.verify(store, run_id).problems == []


@pytest.mark.parametrize("version", sorted({path.parent.name for path in HISTORIES}))
def test_a_denial_that_an_old_version_recorded_is_in_force(version: str) -> None:
    store, run_id, seq = left(version, "denied")
    desk = stories().plan_flows.desk
    with pytest.raises(hf.ResumeRefused, match="PolicyDenied"):
        resume(store, desk, "resume", run_id)
    assert store.events(run_id, seq, kinds=("NodeStarted",)) == []
