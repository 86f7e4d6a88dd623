"""Connections that are cut at many bytes of a take, an append, a claim and a release: whoever gets no reply holds the run or
does not, and finds out. No run is lost, none is carried on by two, no append is written in part, and no lease is kept by a
process that does not know of it.
"""

import asyncio
import itertools
import random
import time
from contextlib import contextmanager

import pytest

import holdfast as hf
from cutting_proxy import CuttingProxy
from holdfast import END, START, Graph
from holdfast.errors import FenceLost, RunHeld, StoreBusy
from holdfast.runtime.holdings import Renewal
from holdfast.storage.contract import Along, Holder, Query, Request
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.storage.rows import open_row
from holdfast.testing.appends import Log
from postgres_server import PostgresServer, execute

ME = Holder(id="me", ttl_s=3000.0)
RIVAL = Holder(id="rival", ttl_s=3000.0)
WANTED = Wanted(flows=("flow",), limit=5)
CUTS = 25
"""Of each verb in each direction, and as many again at its end, where the reply to its commit is."""
PARTS = 4
"""Each test cuts at every fourth of these places: together they cut at all."""
PATIENCE_S = 120
GROUNDS = itertools.count()


class Proxy(CuttingProxy):
    """Counts what it passes on."""

    def __init__(self, server_folder):
        self.passed = {"to_server": 0, "from_server": 0}
        super().__init__(server_folder)

    def _allowed(self, direction, count):
        self.passed[direction] += count
        return super()._allowed(direction, count)

    def measured(self, direction, use):
        """How many bytes this takes."""
        before = self.passed[direction]
        use()
        return self.passed[direction] - before


class Repeating(CuttingProxy):
    """Cuts again and again, each time after another number of bytes, until it is told to stop."""

    def __init__(self, server_folder, luck):
        self._luck = luck
        self.cuts = 0
        self.going = True
        super().__init__(server_folder)
        self._left = {"to_server": 9000, "from_server": 9000}

    def _allowed(self, direction, count):
        allowed = super()._allowed(direction, count)
        with self._lock:
            if not self.going:
                return count
            if self._left[direction] is None:
                self._left[direction] = self._luck.randrange(4000, 16000)
                self.cuts += 1
        return allowed


@pytest.fixture(scope="module")
def server():
    own = PostgresServer()
    yield own
    own.remove()


class Ground:
    """A store behind the proxy, another beside it, and the leases of the first as an engine keeps them."""

    def __init__(self, server, schema):
        self.proxy = Proxy(server.folder)
        self.direct = PostgresStore(server.url(), schema=schema)
        self.store = PostgresStore(self.proxy.url(), schema=schema)
        self.direct.renew(RIVAL)  # whoever is there is told of in every take
        self.executes = set()
        self.renewal = Renewal(
            self.store, ME, lost=lambda: None, executes=lambda run_id: run_id in self.executes, quiet=True
        )
        self.logs = {}
        self.lost = False
        """Whether the last that was cut got no reply."""
        self._url = server.url()
        self._numbers = itertools.count()

    def backends(self):
        asked = "select pid from pg_stat_activity where application_name = 'holdfast'"
        return {pid for (pid,) in execute(self._url, asked)}

    @contextmanager
    def cut(self, direction, offset):
        """Cut the connection there. Behind it the server has done what it had heard to do: a commit may come after its cut."""
        before = self.backends()
        self.proxy.cut(direction, offset)
        try:
            yield
        except StoreBusy:
            until = time.monotonic() + PATIENCE_S
            while before <= self.backends():
                assert time.monotonic() < until, "no connection has ended"
            self.lost = True
        else:
            self.lost = False
        self.proxy.cut(direction, None)

    def new_run(self):
        run_id = f"r{next(self._numbers)}"
        log = self.logs[run_id] = Log(run_id)
        append = log.create(status="pending")
        assert self.direct.append([append]) == [None]
        log.wrote(append)
        return run_id

    def held(self):
        return [lease.run_id for lease in self.direct.queues.held_by(ME.id)]

    def renewed(self):
        """As two renewals do: one that sees what is held and not known, and one that gives it back."""
        self.renewal.renew()
        self.renewal.renew()

    def finish(self, run_id, holder, fence):
        """Carry a run on to its end: whoever may."""
        log = self.logs[run_id]
        log.holder, log.fence = holder.id, fence
        append = log.next(b"1", status="completed", release=True)
        (verdict,) = self.direct.append([append])
        if verdict is None:
            log.wrote(append)
        return verdict

    def require_well(self):
        """Every run was carried on once, to its end, and nobody holds anything."""
        runs = self.direct.runs(Query(limit=1000))
        assert {row.run_id for row in runs} == set(self.logs)
        assert {(row.status, row.seq, row.held) for row in runs} == {("completed", 2, False)}
        assert self.held() == []

    def close(self):
        self.store.close()
        self.direct.close()
        self.proxy.__exit__()


