"""The inbox of a PostgreSQL store: what many sessions do to it at once, and what older versions left in it."""

import threading

import psycopg
import pytest

from holdfast.errors import RequestExists, RunOver
from holdfast.storage import leases, schema
from holdfast.storage.contract import Along, Holder, Query, Request
from holdfast.storage.postgres.store import PostgresStore
from holdfast.testing.appends import Log, Time, hooked, raises
from postgres_server import drop_schema, execute, schema_for, shared_url

ME = Holder(id="me", ttl_s=30.0)
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{}%'"


@pytest.fixture
def name(tmp_path):
    yield schema_for(tmp_path)
    drop_schema(shared_url(), schema_for(tmp_path))


@pytest.fixture
def postgres(name):
    opened = []

    def open_one(**options):
        opened.append(PostgresStore(shared_url(), schema=name, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def begun(postgres):
    """A store with the run "r1", which it holds, and the log of that run."""
    store, log = postgres(), Log("r1", holder="me", fence=1)
    store.renew(ME)
    created = log.create()
    assert store.append([created]) == [None]
    log.wrote(created)
    return store, log


def run_until_it_waits(name, call):
    """Call a function in a thread, and return the thread when a lock of another session keeps it waiting."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while execute(shared_url(), WAITING.format(name)) == [(0,)]:
        assert thread.is_alive(), "it did not wait"
    return thread


@pytest.mark.parametrize("extra", [{}, {"definition": b"flow"}], ids=["lone statement", "transaction"])
def test_the_end_of_a_run_waits_for_a_request_that_is_being_posted(begun, name, extra):
    store, log = begun
    verdicts = []
    last = log.next(status="completed", release=True, **extra)
    queries = schema.queries("postgres", name)
    with psycopg.connect(shared_url(), cursor_factory=psycopg.RawCursor) as session:
        ((run,),) = session.execute(queries["lock_run"], ["r1"]).fetchall()
        session.execute(queries["post"], [run, "q", "signal", '{"n":1}', None, None, 1.0, b""])
        thread = run_until_it_waits(name, lambda: verdicts.extend(store.append([last])))
    thread.join(20)
    assert verdicts == [None]
    assert [(r.id, r.taken, r.unmet) for r in store.inbox(run_id="r1")] == [("q", 3, True)]


@pytest.mark.parametrize("extra", [{}, {"definition": b"flow"}], ids=["lone statement", "transaction"])
def test_a_request_waits_for_the_append_that_ends_the_run_and_is_refused(begun, postgres, name, extra):
    store, log = begun
    other, refused = postgres(), []
    assert store.post("r1", Request(id="early", verb="signal"))

    def ask():
        try:
            other.post("r1", Request(id="late", verb="signal"))
        except RunOver as error:
            refused.append(error.run_id)

    with psycopg.connect(shared_url()) as session:
        session.execute(
            f'select from "{name}".inbox for update'
        )  # the append stops where it closes the inbox
        last = log.next(status="completed", release=True, **extra)
        ending = run_until_it_waits(name, lambda: store.append([last]))
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        while execute(shared_url(), WAITING.format(name)) != [(2,)]:
            assert asking.is_alive(), "the request did not wait"
    ending.join(20)
    asking.join(20)
    assert refused == ["r1"]
    assert [(r.id, r.unmet) for r in store.inbox(run_id="r1")] == [("early", True)]


def test_a_step_waits_for_no_request_that_is_being_posted(begun, name):
    store, log = begun
    with psycopg.connect(shared_url(), cursor_factory=psycopg.RawCursor) as session:
        session.execute(schema.queries("postgres", name)["lock_run"], ["r1"])
        assert store.append([log.next(status="waiting", release=True)]) == [None]


@pytest.mark.parametrize(("verb", "expected"), [("signal", False), ("cancel", RequestExists)])
def test_a_batch_waits_for_a_request_of_it_that_is_being_posted_and_is_judged_after_it(
    begun, name, verb, expected
):
    store, _ = begun
    posted = []
    batch = [Request(id="q", verb=verb, run_id="r1"), Request(id="other", verb=verb, run_id="r1")]
    queries = schema.queries("postgres", name)
    with psycopg.connect(shared_url(), cursor_factory=psycopg.RawCursor) as session:
        ((run,),) = session.execute(queries["lock_run"], ["r1"]).fetchall()
        session.execute(queries["post"], [run, "q", "signal", "{}", None, None, 1.0, None])
        thread = run_until_it_waits(name, lambda: posted.extend(store.queues.post_all(batch)))
    thread.join(20)
    first, second = posted
    assert (first if isinstance(first, bool) else type(first)) is expected
    assert second is True
    assert [(r.id, r.verb) for r in store.inbox(run_id="r1")] == [("q", "signal"), ("other", verb)]


@pytest.mark.parametrize(("verb", "expected"), [("signal", [False]), ("cancel", ["signal"])])
def test_a_request_waits_for_another_with_its_id_that_is_being_posted(begun, name, verb, expected):
    store, _ = begun
    got = []

    def ask():
        try:
            got.append(store.post("r1", Request(id="q", verb=verb, body={"n": 1})))
        except RequestExists as error:
            got.append("signal" if "(signal)" in str(error) else str(error))

    queries = schema.queries("postgres", name)
    with psycopg.connect(shared_url(), cursor_factory=psycopg.RawCursor) as session:
        ((run,),) = session.execute(queries["lock_run"], ["r1"]).fetchall()
        session.execute(queries["post"], [run, "q", "signal", '{"n":1}', None, None, 1.0, None])
        thread = run_until_it_waits(name, ask)
    thread.join(20)
    assert got == expected


def test_the_end_of_a_run_reads_few_pages_where_many_requests_were_handled(postgres, name):
    postgres()
    close = f'select "{name}".close_inbox(8, 9)'
    sent = (
        f'insert into "{name}".inbox (run, id, verb, body, at, run_id, flow, queue, priority, taken) '
        "select n % 7, n, 'signal', '', 1, n % 7, 'flow', 'default', 0, "
    )
    execute(
        shared_url(),
        f'alter table "{name}".inbox set (autovacuum_enabled = off)',
        sent + "0 from generate_series(1, 5) as n",
        f'analyze "{name}".inbox',
    )
    with psycopg.connect(shared_url(), autocommit=True) as session:
        for _ in range(7):
            session.execute(close)  # its plan is made, and kept, while the table is small
        execute(shared_url(), sent + "2 from generate_series(6, 20000) as n")
        explained = session.execute(f"explain (analyze, buffers, format json) {close}")
        plan = explained.fetchone()[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100


def test_requests_that_an_older_version_left_to_runs_that_are_over_are_unmet(postgres, name):
    execute(
        shared_url(),
        f'create schema "{name}"',
        *schema.migrations("postgres", name)[:7],
        f"insert into \"{name}\".meta (name, value) values ('schema_version', '7')",
    )
    for status in ("running", "completed", "cancelled", "failed"):
        execute(
            shared_url(),
            f'with made as (insert into "{name}".runs (run_id, flow, input_digest, labels, created_at, status, seq, digest,'
            " updated_at, fingerprint, state_version, fence)"
            f" values ('{status}', 'flow', '', '{{}}', 1, '{status}', 9, '', 1, 'print', 1, 0) returning key)"
            f' insert into "{name}".inbox (run, id, verb, body, at, taken)'
            " select key, id, 'signal', body, 1, taken from made,"
            " (values (1, 'handled', '', 7), (2, 'waits', '{\"name\":\"n\"}', 0)) as sent(n, id, body, taken) order by n",
        )
    store = postgres()
    for status in ("running", "failed"):
        assert [(r.id, r.taken, r.unmet) for r in store.inbox(run_id=status)] == [
            ("handled", 7, False),
            ("waits", 0, False),
        ]
    for status in ("completed", "cancelled"):
        assert [(r.id, r.body, r.taken, r.unmet) for r in store.inbox(run_id=status)] == [
            ("handled", {}, 7, False),
            ("waits", {}, 9, True),
        ]
    # What an older version stored has no digest: only the verb can be compared.
    assert not store.post("running", Request(id="waits", verb="signal", body={"name": "other"}))
    with raises(RequestExists, "(signal)"):
        store.post("running", Request(id="waits", verb="cancel"))


def test_a_large_request_is_sent_as_a_whole(begun):
    """A pipeline of psycopg sends what fits into the buffer of the socket, and then waits for the reply."""
    store, _ = begun
    for number in range(4):
        body = {"payload": f"{number}" * 3_000_000}
        assert store.post("r1", Request(id=f"large {number}", verb="signal", body=body))
    assert [len(one.body["payload"]) for one in store.inbox("me")] == [3_000_000] * 4


# --- requests that come with an append ----------------------------------------------------------------

NOTE = Request(id="note", verb="note", body={"text": "late"})
STRAYS = 'select count(*) from "{}".inbox where taken = 0'


@pytest.fixture
def posting(postgres):
    """A store with a clock, and a function that posts NOTE to a run with an append, and calls another function before the commit
    of that append.
    """
    clock = Time()
    store, other = postgres(clock=clock), postgres(clock=clock)
    store.renew(ME)
    log = Log("sender", holder="me", fence=1)

    def post(run_id, meanwhile):
        def act(reached):
            if reached == "append.written" and (call := pending.pop() if pending else None):
                call(other)

        pending = [meanwhile]
        append = log.create(along=Along(posts=((run_id, NOTE),)))
        with hooked(act):
            assert store.append([append]) == [None]

    return store, clock, post


def end(log):
    return lambda store: store.append([log.next(status="completed", release=True)])


@pytest.fixture
def ending(posting):
    """The run "ends", which has not ended yet."""
    log = Log("ends", holder="me", fence=1)
    created = log.create()
    assert posting[0].append([created]) == [None]
    log.wrote(created)
    return log


def test_a_run_ends_without_waiting_for_a_request_that_comes_with_an_append(posting, ending, name):
    store, _, post = posting
    post("ends", end(ending))
    assert execute(shared_url(), STRAYS.format(name)) == [(1,)]  # nothing else has seen it yet
    assert store.run("ends").status == "completed"
    (request,) = store.inbox(run_id="ends")
    assert (request.id, request.taken, request.unmet, request.body) == ("note", 3, True, {})
    assert store.queues.waiting(["ends"]) == []
    assert store.inbox("me") == []
    assert store.runs(Query(offered=True)) == []


def test_a_request_that_came_while_its_run_ended_does_not_keep_the_run_from_being_deleted(
    posting, ending, name
):
    store, _, post = posting
    post("ends", end(ending))
    assert not store.upkeep.delete({"ends": 3})
    assert execute(shared_url(), f'select count(*) from "{name}".inbox') == [(0,)]


def test_requests_that_no_run_can_take_are_closed_in_time(posting, ending, name):
    store, clock, post = posting
    post("ends", end(ending))
    store.renew(ME)
    assert execute(shared_url(), STRAYS.format(name)) == [(1,)]
    clock.pass_s(leases.FORGETS_S + 1)
    store.renew(ME)
    columns = f'select taken, unmet, body from "{name}".inbox'
    assert execute(shared_url(), columns) == [(3, True, "")]
    assert store.inbox(run_id="ends")[0].unmet


def test_a_request_that_came_while_its_run_was_deleted_is_deleted_in_time(posting, ending, name):
    store, clock, post = posting

    def delete(other):
        end(ending)(other)
        assert not other.upkeep.delete({"ends": 3})

    post("ends", delete)
    assert execute(shared_url(), STRAYS.format(name)) == [(1,)]
    clock.pass_s(leases.FORGETS_S + 1)
    store.renew(ME)
    assert execute(shared_url(), f'select count(*) from "{name}".inbox') == [(0,)]
