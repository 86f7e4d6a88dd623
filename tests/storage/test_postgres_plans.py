"""What a look for runs to claim reads does not depend on how many runs there are, nor on what PostgreSQL's planner knows of
them. Counted in pages, as the server counts them: no time is measured.
"""

import psycopg
import pytest

from holdfast.storage import schema
from holdfast.storage.postgres.store import PostgresStore
from postgres_server import drop_schema, execute, schema_for, shared_url

MANY = 6_000
PAGES_MAX = 100
"""For a look among few or many. Reading all rows, or an index over all of them, takes several hundred."""

RUNS = """
insert into "{name}".runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                           state_version, fence, due_at)
select '{status}' || to_char(n, '00000'), 'flow', '', '{{}}', n, '{status}', 1, '', n, 'print', 1, 0, {due_at}
from generate_series(1, {count}) as n
"""


@pytest.fixture
def name(tmp_path):
    name = schema_for(tmp_path)
    PostgresStore(shared_url(), schema=name).close()
    # Statistics are what a test makes them: nobody gathers them meanwhile.
    execute(shared_url(), f'alter table "{name}".runs set (autovacuum_enabled = off)')
    yield name
    drop_schema(shared_url(), name)


def record(name, status, count, due_at="null"):
    execute(shared_url(), RUNS.format(name=name, status=status, count=count, due_at=due_at))


def analyze(name):
    execute(shared_url(), f'analyze "{name}".runs')


def pages(name, query, values):
    """What a query reads, once its plan is made."""
    sql = schema.queries("postgres", name)[query]
    with psycopg.connect(shared_url(), cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(sql, values)
        connection.rollback()
        explained = connection.execute("explain (analyze, buffers, format json) " + sql, values)
        told = explained.fetchone()[0][0]["Plan"]
        connection.rollback()
    return told["Shared Hit Blocks"] + told["Shared Read Blocks"]


def offers(name):
    return pages(name, "offers", (["flow"], None, [], None, 33))


def next_due(name):
    return pages(name, "next_due", (["flow"], None, [], [], []))


def unknown(name):
    record(name, "pending", MANY)


def well_known(name):
    unknown(name)
    analyze(name)


def known_from_when_all_had_ended(name):
    record(name, "completed", MANY)
    analyze(name)
    record(name, "pending", MANY)


def known_after_a_long_history(name):
    known_from_when_all_had_ended(name)
    analyze(name)


KNOWN = [unknown, well_known, known_from_when_all_had_ended, known_after_a_long_history]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.__name__)
def test_a_look_among_many_pending_runs_reads_few_pages_whatever_is_known_of_them(name, known):
    known(name)
    assert offers(name) < PAGES_MAX


def test_a_look_among_as_many_priorities_as_runs_reads_pages_for_those_that_are_wanted(name):
    record(name, "pending", MANY)
    execute(shared_url(), f'update "{name}".runs set priority = key')
    wanted = 33
    assert offers(name) < PAGES_MAX + 10 * wanted


@pytest.mark.parametrize("status", ["waiting", "pending"])
@pytest.mark.parametrize("analyzed", [False, True])
def test_the_next_of_many_runs_that_wait_for_a_time_is_found_in_few_pages(name, analyzed, status):
    record(name, status, MANY, due_at="2e10 + n")
    if analyzed:
        analyze(name)
    assert next_due(name) < PAGES_MAX
    assert offers(name) < PAGES_MAX


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_look_among_many_runs_with_requests_reads_few_pages(name, analyzed):
    record(name, "failed", MANY)
    asked = f"""
    insert into "{name}".inbox (run, id, verb, body, at, taken, run_id, flow, queue, priority)
    select key, 'q', 'resume', '{{}}', key, 0, run_id, flow, queue, priority from "{name}".runs
    """
    execute(shared_url(), f'alter table "{name}".inbox set (autovacuum_enabled = off)', asked)
    if analyzed:
        analyze(name)
        execute(shared_url(), f'analyze "{name}".inbox')
    assert offers(name) < PAGES_MAX + 10 * 33


def test_a_look_at_followed_runs_does_not_read_the_others(name):
    record(name, "running", MANY)
    few = [f"running {number:05d}" for number in range(1, 6)]
    assert pages(name, "feed", (few, [0] * 5, 200)) < PAGES_MAX
    analyze(name)
    assert pages(name, "feed", (few, [0] * 5, 200)) < PAGES_MAX


@pytest.mark.parametrize("known", [unknown, well_known])
def test_closing_requests_that_no_run_can_take_passes_no_other_runs(name, known):
    record(name, "completed", MANY)
    known(name)
    assert pages(name, "close_strays", ()) < PAGES_MAX
