"""SIGKILL at every failpoint of a run, and of a resume, with real processes on a real SQLite file.

For each point there is a process that dies there and one that carries the run on. Then the state is that of an
uninterrupted run, the log verifies, and nothing that the dead process had recorded ran again: by the witness file, to
which node bodies write beside Holdfast.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forked
from holdfast.core.events import Stored
from holdfast.errors import RunNotFound
from holdfast.reading import history, verification
from holdfast.storage.failpoints import FAILPOINTS, OF_TOKENS, OF_UPKEEP
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore

PROGRAM = Path(__file__).parent / "programs" / "report.py"
RUN_ID = "report"
KILLED = -9
REFUSED = 3
AT_ONCE = 4

VISITS = 11
"""plan, two pages, and twice write, style, spell and judge."""
APPENDS = {"threads": 12, "inline": 12}
"""One append for the beginning, and one for each end together with what it starts."""

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class Servers:
    """Interpreters that have Holdfast loaded, and fork a process for each call."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for _ in range(AT_ONCE):
            command = [sys.executable, str(PROGRAM), "serve"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._idle.put(forked.Popen(command, text=True, env=ENVIRONMENT, **pipes))

    def call(self, *arguments: object) -> int:
        """Exit code of a process of its own with these arguments; -9: it was killed."""
        server = self._idle.get()
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())
        finally:
            self._idle.put(server)

    def close(self) -> None:
        for _ in range(AT_ONCE):
            server = self._idle.get()
            server.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()


class Place:
    """A store and its witness, in a folder of their own."""

    def __init__(self, folder: Path, servers: Servers, schedule: str) -> None:
        folder.mkdir()
        self.store = folder / "runs.db"
        self.witness = folder / "witness"
        self.counted = folder / "reached"
        self.schedule = schedule
        self._servers = servers

    def call(self, verb: str, *options: object) -> int:
        return self._servers.call(verb, self.store, self.witness, self.schedule, *options)

    def count(self, verb: str) -> list[str]:
        """The failpoints that a process reaches that does not die."""
        self.call(verb, "--count", self.counted)
        reached: list[str] = json.loads(self.counted.read_text())
        return reached

    def carry_on(self) -> None:
        """A process that was killed before the first commit has left no run; then it is begun, otherwise resumed."""
        assert self.call("resume" if self.has_run() else "run") == 0

    def seen(self) -> list[tuple[str, int, int | None]]:
        """Node, iteration and item of every body that began, in order."""
        lines = self.witness.read_text().splitlines() if self.witness.exists() else []
        return [(node, iteration, item) for node, iteration, item, _, _ in map(json.loads, lines)]

    def has_run(self) -> bool:
        with self.opened() as store:
            try:
                store.run(RUN_ID)
            except RunNotFound:
                return False
            return True

    def log(self) -> list[Stored]:
        if not self.has_run():
            return []
        with self.opened() as store:
            return [open_row(row, store.blobs) for row in store.events(RUN_ID)]

    def recorded(self) -> list[tuple[str, int, int | None]]:
        """What the log says was completed: nodes, and items of fan-outs."""
        return [
            (stored.event.node, stored.event.iteration, getattr(stored.event, "item", None))
            for stored in self.log()
            if stored.kind in ("NodeCompleted", "ItemCompleted")
        ]

    def final(self) -> tuple[str, dict[str, Any]]:
        """Status and state, after the stored run was found to be what was written."""
        with self.opened() as store:
            verdict = verification.verify(store, RUN_ID)
            assert verdict.problems == []
            state = history.load(store, RUN_ID)
            return state.status, state.values

    @contextmanager
    def opened(self) -> Iterator[SqliteStore]:
        store = SqliteStore(self.store)
        try:
            yield store
        finally:
            store.close()


@pytest.fixture(params=["threads", "inline"])
def places(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Callable[[object], Place]:
    return lambda name: Place(tmp_path / str(name), servers, request.param)


def each(numbers: range, check: Callable[[int], None]) -> None:
    """Check all of them, a few at a time; the first failure is raised with its number."""

    def numbered(number: int) -> None:
        try:
            check(number)
        except BaseException as error:
            error.add_note(f"killed at failpoint {number}")
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(numbered, numbers))


def assert_like(place: Place, uninterrupted: Place) -> None:
    assert place.final() == uninterrupted.final()
    once = Counter(place.recorded())
    assert once == Counter(uninterrupted.recorded())
    assert set(once.values()) == {1}


