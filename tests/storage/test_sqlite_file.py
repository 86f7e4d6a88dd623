"""What is true of the SQLite store only: its file, its processes, its disk."""

import os
import random
import re
import signal
import stat
import string
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from holdfast.errors import (
    RequestExists,
    RunHeld,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StorePoisoned,
    StoreUnusable,
)
from holdfast.storage import rows, schema
from holdfast.storage.contract import Holder, Position, Query, Request
from holdfast.storage.files import disk
from holdfast.storage.leases import this_process
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.uptime import Uptime
from holdfast.testing.appends import Log, raises

ME = Holder(id="me", ttl_s=30.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def open_store(path):
    opened = []

    def open_one(at=path, **options):
        opened.append(SqliteStore(at, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def written(store, count=1):
    """A run of so many appends."""
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    for _ in range(count):
        append = (log.next if log.seq else log.create)()
        assert store.append([append]) == [None]
        log.wrote(append)
    return log


# --- the file ----------------------------------------------------------------------------------------


def test_the_files_and_a_missing_folder_are_made_for_their_owner_only(tmp_path, open_store):
    previous = os.umask(0)
    try:
        written(open_store(tmp_path / "new" / "deep" / "runs.db"))
    finally:
        os.umask(previous)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").rglob("*")}
    assert modes == {"deep": 0o700, "runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_closed_database_is_one_file(path, open_store):
    store = open_store()
    written(store, 50)
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


def test_every_write_is_synced(open_store):
    store = open_store()
    for connection in (store._database._writer, *store._database._readers.idle):
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == 2


def test_the_log_of_the_database_does_not_grow_without_bound(path, open_store):
    store = open_store()
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    for _ in range(600):
        append = (log.next if log.seq else log.create)(os.urandom(20_000))
        store.append([append])
        log.wrote(append)
    assert Path(f"{path}-wal").stat().st_size < 8_000_000 < path.stat().st_size


def test_a_step_of_1_kb_takes_1600_bytes_at_most(path, open_store):
    luck = random.Random(7)
    store = open_store()
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    for _ in range(1000):
        text = "".join(luck.choices(string.ascii_letters + string.digits, k=1000))
        append = (log.next if log.seq else log.create)(b'{"append":{"pages":["%s"]}}' % text.encode(), b"")
        assert store.append([append]) == [None]
        log.wrote(append)
    store.close()
    assert path.stat().st_size <= 1_600_000


def test_requests_that_an_older_version_left_to_runs_that_are_over_are_unmet(path):
    connection = apsw.Connection(str(path))
    for migration in schema.migrations("sqlite")[:4]:
        connection.execute(migration)
    for key, status in enumerate(("running", "completed", "cancelled", "failed"), 1):
        connection.execute(
            "insert into runs (key, run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,"
            " state_version, fence) values (?1, ?2, 'flow', x'', '{}', 1, ?2, 9, x'', 1, 'print', 1, 0)",
            (key, status),
        )
        connection.executemany(
            "insert into inbox (run, id, verb, body, at, taken) values (?1, ?2, 'signal', ?3, 1, ?4)",
            [(key, "handled", "", 7), (key, "waits", '{"name":"n"}', 0)],
        )
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 4)
    connection.close()
    store = SqliteStore(path)
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
    store.close()


def test_the_end_of_a_run_looks_only_at_requests_that_wait(path):
    store = SqliteStore(path)
    for query, values in (("close_inbox", (1, 2)), ("close_inboxes", ("[[1,2]]",))):
        sql = schema.queries("sqlite")[query]
        plan = [row[3] for row in store._database._writer.execute(f"explain query plan {sql}", values)]
        assert any("INDEX inbox_waiting (run=?)" in step for step in plan), plan
    store.close()


def test_the_schema_is_the_sum_of_the_migrations():
    def made_by(*scripts):
        connection = apsw.Connection(":memory:")
        for script in scripts:
            connection.execute(script)
        found = connection.execute("select type, name, sql from sqlite_schema order by type, name").fetchall()
        return {
            (kind, name): re.sub(r"\s*([(),\s])\s*", r"\1", re.sub(r"--.*", "", sql or ""))
            for kind, name, sql in found
        }

    written_down = (Path(schema.__file__).parent / "sqlite" / "sql" / "schema.sql").read_text()
    assert made_by(*schema.migrations("sqlite")) == made_by(written_down)


def test_every_query_is_used_and_sound(open_store):
    folder = Path(schema.__file__).parent
    walks = (folder / "walks.py").read_text()
    source = "".join(file.read_text() for file in folder.glob("sqlite/*.py"))
    connection = open_store()._database._writer
    for name, sql in schema.queries("sqlite").items():
        is_part = f'"{name}"' in walks or name == "run_of_id"  # a part of a statement, which listings use
        assert is_part or f'"{name}"' in source, f"{name} is used nowhere"
        if not is_part and name not in ("begin", "begin_reading", "commit", "rollback"):
            connection.execute(f"explain {sql}", (None,) * len(set(re.findall(r"\?\d+", sql))))


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        ({}, "runs_by_age"),
        ({"flow": "f"}, "runs_by_flow"),
        ({"parent": "r"}, "runs_by_parent"),
        ({"status": ("running",)}, "runs_by_status"),
        ({"status": ("running", "failed")}, "runs_by_status"),
        ({"flow": "f", "status": ("running", "failed")}, "runs_by_flow"),
        ({"queue": "q"}, "runs_by_queue"),
        ({"asks": True}, "runs_asking"),
        ({"labels": {"a": "b"}}, "SEARCH labels USING PRIMARY KEY"),
        ({"labels": {"a": "b"}, "after": Position(1.0, "r")}, "AND created_at>? AND created_at<?)"),
        ({"ids": ("r",)}, "(run_id=?)"),
        ({"prefix": "r"}, "(run_id>? AND run_id<?)"),
        ({"created": (1.0, 2.0)}, "runs_by_age"),
    ],
)
def test_a_listing_goes_by_an_index(open_store, conditions, index):
    store = open_store()
    plans = []
    selected = store._database.select

    def explained(sql, values):
        plans.extend(str(row) for row in selected(f"explain query plan {sql}", values))
        return selected(sql, values)

    store._database.select = explained
    store.runs(Query(**conditions))
    told = " ".join(plans)
    assert index in told
    assert "SCAN runs" not in told


# --- files that cannot be used -----------------------------------------------------------------------


def test_a_newer_schema_is_refused_and_left_alone(path, open_store):
    open_store().close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 999)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=r"runs\.db.*999.*newer"):
        open_store()
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(path, open_store):
    connection = apsw.Connection(str(path))
    connection.execute("create table theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"runs\.db is a SQLite database of another program"):
        open_store()
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(path, open_store):
    path.write_text("once upon a time\n" * 300)
    with pytest.raises(StoreCorrupt, match=r"runs\.db is not a SQLite database\. Choose"):
        open_store()
    assert path.read_text() == "once upon a time\n" * 300


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_database_is_found(path, open_store, share):
    store = open_store()
    written(store, 300)
    store.close()
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StoreCorrupt, match=r"runs\.db is damaged"):
        open_store()


