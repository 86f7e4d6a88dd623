"""A real pgbouncer in transaction mode in front of a PostgreSQL server of the tests, if the program is installed.

Debian and Ubuntu have it as the package `pgbouncer`; HOLDFAST_TEST_PGBOUNCER may name another program. Without pgbouncer the
tests that need it are skipped, and say so.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from postgres_server import _system_user

PROGRAM = os.environ.get("HOLDFAST_TEST_PGBOUNCER") or shutil.which(
    "pgbouncer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
)
WHY_NOT = (
    "NOT TESTED BEHIND A POOL: there is no pgbouncer here. Install it (Debian: pgbouncer), or name it in "
    "HOLDFAST_TEST_PGBOUNCER"
)
PATIENCE_S = 30.0
CONFIG = """
[databases]
* = host={server} user=postgres

[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
server_login_retry = 1
max_client_conn = 500
default_pool_size = {pool}
logfile = {folder}/log
pidfile = {folder}/pid
"""


class PgBouncer:
    """A running pgbouncer: it shares `pool` connections to a server, one transaction at a time, and listens on a socket in a
    folder of its own.
    """

    def __init__(self, server_folder, pool=4):
        assert PROGRAM is not None
        self.folder = Path(tempfile.mkdtemp(prefix="hf-pool-", dir="/tmp"))
        user = _system_user()
        if user is not None:
            shutil.chown(self.folder, user)
        config = CONFIG.format(server=server_folder, folder=self.folder, pool=pool)
        (self.folder / "pgbouncer.ini").write_text(config)
        self._process = subprocess.Popen(
            [PROGRAM, "--quiet", str(self.folder / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **({"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}),
        )  # fmt: skip
        atexit.register(self.remove)
        self._wait()

    def url(self, database="postgres", **options):
        told = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@/{database}?host={self.folder}&port=6432{told}"

    def _wait(self):
        until = time.monotonic() + PATIENCE_S
        while not self._answers():
            log = self.folder / "log"
            assert self._process.poll() is None, (
                log.read_text() if log.exists() else "pgbouncer exited at once"
            )
            assert time.monotonic() < until, "pgbouncer does not answer"

    def _answers(self):
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