def killed_at(place: Place, verb: str, number: int) -> None:
    """Kill a process there, carry the run on, and hold it to what was recorded before the kill."""
    assert place.call(verb, "--die", number) == KILLED
    recorded, seen = set(place.recorded()), place.seen()
    place.carry_on()
    again = place.seen()[len(seen) :]
    assert recorded.isdisjoint(again)
    assert set(place.recorded()) <= {*recorded, *again, ("read", 1, None)}


def test_a_run_reaches_its_failpoints_in_the_same_order_every_time(places) -> None:
    one, other = places("one"), places("other")
    reached = one.count("run")
    assert reached == other.count("run")
    count = Counter(reached)
    assert count["node.enter"] == count["node.exit"] == VISITS == len(one.seen())
    assert (
        count["append.before"]
        == count["append.written"]
        == count["append.committed"]
        == APPENDS[one.schedule]
    )
    assert count["renew.before"] == count["renew.committed"] == 2  # it comes, and it leaves
    assert len(reached) == 2 * VISITS + 3 * APPENDS[one.schedule] + 4


@pytest.mark.rotating
def test_a_run_killed_at_any_failpoint_is_carried_on_to_the_same_end(places) -> None:
    whole = places("whole")
    reached = whole.count("run")
    assert whole.final()[0] == "completed"

    def check(number: int) -> None:
        place = places(number)
        killed_at(place, "run", number)
        assert_like(place, whole)

    each(range(1, len(reached) + 1), check)


@pytest.mark.rotating
def test_a_resume_killed_at_any_failpoint_is_resumed_to_the_same_end(places) -> None:
    whole = places("whole")
    reached = whole.count("run")
    cut = middle_of_second_loop(reached)
    resumed = places("resumed")
    assert resumed.call("run", "--die", cut) == KILLED
    points = resumed.count("resume")
    assert {"claim.before", "claim.committed", "append.before", "node.enter"} <= set(points)
    assert_like(resumed, whole)

    def check(number: int) -> None:
        place = places(number)
        assert place.call("run", "--die", cut) == KILLED
        killed_at(place, "resume", number)
        assert_like(place, whole)

    each(range(1, len(points) + 1), check)


def middle_of_second_loop(reached: list[str]) -> int:
    """The failpoint at the end of the third node of the second time round: `style` and `spell` are on their way."""
    ends = [number for number, name in enumerate(reached, 1) if name == "node.exit"]
    return ends[8]


@pytest.mark.rotating
def test_a_process_killed_while_it_gives_a_lease_back_keeps_nobody_out(places) -> None:
    whole = places("whole")
    cut = middle_of_second_loop(whole.count("run"))
    refused = places("refused")
    assert refused.call("run", "--die", cut) == KILLED
    points = refused.count("refuse")
    assert {"release.before", "release.committed"} <= set(points)

    def check(number: int) -> None:
        place = places(number)
        assert place.call("run", "--die", cut) == KILLED
        assert place.call("refuse", "--die", number) == KILLED
        place.carry_on()
        assert_like(place, whole)

    each(range(1, len(points) + 1), check)


@pytest.mark.parametrize(("point", "left"), [("post.before", 0), ("post.committed", 1)])
def test_a_request_is_in_the_inbox_or_not_at_all_when_its_sender_is_killed(
    places, point: str, left: int
) -> None:
    place = places("posted")
    assert place.call("run", "--die", middle_of_second_loop(places("whole").count("run"))) == KILLED
    number = ["post.before", "post.committed"].index(point) + 1
    assert place.call("post", "--die", number) == KILLED
    with place.opened() as store:
        holder = store.run(RUN_ID).holder
        assert holder is not None
        assert len(store.inbox(holder.id)) == left
    place.call("resume")
    assert place.call("resume") == 0
    assert place.final()[0] == "completed"


def test_every_failpoint_there_is_was_tried_here(places) -> None:
    whole, cut_short = places("whole"), places("cut")
    reached = set(whole.count("run"))
    assert cut_short.call("run", "--die", 20) == KILLED
    for verb in ("refuse", "post", "resume"):
        reached |= set(cut_short.count(verb))
    # Those of pruning and backups are tried in test_care.py.
    assert reached == {name for name in FAILPOINTS if not name.startswith((OF_TOKENS, *OF_UPKEEP))}