def test_a_database_that_was_cut_to_nothing_beside_its_log_is_found(path, open_store):
    store = open_store()
    written(store, 3)
    left_behind = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("-wal",)}
    store.close()
    path.write_bytes(b"")
    for suffix, content in left_behind.items():
        Path(f"{path}{suffix}").write_bytes(content)
    with pytest.raises(StoreCorrupt, match="is empty, but its write-ahead log"):
        open_store()


def test_damaged_pages_are_told_by_check_or_by_reading(path, open_store):
    open_store().close()
    empty_pages = path.stat().st_size // 4096
    store = open_store()
    written(store, 300)
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(empty_pages, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    store = open_store()
    assert store.check()
    with pytest.raises(StoreCorrupt, match=r"runs\.db is damaged"):
        store.events("r1")


def test_a_log_that_is_longer_than_its_run_says_is_refused_and_its_neighbours_are_written(open_store):
    store = open_store()
    log = written(store, 2)
    store._database._writer.execute("update runs set seq = seq - 1")
    damaged = Log("r1", holder="me", fence=1, seq=log.seq - 1).next()
    verdicts = store.append([Log("r2").create(), damaged, Log("r3").create()])
    assert [type(verdict) for verdict in verdicts] == [type(None), StoreCorrupt, type(None)]
    assert {run.run_id for run in store.runs(Query())} == {"r1", "r2", "r3"}
    assert len(store.events("r1")) == log.seq


@pytest.mark.parametrize("place", ["/proc/runs.db", "/dev/null/runs.db", "/dev/full/deep/runs.db"])
def test_a_path_that_cannot_be_written_is_refused(place):
    with pytest.raises(StoreUnusable, match=re.escape(place) + r".*Choose a path"):
        SqliteStore(place)


def test_a_folder_is_no_store(tmp_path):
    with pytest.raises(StoreUnusable, match=r"is a folder\. Give the store the path of a file"):
        SqliteStore(tmp_path)


def test_a_file_that_is_removed_or_replaced_in_use_takes_no_more_writes(path, open_store, monkeypatch):
    monkeypatch.setattr("holdfast.storage.sqlite.database._LOOK_S", 0.0)
    store = open_store()
    log = written(store)
    path.rename(path.with_name("moved.db"))
    with pytest.raises(StoreUnusable, match=r"runs\.db was removed or replaced"):
        store.append([log.next()])
    path.write_bytes(b"")
    with pytest.raises(StoreUnusable, match=r"runs\.db was removed or replaced"):
        store.renew(ME)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "fuse.sshfs", "9p"])