@pytest.fixture(params=["to_server", "from_server"])
def direction(request):
    return request.param


@pytest.fixture
def ground(server, request, direction):
    made = Ground(server, f"cut_{request.node.originalname[5:15]}_{direction}_{next(GROUNDS)}")
    yield made
    made.close()


@pytest.fixture(params=range(PARTS))
def cuts(request, ground, direction):
    """Some of the places to cut at, over all that a verb sends and a little more; each on connections that are there already."""

    def places(use):
        use()
        total = max(ground.proxy.measured(direction, use) for _ in range(3))
        all_of_them = {*range(0, total, max(1, total // CUTS)), *range(total - 2 * CUTS, total + 2, 2)}
        for offset in sorted(all_of_them)[request.param :: PARTS]:
            use()
            yield offset

    return places


@pytest.mark.rotating
def test_a_take_without_a_reply_is_given_back_and_its_run_carried_on_once(ground, direction, cuts):
    def whole():
        run_id = ground.new_run()
        (taken,) = ground.store.queues.take(ME, WANTED)
        assert taken.lease.run_id == run_id
        assert ground.finish(run_id, ME, taken.lease.fence) is None

    granted = refused = 0
    for offset in cuts(whole):
        run_id = ground.new_run()
        with ground.cut(direction, offset):
            taken = ground.store.queues.take(ME, WANTED)
        if not ground.lost:
            assert [one.lease.run_id for one in taken] == [run_id]
            assert ground.finish(run_id, ME, taken[0].lease.fence) is None
            continue
        ground.renewal.doubt()
        held = ground.held() == [run_id]
        granted, refused = granted + held, refused + (not held)
        others = ground.direct.queues.take(RIVAL, WANTED)
        assert [one.lease.run_id for one in others] == ([] if held else [run_id])
        ground.renewed()
        assert ground.held() == [], "held by a process that does not know of it"
        others = others or ground.direct.queues.take(RIVAL, WANTED)
        (lease,) = [one.lease for one in others]
        assert isinstance(ground.finish(run_id, ME, lease.fence - 1), FenceLost)
        assert ground.finish(run_id, RIVAL, lease.fence) is None
    assert granted if direction == "from_server" else refused
    ground.require_well()


@pytest.mark.rotating
def test_an_append_without_a_reply_has_changed_all_its_runs_or_none(ground, direction, cuts):
    numbers = itertools.count()
    caller, target = (Log(name, holder=ME.id, fence=1) for name in ("caller", "target"))
    ground.direct.renew(ME)
    for log in (caller, target):
        created = log.create()
        assert ground.direct.append([created]) == [None]
        log.wrote(created)

    def family():
        name = f"child-{next(numbers)}"
        starts = tuple(Log(f"{name}-{which}").create(origin="caller") for which in "ab")
        posts = (("target", Request(id=name, verb="note", body={})),)
        return name, caller.next(along=Along(starts=starts, posts=posts))

    def whole():
        _, append = family()
        assert ground.store.append([append]) == [None]
        caller.wrote(append)

    written = lost = 0
    for offset in cuts(whole):
        name, append = family()
        with ground.cut(direction, offset):
            assert ground.store.append([append]) == [None]
        kept = ground.direct.appended("caller", append.rows[0].seq, append.rows[0].salt)
        assert kept or ground.lost
        started = [row.run_id for row in ground.direct.runs(Query(prefix=f"{name}-", limit=9))]
        posted = [one.id for one in ground.direct.inbox(run_id="target") if one.id == name]
        assert (len(started), len(posted)) == ((2, 1) if kept else (0, 0))
        written, lost = written + (kept and ground.lost), lost + (not kept)
        if kept:
            caller.wrote(append)
    assert written if direction == "from_server" else lost


@pytest.mark.rotating
def test_a_claim_without_a_reply_is_given_back_and_its_run_carried_on_once(ground, direction, cuts):
    def whole():
        run_id = ground.new_run()
        assert ground.finish(run_id, ME, ground.store.claim(run_id, ME).fence) is None

    granted = refused = 0
    for offset in cuts(whole):
        run_id = ground.new_run()
        with ground.cut(direction, offset):
            lease = ground.store.claim(run_id, ME)
        if not ground.lost:
            assert ground.finish(run_id, ME, lease.fence) is None
            continue
        ground.renewal.doubt()
        held = ground.held() == [run_id]
        granted, refused = granted + held, refused + (not held)
        if held:
            with pytest.raises(RunHeld):
                ground.direct.claim(run_id, RIVAL)
        ground.renewed()
        assert ground.held() == [], "held by a process that does not know of it"
        lease = ground.direct.claim(run_id, RIVAL)
        assert isinstance(ground.finish(run_id, ME, lease.fence - 1), FenceLost)
        assert ground.finish(run_id, RIVAL, lease.fence) is None
    assert granted if direction == "from_server" else refused
    ground.require_well()


@pytest.mark.rotating
def test_a_release_without_a_reply_is_owed_until_it_is_done(ground, direction, cuts):
    def whole():
        run_id = ground.new_run()
        ground.store.release(run_id, ME.id, ground.direct.claim(run_id, ME).fence)
        assert ground.finish(run_id, RIVAL, ground.direct.claim(run_id, RIVAL).fence) is None

    done = undone = 0
    for offset in cuts(whole):
        run_id = ground.new_run()
        lease = ground.direct.claim(run_id, ME)
        ground.executes.add(run_id)
        with ground.cut(direction, offset):
            ground.store.release(run_id, ME.id, lease.fence)
        if ground.lost:
            held = ground.held() == [run_id]
            done, undone = done + (not held), undone + held
            ground.renewal.owe(run_id, lease.fence)
        ground.renewal.renew()
        assert ground.held() == []
        (taken,) = ground.direct.queues.take(RIVAL, WANTED)
        assert isinstance(ground.finish(run_id, ME, lease.fence), FenceLost)
        assert ground.finish(run_id, RIVAL, taken.lease.fence) is None
        ground.renewal.owe(run_id, lease.fence)  # what is owed twice takes nothing from anybody
        ground.renewal.renew()
    assert done if direction == "from_server" else undone
    ground.require_well()


def test_a_claim_that_is_granted_long_after_its_connection_was_lost_is_given_back_too(ground):
    """A commit may wait for a disk or a replica; whoever asked has looked meanwhile, and found nothing."""
    run_id = ground.new_run()
    ground.renewal.doubt()
    ground.renewed()
    assert ground.held() == []
    ground.direct.claim(run_id, ME)  # now it is granted, and nobody hears of it
    ground.renewed()
    assert ground.held() == [], "held by a process that does not know of it"
    (taken,) = ground.direct.queues.take(RIVAL, WANTED)
    assert ground.finish(run_id, RIVAL, taken.lease.fence) is None


# --- workers -----------------------------------------------------------------------------------------

RUNS = 60


def test_workers_whose_connections_are_cut_all_the_time_carry_every_run_on_once(server):
    graph = Graph("cut", dict)
    executed = []

    @graph.node
    async def first(state, ctx):
        executed.append((ctx.run_id, "first", ctx.attempt))
        return {"first": 1}

    @graph.node
    async def second(state, ctx):
        executed.append((ctx.run_id, "second", ctx.attempt))
        return {"second": state["first"] + 1}

    flow = graph.chain(START, first, second, END).compile()
    told = []

    async def main(proxy, direct, url):
        ids = {f"r{number}" for number in range(RUNS)}

        def over():
            return len(direct.runs(Query(status=("completed",), limit=1000))) == RUNS

        async with (
            hf.Engine(url, flows=[flow], lease_ttl=3) as one,
            hf.Engine(url, flows=[flow], lease_ttl=3) as two,
            hf.Engine(direct.url, flows=[flow]) as starter,
        ):
            working = [
                asyncio.create_task(engine.work(concurrency=5, until=over, on_report=told.append))
                for engine in (one, two)
            ]
            for run_id in sorted(ids):
                await starter.start(flow, {}, run_id=run_id)
            await asyncio.gather(*working)
            assert [row.run_id for row in direct.runs(Query(limit=1000)) if row.held] == []
            proxy.going = False

    direct = PostgresStore(server.url(), schema="cut_workers")
    try:
        with Repeating(server.folder, random.Random(5)) as proxy:
            asyncio.run(
                asyncio.wait_for(main(proxy, direct, f"{proxy.url()}&schema=cut_workers"), PATIENCE_S)
            )
            assert proxy.cuts > 20
        for row in direct.runs(Query(limit=1000)):
            events = [(event.kind, event.node) for event in direct.events(row.run_id)]
            assert [events.count(("NodeCompleted", node)) for node in ("first", "second")] == [1, 1]
            assert (
                open_row(direct.events(row.run_id)[-1], direct.blobs).event.__class__.__name__
                == "RunCompleted"
            )
        assert len(executed) == len(set(executed)), "an attempt was executed twice"
        assert len({(run_id, node) for run_id, node, _ in executed}) == 2 * RUNS
    finally:
        direct.close()
