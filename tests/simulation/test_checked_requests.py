"""The checker finds every planted violation about requests, refusals, forks and runs that begin at a time, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from forgery import Forger, forged

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.checker import check
from holdfast.testing.clock import STARTS_AT, ManualClock

BEGINS_AT = STARTS_AT + 3600


def order_flow() -> hf.Flow[Any]:
    graph = Graph("order", dict)

    @graph.node(idempotent=False)
    def charge(state: dict[str, Any]) -> dict[str, Any]:
        return {"charged": True}

    graph.ask("approve", "Send it?", options=["yes", "no"])
    return graph.chain(START, "charge", "approve", END).compile()


async def live(store: Store, clock: ManualClock) -> None:
    """Make runs with requests: `w` waits, `d` is completed, `f` is a fork, and `g` is a fork of it; `later` has not begun."""
    flow = order_flow()
    async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as engine:
        await engine.run(flow, {}, run_id="w")
        await engine.edit("w", {"note": "fragile"}, id="edit")
        await engine.skip("w", "charge", id="skip", execute=False)
        await engine.pause("w", id="pause")
        await engine.work(until="idle")
        await engine.resume("w", id="resume", execute=False)
        await engine.work(until="idle")
        await engine.run(flow, {}, run_id="d")
        await engine.answer("d", "approve", "yes")
        await engine.resume("d")
        await engine.run(flow, {}, run_id="c")
        async with hf.Engine(store, clock=clock, inline=True) as stranger:  # it does not know the flow
            await stranger.edit("c", {"note": "late"}, id="late")
            await stranger.cancel("c", id="cancel")
        await engine.fork("d@1", run_id="f", repeat="skip")
        await engine.resume("f")
        await engine.fork("f", run_id="g")
        await engine.start(flow, {}, run_id="later", begin_at=datetime.fromtimestamp(BEGINS_AT, UTC))
        await engine.signal("later", "news", id="news")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asked") / "runs.db"
    clock = ManualClock(auto=True)
    store = SqliteStore(path, clock=clock.now)
    asyncio.run(live(store, clock))
    store.close()
    return path


@pytest.fixture
def file(lived: Path, tmp_path: Path) -> Path:
    shutil.copy(lived, tmp_path / "runs.db")
    return tmp_path / "runs.db"


def requests(file: Path, run_id: str) -> dict[str, tuple[bool, bool]]:
    """Return whether each request of a run was handled, and whether it was unmet."""
    store = SqliteStore(file)
    found = {one.id: (bool(one.taken), one.unmet) for one in store.inbox(run_id=run_id)}
    store.close()
    return found


def test_requests_that_are_carried_out_refused_unmet_or_wait_are_fine(file: Path) -> None:
    assert check(file) == []
    assert requests(file, "w") == dict.fromkeys(
        ("request:edit", "request:skip", "request:pause", "request:resume"), (True, False)
    )
    assert requests(file, "c") == {"request:late": (True, True), "request:cancel": (True, False)}


def test_requests_of_a_store_in_memory_are_checked_too() -> None:
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    asyncio.run(live(store, clock))
    assert check(store) == []
    store._data.handle("w", "request:skip", 3)
    requests_of_w = store._data.runs["w"].requests
    gone = requests_of_w.pop("request:skip")
    assert "is refused, but the inbox does not have it" in str(check(store))
    requests_of_w["request:skip"] = gone
    assert check(store) == []


def test_a_fork_of_a_failed_run_that_was_edited_is_fine() -> None:
    graph = Graph("fails", dict)

    @graph.node
    def fail(state: dict[str, Any]) -> None:
        raise hf.Fatal("no stamps")

    flow = graph.chain(START, "fail", END).compile()
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, {}, run_id="r")
            await engine.edit("r", {"note": "stamps came"})
            await engine.fork("r", run_id="f")

    asyncio.run(main())
    assert check(store) == []


# --- what is planted ---------------------------------------------------------------------------------


def a_refusal_that_was_dropped(run: Forger) -> None:
    run.find("RequestRefused").tell(request="")
    run.seal()


def a_request_that_no_event_shows(run: Forger) -> None:
    edit = run.find("StateEdited")
    edit.kind, edit.body = "CostIncurred", b'{"usd":0.0}'
    run.seal()


def a_request_that_was_taken_with_another(run: Forger) -> None:
    run.sql(
        "insert into inbox (run, id, verb, body, at, taken, digest) select run, 'other', verb, '', at, taken, digest from inbox "
        "where id = 'request:edit'"
    )


def a_refusal_that_was_recorded_twice(run: Forger) -> None:
    refused = run.find("RequestRefused")
    run.insert(refused, "RequestRefused", **refused.told)
    run.seal()


def a_refusal_of_a_request_that_waits(run: Forger) -> None:
    run.sql("update inbox set taken = 0 where id = 'request:skip'")


def a_refusal_of_another_verb(run: Forger) -> None:
    run.find("RequestRefused").tell(verb="edit")
    run.seal()


def a_refusal_of_a_request_that_was_done_before(run: Forger) -> None:
    run.sql("update inbox set taken = 1 where id = 'request:skip'")


def a_refusal_of_an_unmet_request(run: Forger) -> None:
    run.sql("update inbox set unmet = 1 where id = 'request:skip'")


def a_refusal_of_a_request_that_is_gone(run: Forger) -> None:
    run.sql("delete from inbox where id = 'request:skip'")


def an_unmet_request_of_an_open_run(run: Forger) -> None:
    run.sql("update inbox set unmet = 1 where id = 'request:edit'")


def a_request_that_waits_for_ever(run: Forger) -> None:
    run.sql("update inbox set taken = 0, unmet = 0 where id = 'request:late'")


def a_request_that_was_unmet_before_the_end(run: Forger) -> None:
    run.sql("update inbox set taken = 2 where id = 'request:late'")


def a_resume_that_undid_a_later_pause(run: Forger) -> None:
    run.sql("update inbox set key = key + 1000 where id = 'request:pause'")


def a_lineage_of_nobody(run: Forger) -> None:
    run.find("RunForked").tell(lineage="w")
    run.sql("delete from snapshots where run = ? and base = 0", run.key)
    _seal_fork(run)


def a_lineage_that_was_forgotten(run: Forger) -> None:
    told = run.find("RunForked").told
    del told["lineage"]
    run.find("RunForked").body = b""
    run.find("RunForked").tell(**told)
    _seal_fork(run)


def _seal_fork(run: Forger) -> None:
    """Seal the log of a fork, whose hash chain continues that of its parent."""
    (digest,) = run.db.execute(
        "select digest from snapshots where run = ? and base = 1", (run.key,)
    ).fetchone()
    run.seal(digest)


PLANTS = {
    a_refusal_that_was_dropped: ("w", "I9"),
    a_request_that_no_event_shows: ("w", "I9"),
    a_request_that_was_taken_with_another: ("w", "I9"),
    a_refusal_that_was_recorded_twice: ("w", "I9"),
    a_refusal_of_a_request_that_waits: ("w", "I9"),
    a_refusal_of_another_verb: ("w", "I9"),
    a_refusal_of_a_request_that_was_done_before: ("w", "I9"),
    a_refusal_of_an_unmet_request: ("w", "I9"),
    a_refusal_of_a_request_that_is_gone: ("w", "I9"),
    an_unmet_request_of_an_open_run: ("w", "I9"),
    a_request_that_waits_for_ever: ("c", "I9"),
    a_request_that_was_unmet_before_the_end: ("c", "I9"),
    a_resume_that_undid_a_later_pause: ("w", "I9"),
    a_lineage_of_nobody: ("g", "I8"),
    a_lineage_that_was_forgotten: ("f", "I8"),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_and_nothing_else(plant: Any, file: Path) -> None:
    run_id, invariant = PLANTS[plant]
    violations = check(forged(file, run_id, plant))
    # A fork of a run whose lineage is wrong does not agree with it either.
    assert {violation.invariant for violation in violations} == {invariant}, "\n".join(map(str, violations))


def test_a_store_of_an_older_version_is_not_held_to_what_it_did_not_record(file: Path) -> None:
    def plant(run: Forger) -> None:
        a_request_that_no_event_shows(run)
        run.sql("alter table inbox drop column digest")
        run.sql("alter table inbox drop column unmet")

    assert check(forged(file, "w", plant)) == []


# --- runs that begin at a time -----------------------------------------------------------------------


def test_a_run_that_begins_later_is_fine_at_the_end(file: Path) -> None:
    later = [one for one in check(file, at_end=True, now=STARTS_AT + 60) if one.run_id == "later"]
    assert later == []


def test_a_run_that_should_have_begun_is_found(file: Path) -> None:
    late = [one for one in check(file, at_end=True, now=BEGINS_AT) if one.run_id == "later"]
    assert [one.invariant for one in late] == ["L1"]


def test_a_run_row_that_forgets_when_the_run_begins_is_found(file: Path) -> None:
    violations = check(forged(file, "later", lambda run: run.row(due_at=None)))
    assert [one.invariant for one in violations] == ["I2"]