def test_network_file_systems_are_told_from_local_ones(kind):
    mounts = (
        "41 40 0:42 / /mnt/far\\040away/near rw - tmpfs tmpfs rw\n"
        f"40 22 0:41 / /mnt/far\\040away rw shared:5 - {kind} host:/x rw\n"
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    )
    assert disk.file_system("/mnt/far away/runs", mounts) == kind
    assert kind in disk.NETWORK_FILE_SYSTEMS
    assert disk.file_system("/mnt/far away", mounts) == kind
    assert disk.file_system("/mnt/far away/near/runs", mounts) == "tmpfs"
    assert disk.file_system("/mnt/far awayish", mounts) == "ext4"


def test_a_network_file_system_is_refused_unless_allowed(path, monkeypatch):
    monkeypatch.setattr(disk, "file_system", lambda folder, mounts: "nfs4")
    with pytest.raises(StoreUnusable, match=r"network file system \(nfs4\).*HOLDFAST_ALLOW_NETWORK_FS=1"):
        SqliteStore(path)
    assert not path.exists()
    monkeypatch.setenv("HOLDFAST_ALLOW_NETWORK_FS", "1")
    SqliteStore(path).close()


# --- a disk that fails -------------------------------------------------------------------------------


class SickDisk(apsw.VFS):
    """A disk that works until it is told what to fail at."""

    fault = None

    def __init__(self):
        super().__init__("sick", "")

    def xOpen(self, name, flags):  # noqa: N802
        return SickFile(self, name, flags)


class SickFile(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self.disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags):  # noqa: N802
        if self.disk.fault == "sync":
            raise apsw.IOError("the disk did not sync")
        super().xSync(flags)

    def xWrite(self, data, offset):  # noqa: N802
        if self.disk.fault == "full":
            raise apsw.FullError("the disk is full")
        super().xWrite(data, offset)


@pytest.fixture
def sick():
    vfs = SickDisk()
    yield vfs
    vfs.fault = None
    vfs.unregister()


