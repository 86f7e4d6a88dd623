"""The doctor verifies a sample of the logs, and says how many and when: an altered event is found, and the cost is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import SchemaTooNew
from holdfast.reading.verification import verify
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import doctor
from holdfast.upkeep.archive import archive
from newer_version import NEWER, write_as_newer
from postgres_server import drop_schema, execute, schema_for, shared_url

graph = Graph("work", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"paid": 5}


flow = graph.chain(START, only, END).compile()


class Place:
    """A store, whose events can be altered from outside."""

    def __init__(self, url: str, schema: str) -> None:
        self.url, self._schema = url, schema
        self.clock = ManualClock(1_000_000.0, auto=True)
        self.store: Store = open_store(url, clock=self.clock.now)

    def run(self, *run_ids: str, apart_s: float = 0.0) -> None:
        async def main() -> None:
            async with hf.Engine(self.store, flows=[flow], clock=self.clock, inline=True) as engine:
                for run_id in run_ids:
                    self.clock.advance(apart_s)
                    await engine.run(flow, {}, run_id=run_id)

        asyncio.run(main())

    def alter(self, run_id: str) -> None:
        """Change the time of the third event, which no command would notice."""
        if isinstance(self.store, MemoryStore):
            rows = self.store._data.runs[run_id].rows
            rows[2] = msgspec.structs.replace(rows[2], at=rows[2].at + 1)
        elif self.url.startswith("postgres"):
            which = f"run = (select key from \"{self._schema}\".runs where run_id = '{run_id}') and seq = 3"
            execute(shared_url(), f'update "{self._schema}".events set at = at + 1 where {which}')
        else:
            connection = apsw.Connection(self.url)
            which = f"key = (select key << 32 | 3 from runs where run_id = '{run_id}')"
            connection.execute(f"update events set at = at + 1 where {which}")
            connection.close()

    def sample(self) -> doctor.Sample:
        return doctor.verify_sample(self.store, self.clock.now)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    schema = schema_for(tmp_path)
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": str(tmp_path / "runs.db")}
    made = Place(urls.get(request.param) or f"{shared_url()}&schema={schema}", schema)
    yield made
    made.store.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


def test_an_altered_event_is_a_problem_with_its_command(place: Place) -> None:
    place.run("a", "b", "c")
    whole = place.sample()
    assert (whole.runs, whole.of, whole.at, whole.damaged) == (3, 3, place.clock.now(), ())
    assert whole.check() == doctor.Check("Logs of runs", "all 3 runs verified", None)
    place.alter("b")
    assert doctor.examine(place.store, None, place.clock.now()) == []  # nothing else would have noticed
    found = place.sample()
    (finding,) = found.damaged
    assert (finding.run_id, finding.kind, finding.flow, finding.waits) == ("b", "unreadable", "work", False)
    assert finding.reason.startswith("its log is not what was written: event 3 ")
    assert [remedy.command for remedy in finding.remedies] == ["holdfast verify b"]
    assert found.check().fault == "1 log is not what was written (all 3 runs verified)"


def test_a_run_that_was_found_unreadable_already_is_not_reported_twice(place: Place) -> None:
    place.run("a")
    place.alter("a")
    known = place.sample().damaged
    again = doctor.verify_sample(place.store, place.clock.now, known=known)
    assert (again.runs, again.of, again.damaged) == (0, 1, ())


def test_a_store_with_many_runs_is_verified_by_a_sample_in_which_old_runs_have_their_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SAMPLED", 10)
    names = [f"r{number:02}" for number in range(40)]
    place.run(*names, apart_s=100.0)
    place.alter("r39")
    place.alter("r03")
    seen: set[str | None] = set()
    for _ in range(60):
        place.clock.advance(1.0)
        sample = place.sample()
        assert sample.of == 40
        assert 5 <= sample.runs <= 10
        assert "of 40 runs verified: the newest, and others by chance" in sample.detail
        assert "r39" in {one.run_id for one in sample.damaged}
        seen |= {one.run_id for one in sample.damaged}
    assert seen == {"r39", "r03"}


def test_verifying_ends_when_its_time_is_over(place: Place) -> None:
    place.run("a", "b", "c", "d")
    times = iter([0.0, 0.1, 0.9, 1.1, 1.2])
    sample = doctor.verify_sample(place.store, lambda: next(times))
    assert (sample.runs, sample.of) == (2, 4)


def test_a_log_that_is_very_long_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run("a")
    monkeypatch.setattr(doctor, "SAMPLED_EVENTS", 2)
    sample = place.sample()
    assert (sample.runs, sample.of) == (0, 1)


def test_a_run_that_a_newer_version_has_ended_is_not_reported_as_damaged(
    place: Place, tmp_path: Path
) -> None:
    place.run("a")

    async def start() -> None:
        async with hf.Engine(place.store, flows=[flow], clock=place.clock, inline=True) as engine:
            await engine.start(flow, {}, run_id="newer")

    asyncio.run(start())
    write_as_newer(place.store, "newer", "completed")
    sample = place.sample()
    assert (sample.runs, sample.of, sample.too_new, sample.damaged) == (1, 2, 1, ())
    assert sample.check().fault is None
    assert "1 more of a newer version" in sample.detail
    verdict = verify(place.store, "newer")
    assert (verdict.too_new, NEWER in verdict.problems[0]) == (True, True)
    with pytest.raises(SchemaTooNew, match="run 'newer': the log has version"):
        archive(place.store, "newer", tmp_path / "newer.zst")


def test_a_store_without_runs_has_nothing_to_verify(place: Place) -> None:
    assert place.sample().check() == doctor.Check("Logs of runs", "all 0 runs verified", None)
