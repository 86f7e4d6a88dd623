"""The ledger has every decision of a log, and a damaged log names the entry that was removed or altered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast.core import event_encoding, events
from holdfast.core.events import Changes
from holdfast.core.kinds import TABLE
from holdfast.errors import StoreCorrupt
from holdfast.reading import ledger_entries
from holdfast.reading.damage import rows_damage
from holdfast.reading.ledger import Ledger, decisions, read_ledger
from holdfast.reading.ledger_entries import LedgerEntry, actor_of
from holdfast.storage.contract import Row, Store
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import seal_row
from holdfast.storage.urls import open_store
from holdfast.testing.builders import History, outline
from holdfast.testing.flows import arbitrary, attended
from holdfast.testing.random_histories import play
from holdfast.upkeep import retention

REVIEW = outline("START write check", "publish END", branches={"check": "write publish"},
                 nodes={"publish": {"approve": "Publish it?"}})  # fmt: skip


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind = request.param
    store = open_store(f"memory://{tmp_path.name}" if kind == "memory" else str(tmp_path / "runs.db"))
    yield store
    store.close()


def reviewed(run_id: str = "r1") -> History:
    """A run whose first draft was sent back, and whose publication was approved."""
    history = History(run_id, REVIEW).created()
    history.completed("write").completed("check", routes=["write"]).completed("write").completed("check")
    return history.settled().answered("publish", "approve", by="ada", reason="well written")


def ledger_of(history: History, store: Store, **options: Any) -> Ledger:
    history.write(store)
    return read_ledger(store, history.run_id, **options)


def told(ledger: Ledger) -> list[tuple[str, str, str | None, str]]:
    return [(entry.type, entry.actor, entry.by, entry.text) for entry in ledger.entries]


def test_the_ledger_has_the_flow_the_branches_and_the_answers(store: Store) -> None:
    found = ledger_of(reviewed().completed("publish").settled(), store)
    assert told(found) == [
        ("plan", "engine", None, f"the run follows the flow 'outline' ({REVIEW.fingerprint[:12]})"),
        ("branch", "engine", None, "check leads to write"),
        ("branch", "engine", None, "check leads to publish"),
        ("decision", "human", "ada", 'publish: the answer is "approve"'),
    ]
    answer = found.entries[-1]
    assert answer.reason == "well written"
    assert answer.about == {"node": "publish", "iteration": 1, "question": "publish.1.1", "asked": "gate",
                            "text": "Publish it?", "answer": "approve"}  # fmt: skip
    assert found.entries[1].about == {
        "node": "check", "iteration": 1, "routes": ["write"], "among": ["write", "publish"],
    }  # fmt: skip


def test_each_entry_has_the_digest_and_the_time_of_its_row(store: Store) -> None:
    found = ledger_of(reviewed(), store)
    rows = {row.seq: row for row in store.events("r1")}
    assert len(found.entries) == 4
    for entry in found.entries:
        row = rows[entry.seq]
        assert (entry.digest, entry.at, entry.kind) == (row.digest.hex(), row.at, row.kind)
    assert (found.seq, found.digest) == (len(rows), rows[len(rows)].digest.hex())


def test_failures_skips_edits_retries_and_refusals_are_decisions(store: Store) -> None:
    flow = outline("START a b END")
    history = History("r1", flow).created().failed("a", ValueError("no luck"), retry_in=1.0)
    history.passed(2.0).failed("a", ValueError("no luck again")).settled()
    history.record(events.RequestRefused(verb="answer", reason="there is no such question", by="agent:clerk"))
    history.record(events.ResumeRefused(reason="the flow has changed"))
    history.record(events.StateEdited(changes=Changes(set={"n": 1}, unset=["m"]), by="ada", reason="a typo"))
    history.record(events.RunResumed(by="agent:clerk", reason="fixed", nodes=["a"]))
    history.settled()
    history.record(events.NodeInterrupted(node="a", iteration=1, attempt=3))
    history.record(events.NodeScheduled(node="a", iteration=1, attempt=3, why="retry", by="ada"))
    history.settled()
    history.record(events.NodeInterrupted(node="a", iteration=1, attempt=4))
    history.record(
        events.NodeSkipped(node="a", iteration=1, attempt=4, routes=["b"], by="ada", reason="known")
    )
    history.record(events.RunPaused(by="ada", reason="lunch"))
    found = ledger_of(history, store)
    assert [(one.type, one.actor, one.text, one.reason) for one in found.entries[1:]] == [
        ("failure", "engine", "a failed for good", "ValueError: no luck again"),
        ("failure", "engine", "the run failed", "ValueError: no luck again"),
        ("refusal", "agent", "answer is refused", "there is no such question"),
        ("refusal", "engine", "resume is refused", "the flow has changed"),
        ("edit", "human", "the state is edited: n, m", "a typo"),
        ("resume", "agent", "the run is resumed with a", "fixed"),
        ("resume", "human", "a is tried again", None),
        ("skip", "human", "a is skipped", "known"),
        ("decision", "human", "the run is paused", "lunch"),
    ]


def test_a_resume_names_what_it_allows(store: Store) -> None:
    history = History("r1", outline("START a b END")).created().failed("a", ValueError("no luck"))
    for resumed in (
        events.RunResumed(by="ada", budget=hf.Budget(usd=3)),
        events.RunResumed(by="ada", scope=["a", "b"]),
        events.RunResumed(by="ada", scope=["*"], force=True),
    ):
        history.record(resumed)
    found = ledger_of(history, store)
    assert [one.text for one in found.entries if one.type == "resume"] == [
        "the run is resumed with the budget usd=3",
        "the run is resumed with a, b in scope",
        "the run is resumed with all nodes in scope and force",
    ]


def test_a_failure_that_is_accepted_and_a_router_that_raised_are_decisions(store: Store) -> None:
    flow = outline("START a b", branches={"b": "a END"}, nodes={"a": {"safe_to_fail": True}})
    history = History("r1", flow).created().failed("a", ValueError("it broke")).settled()
    history.misrouted("b", KeyError("plan")).settled()
    history.record(events.RunResumed()).record(events.NodeRouted(node="b", iteration=1, routes=["END"]))
    found = ledger_of(history, store)
    assert [(one.type, one.text) for one in found.entries[1:]] == [
        ("failure", "a failed for good"),
        ("skip", "the failure of a is accepted"),
        ("failure", "what follows b could not be decided"),
        ("failure", "the run failed"),
        ("resume", "the run is resumed"),
        ("branch", "b leads to END"),
    ]
    assert found.entries[2].about["failure"]["message"] == "it broke"


def test_a_layer_names_the_routes_that_routers_chose(store: Store) -> None:
    flow = outline("START a b", branches={"b": "a END"}, schedule="layered")
    found = ledger_of(History("r1", flow).created().completed("a").settled().completed("b").settled(), store)
    (branch,) = [one for one in found.entries if one.type == "branch"]
    assert (branch.kind, branch.about) == ("LayerCompleted", {"layer": 2, "routes": {"b": ["END"]}})


def test_after_a_rewind_the_flow_of_that_place_tells_which_nodes_branch(store: Store) -> None:
    plain = outline("START write check publish END")
    history = reviewed()
    changed = events.FlowChanged(fingerprint=plain.fingerprint, by="ada")
    rows = [*history.events(), *(events.Stored(seq, 0.0, event) for seq, event in enumerate(
        (changed, events.NodeCompleted(node="check", iteration=3, routes=["publish"]), events.RunRewound(to=3),
         events.NodeCompleted(node="check", iteration=1, routes=["write"])), len(history.log) + 1))]  # fmt: skip
    flows = {REVIEW.fingerprint: REVIEW.definition, plain.fingerprint: plain.definition}
    found = entries(rows, flows)
    assert [one.type for one in found][-3:] == ["edit", "rewind", "branch"]


def entries(log: list[events.Stored], flows: dict[str, Any]) -> list[LedgerEntry]:
    """Return the entries about events that were stored nowhere."""
    rows = [
        seal_row(b"", "r1", one.seq, one.at, repr(one.at), event_encoding.encode(one.event), bytes(16))
        for one in log
    ]
    opened = {one.seq: one.event for one in log}
    return ledger_entries.read_entries(rows, flows.get, lambda row: opened[row.seq])


@pytest.mark.parametrize(
    ("by", "actor"),
    [
        (None, "engine"),
        ("", "engine"),
        ("timeout", "engine"),
        ("ada", "human"),
        ("agent:clerk", "agent"),
        ("agent:clerk/ada", "agent"),
        ("agents", "human"),
    ],
)
def test_the_actor_is_told_from_by(by: str | None, actor: str) -> None:
    assert actor_of(by) == actor


def test_every_kind_that_a_caller_can_cause_has_an_entry() -> None:
    without = {
        kind.event.__name__
        for kind in TABLE
        if "by" in kind.event.__struct_fields__ and kind.event.__name__ not in ledger_entries.KINDS
    }
    assert without == {"SignalReceived"}, "a signal is data; what the run does with it is decided elsewhere"


# --- what a resumed run has in common ------------------------------------------------------------------


def test_a_run_that_was_interrupted_has_the_same_decisions(store: Store) -> None:
    whole = reviewed("whole").completed("publish").settled()
    cut = History("cut", REVIEW, starts_at=5000.0).created().started("write").taken_up().completed("write")
    cut.completed("check", routes=["write"]).record(events.RunClaimed(holder="other")).completed("write")
    cut.completed("check").settled().taken_up().settled()
    cut.answered("publish", "approve", by="ada", reason="well written").completed("publish").settled()
    one, other = ledger_of(whole, store), ledger_of(cut, store)
    assert one.entries != other.entries
    assert decisions(one) == decisions(other)
    assert [one["type"] for one in decisions(one)] == ["plan", "branch", "branch", "decision"]
    other_answer = [entry for entry in other.entries if entry.type != "decision"]
    changed = Ledger(run_id="cut", flow="outline", seq=1, digest="", entries=other_answer)
    assert decisions(one) != decisions(changed)


def test_the_answer_about_an_interrupted_visit_is_not_in_common(store: Store) -> None:
    flow = outline("START a END", nodes={"a": {"idempotent": False}})
    cut = History("r1", flow).created().started("a").taken_up().settled()
    cut.answered("a", "retry", by="ada").settled().completed("a").settled()
    found = ledger_of(cut, store)
    assert [one.type for one in found.entries] == ["plan", "resume", "decision"]
    assert [one["type"] for one in decisions(found)] == ["plan"]


# --- verification --------------------------------------------------------------------------------------


def test_a_log_as_it_was_written_is_verified(store: Store) -> None:
    assert ledger_of(reviewed(), store).verified is None
    found = read_ledger(store, "r1", check=True)
    assert (found.verified, found.problems, found.damage) == (True, [], [])


def long_history(count: int) -> History:
    """A run with a log of so many events: visits, steps, branches, an answer."""
    flow = outline("START a b", branches={"b": "a END"}, nodes={"b": {"approve": "Go on?"}})
    history = History("r1", flow).created()
    while len(history.log) < count - 12:
        history.stepped("a", "look", {"n": len(history.log)}).completed("a", {"n": len(history.log)})
        history.settled().answered("b", "approve", by="ada").completed("b", routes=["a"])
    while len(history.log) < count:
        history.stepped("a", f"look {len(history.log)}")
    return history


ALTERATIONS = (
    "update events set body = cast(body || ' ' as blob) where key & 4294967295 = {seq}",
    "update events set salt = zeroblob(16) where key & 4294967295 = {seq}",
    "update events set at = at + 1 where key & 4294967295 = {seq}",
    "update events set attempt = attempt + 1 where key & 4294967295 = {seq}",
    "update events set kind = 'NodeStreamed' where key & 4294967295 = {seq}",
    "update events set digest = zeroblob(32) where key & 4294967295 = {seq}",
    "update events set node = coalesce(node, '') || 'x' where key & 4294967295 = {seq}",
)
REMOVAL = "delete from events where key & 4294967295 = {seq}"


@pytest.mark.rotating
@pytest.mark.parametrize("first", range(1, 5))
def test_any_one_row_of_500_that_is_removed_or_altered_is_named(tmp_path: Path, first: int) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path))) as store:
        long_history(500).write(store)
        types = {entry.seq: entry.type for entry in read_ledger(store, "r1").entries}
        assert store.run("r1").seq == 500
        with closing(apsw.Connection(str(path))) as db:
            named = {"removed": 0, "altered": 0}
            for seq in range(first, 501, 4):
                for what, change in (
                    ("removed", REMOVAL),
                    ("altered", ALTERATIONS[seq // 4 % len(ALTERATIONS)]),
                ):
                    kept = db.execute("select key, at, kind, node, iteration, execution, attempt, salt, digest, body "
                                      "from events where key & 4294967295 = ?", (seq,)).fetchone()  # fmt: skip
                    db.execute(change.format(seq=seq))
                    found = read_ledger(store, "r1", check=True)
                    (damage,) = found.damage
                    assert found.verified is False
                    assert damage.seq == seq, (what, change, damage)
                    if "at = " in change:
                        assert damage.type == types.get(seq)
                    named[what] += 1
                    db.execute("delete from events where key = ?", kept[:1])
                    db.execute(f"insert into events (key, at, kind, node, iteration, execution, attempt, salt, digest, body) "
                               f"values ({', '.join('?' * 10)})", kept)  # fmt: skip
        assert named == {"removed": 125, "altered": 125}
        assert read_ledger(store, "r1", check=True).verified


def test_a_damaged_log_is_read_only_to_be_verified(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path))) as store:
        ledger_of(reviewed(), store)
        answer = read_ledger(store, "r1").entries[-1]
        with closing(apsw.Connection(str(path))) as db:
            db.execute("update events set body = x'00' where kind = 'QuestionAnswered'")
        with pytest.raises(StoreCorrupt, match=f"event {answer.seq}: "):
            read_ledger(store, "r1")
        found = read_ledger(store, "r1", check=True)
        assert [(one.seq, one.kind) for one in found.damage] == [(answer.seq, "QuestionAnswered")]
        assert [one.type for one in found.entries] == ["plan", "branch", "branch"]


def test_events_that_were_compacted_are_not_missing(store: Store) -> None:
    ledger_of(reviewed().completed("publish").settled(), store)
    retention.compact(store, "r1", 1, holder=this_process(60.0))
    found = read_ledger(store, "r1", check=True)
    assert found.verified
    assert found.entries == []
    assert "were compacted on" in found.beginning


def test_the_first_event_after_a_base_is_named_if_it_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path))) as store:
        ledger_of(reviewed().completed("publish").settled(), store)
        retention.compact(store, "r1", 2, holder=this_process(60.0))
        first = store.events("r1")[0].seq
        with closing(apsw.Connection(str(path))) as db:
            db.execute("delete from events where key & 4294967295 = ?", (first,))
        assert [(one.what, one.seq) for one in read_ledger(store, "r1", check=True).damage] == [
            ("missing", first)
        ]


def test_the_first_event_of_a_fork_is_named_if_it_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path))) as store:
        reviewed().completed("publish").settled().write(store)
        hf.fork("r1", checkpoint=5, run_id="f1", store=store, by="ada")
        found = read_ledger(store, "f1", check=True)
        assert found.verified
        assert [(one.type, one.seq, one.by, one.text) for one in found.entries] == [
            ("plan", 6, "ada", "the run continues from event 5 of run r1")
        ]
        with closing(apsw.Connection(str(path))) as db:
            db.execute("delete from events where kind = 'RunForked'")
        assert [(one.what, one.seq) for one in read_ledger(store, "f1", check=True).damage] == [
            ("missing", 6)
        ]


@pytest.mark.parametrize("seed", range(30))
def test_any_alteration_of_the_log_of_a_random_history_is_named(seed: int) -> None:
    luck = random.Random(seed)
    sketch = attended(arbitrary(luck, most=6), luck)
    history = History("r1", sketch.flow())
    for _ in zip(play(history.created(), sketch, luck, trouble=0.2, inside=0.3), range(300), strict=False):
        pass
    store = MemoryStore()
    history.write(store)
    found = read_ledger(store, "r1", check=True)
    assert found.verified
    assert [entry.seq for entry in found.entries] == sorted(entry.seq for entry in found.entries)
    rows, row = store.events("r1"), store.run("r1")
    for _ in range(20):
        place = luck.randrange(len(rows))
        damaged = rows[:place] + alter(rows[place], luck) + rows[place + 1 :]
        (damage,) = rows_damage("r1", damaged, after=0, digest=b"", end=row.seq, end_digest=row.digest)
        assert damage.seq == rows[place].seq


def alter(row: Row, luck: random.Random) -> list[Row]:
    """Return nothing in place of a row, or the row with another value in one of its columns."""
    changes: list[dict[str, Any]] = [
        {"body": row.body + b" "},
        {"salt": row.salt[::-1]},
        {"at": row.at + 1},
        {"kind": "NodeStarted" if row.kind != "NodeStarted" else "NodeCompleted"},
        {"node": f"{row.node}x"},
        {"execution": row.execution + 1},
        {"digest": row.digest[::-1]},
    ]
    return [] if luck.random() < 0.3 else [msgspec.structs.replace(row, **luck.choice(changes))]