def test_a_full_disk_refuses_the_batch_and_works_again_when_there_is_space(open_store, sick):
    store = open_store(vfs="sick")
    log = written(store, 3)
    before = store.run("r1"), store.events("r1")
    sick.fault = "full"
    for _ in range(3):
        with pytest.raises(StoreFull, match=r"no space left for .*runs\.db.*Free some space and resume"):
            store.append([log.next(), Log("r2").create()])
        assert (store.run("r1"), store.events("r1")) == before
        assert len(store.runs(Query())) == 1
    sick.fault = None
    assert store.append([log.next(), Log("r2").create()]) == [None, None]
    assert store.check() == []


def test_a_failed_sync_poisons_the_store_for_good(open_store, sick, path):
    store = open_store(vfs="sick")
    log = written(store, 3)
    sick.fault = "sync"
    unknown = log.next()
    with pytest.raises(StorePoisoned, match=r"runs\.db.*unknown.*restart the process"):
        store.append([unknown])
    sick.fault = None
    for write in (lambda: store.append([unknown]), lambda: store.renew(ME), lambda: store.claim("r1", ME)):
        with pytest.raises(StorePoisoned):
            write()
    with pytest.raises(StorePoisoned):
        store.appended("r1", unknown.rows[0].seq, unknown.rows[0].salt)
    assert len(store.events("r1")) == log.seq
    store.close()
    again = open_store()
    kept = again.appended("r1", unknown.rows[0].seq, unknown.rows[0].salt)
    assert len(again.events("r1")) == log.seq + len(unknown.rows) * kept
    assert again.check() == []


# --- several processes -------------------------------------------------------------------------------


def child(script, *arguments):
    """Another process that runs this, with a store module at hand; it says what it does in lines."""
    prelude = (
        "import sys, os, signal\n"
        "from holdfast.storage.sqlite.store import SqliteStore\n"
        "from holdfast.storage.contract import *\n"
        "from holdfast.storage.leases import this_process\n"
        "from holdfast.testing.appends import Log\n"
        "from holdfast.errors import *\n"
        "say = lambda *words: print(*words, flush=True)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def ended(process):
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said.split()


def test_many_processes_may_make_a_store_at_once(path, open_store):
    script = """
for number in range(40):
    sys.stdin.readline()
    store = SqliteStore(f"{sys.argv[1]}{number}")
    store.append([Log(sys.argv[2]).create()])
    store.close()
    say("made")
"""
    makers = [child(script, path, f"r{number}") for number in range(6)]
    for _ in range(40):
        for maker in makers:
            maker.stdin.write("go\n")
            maker.stdin.flush()
        assert [maker.stdout.readline() for maker in makers] == ["made\n"] * 6
    for maker in makers:
        ended(maker)
    for number in range(40):
        store = open_store(f"{path}{number}")
        assert len(store.runs(Query())) == 6
        store.close()


def test_processes_that_compete_for_a_log_leave_one_chain(path, open_store):
    store = open_store()
    written(store)
    script = """
store, wins = SqliteStore(sys.argv[1]), 0
while wins < 40:
    run = store.run("r1")
    log = Log("r1", holder="me", fence=1, seq=run.seq, digest=run.digest)
    wins += store.append([log.next()]) == [None]
store.close()
"""
    for process in [child(script, path) for _ in range(3)]:
        ended(process)
    events = store.events("r1")
    assert len(events) == 1 + 3 * 40 * 2
    assert rows.broken_at("r1", events, after=0, digest=b"") is None
    assert store.check() == []


WRITE_FOR_EVER = """
store, me = SqliteStore(sys.argv[1]), this_process(3600.0)
store.renew(me)
log = Log("r1", holder=me.id, fence=1)
while True:
    append = (log.next if log.seq else log.create)(b"x" * 3000, b"")
    assert store.append([append]) == [None]
    log.wrote(append)
    say(log.seq)
"""


@pytest.mark.parametrize("after", [1, 20, 300])
def test_what_was_acknowledged_survives_sigkill_and_the_dead_holder_is_taken_over_at_once(
    path, open_store, after
):
    writer = child(WRITE_FOR_EVER, path)
    said = [writer.stdout.readline() for _ in range(after)]
    writer.kill()
    said += [line for line in writer.stdout if line.endswith("\n")]
    acknowledged = int(said[-1])
    writer.wait()
    writer.stdin.close()
    writer.stdout.close()
    store = open_store()
    run, events = store.run("r1"), store.events("r1")
    assert run.seq >= acknowledged
    assert [row.seq for row in events] == list(range(1, run.seq + 1))
    assert rows.broken_at("r1", events, after=0, digest=b"") is None
    assert run.digest == events[-1].digest
    assert not run.held
    lease = store.claim("r1", this_process(30.0))
    assert (lease.fence, lease.seq) == (2, run.seq)


def test_a_live_process_keeps_its_run_and_a_stopped_one_is_fenced_off(path, open_store):
    holding = child(
        """
store, me = SqliteStore(sys.argv[1]), this_process(30.0)
store.renew(me)
log = Log("r1", holder=me.id, fence=1)
append = log.create()
store.append([append])
log.wrote(append)
say(os.getpid())
sys.stdin.readline()
say(type(store.append([log.next()])[0]).__name__)
store.close()
""",
        path,
    )
    pid = int(holding.stdout.readline())
    now, passed = [0.0], [0.0]
    store = open_store(clock=lambda: now[0])
    store._database._uptime = Uptime(read_clock=lambda clock: time.clock_gettime(clock) + passed[0])
    for now[0] in (0.0, time.time(), 1e11):  # the clock of the machine counts, not that of a process
        with pytest.raises(RunHeld, match=str(pid)):
            store.claim("r1", this_process(30.0))
    os.kill(pid, signal.SIGSTOP)
    passed[0] = 31.0
    assert store.claim("r1", this_process(30.0)).fence == 2
    os.kill(pid, signal.SIGCONT)
    assert holding.communicate("go\n", timeout=60)[0].split() == ["FenceLost"]


def test_a_database_that_is_locked_for_too_long_is_busy_and_reads_go_on(path, open_store):
    store = open_store(busy_timeout_s=0.2)
    log = written(store)
    locking = child(
        """
import apsw
other = apsw.Connection(sys.argv[1])
other.execute("begin immediate")
say("locked")
sys.stdin.readline()
other.execute("rollback")
other.close()
""",
        path,
    )
    assert locking.stdout.readline() == "locked\n"
    with pytest.raises(StoreBusy, match=r"runs\.db was locked by another process.*Try again"):
        store.append([log.next()])
    again = open_store(busy_timeout_s=0.2)  # another opening of the same store in one command
    with pytest.raises(StoreBusy) as told:
        again.append([log.next()])
    seconds = float(re.search(r"for ([\d.]+) s\.", str(told.value))[1])
    assert seconds >= 0.4  # in all
    assert len(store.events("r1")) == 1
    locking.communicate("go\n", timeout=60)
    assert store.append([log.next()]) == [None]


def test_the_live_database_is_never_opened_by_python(path):
    """Closing such a handle would drop SQLite's locks. The one exception creates the file, exclusively."""
    opened = ended(
        child(
            """
flags = []
sys.addaudithook(lambda event, args: flags.append(args[2]) if event == "open" and "runs.db" in str(args[0]) else None)
for _ in range(2):
    store, me = SqliteStore(sys.argv[1]), this_process(30.0, "me")
    store.renew(me)
    store.append([Log(f"r{_}", holder=me.id).create()])
    store.claim("r0", me), store.runs(Query()), store.events("r0"), store.check()
    store.close()
say(*[bool(flag & os.O_EXCL) for flag in flags])
""",
            path,
        )
    )
    assert set(opened) == {"True"}


def test_the_application_id_tells_a_store_from_other_databases(path, open_store):
    open_store().close()
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"HFST"
