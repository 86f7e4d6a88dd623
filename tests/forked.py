"""Start Python programs from tests in a tenth of the time: `forked.Popen` and `forked.run` are those of `subprocess`, except that
the process is forked from a server that has imported Holdfast already (`fork_server.py`, one for each test worker).

Everything else is as if the interpreter had been started: the process is a child of the test, and has a session, files, an
environment and signals of its own. What the server cannot give (options of the interpreter, a shell, `LD_PRELOAD`), or a system
that is not Linux, gets a real start. Tests that are about the start itself use `subprocess`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import inspect
import json
import os
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fork_server.py")
SETTINGS = ("LANG", "LC_ALL", "LC_CTYPE", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONIOENCODING")
"""Variables that the interpreter reads when it starts: a process in which one differs gets a real start."""
UNDERSTOOD = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", *SETTINGS}
_PR_SET_CHILD_SUBREAPER = 36
_FIELDS = inspect.signature(subprocess.Popen._execute_child)
_REFUSED = ("executable", "shell", "gid", "gids", "uid")


class _Server:
    """The fork server of this test worker, which is started when it is first needed and ends with the worker."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: socket.socket | None = None

    def connect(self) -> socket.socket:
        if self.connection is None:
            self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            number = other.fileno()
            self.process = subprocess.Popen(
                [sys.executable, str(SERVER), str(number)], pass_fds=[number], start_new_session=True
            )
            other.close()
            atexit.register(self.process.wait)
            atexit.register(self.connection.close)  # the server ends, and is waited for
            assert self.connection.recv(32) == b"ready", "the fork server failed to start"
        return self.connection

    def fork(self, request: dict[str, Any], files: dict[int, int]) -> int:
        """Return the process id of a new child of this process. `files`: the number in the child, and the file here."""
        body = json.dumps({**request, "files": list(files)}).encode()
        with self.lock:
            connection = self.connect()
            # Only now: an orphan of another process that a test has killed must not become a child of this one.
            _set_subreaper(1)
            try:
                socket.send_fds(connection, [body], list(files.values()))
                return int(connection.recv(32))
            finally:
                _set_subreaper(0)


def _set_subreaper(value: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0)


_server = _Server()


def take_terminal() -> None:
    """Make stdin the terminal of this session, so that Ctrl-C reaches the process. `preexec_fn` may be this function."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _can_fork(asked: dict[str, Any], environment: dict[str, str]) -> bool:
    words = asked["args"]
    if (
        sys.platform != "linux"
        or not isinstance(words, list | tuple)
        or [str(word) for word in words[:1]] != [sys.executable]
    ):
        return False
    if any(asked[name] not in {None, False} for name in _REFUSED) or asked["umask"] != -1 or len(words) < 2:
        return False
    if asked["preexec_fn"] not in {None, take_terminal}:
        return False
    unknown = {name for name in environment if name.startswith("PYTHON")} - UNDERSTOOD
    changed = [name for name in SETTINGS if environment.get(name) != os.environ.get(name)]
    return not unknown and not changed and (words[1] in {"-c", "-m"} or not str(words[1]).startswith("-"))


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, with a process that is forked from the server where that is possible."""

    def _execute_child(self, *given: Any) -> None:
        asked = _FIELDS.bind(self, *given).arguments
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        if not _can_fork(asked, environment):
            super()._execute_child(*given)
            return
        streams = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        files = {number: number if file == -1 else file for number, file in enumerate(streams)}
        files |= {number: number for number in asked["pass_fds"]}
        request = {
            "words": [str(word) for word in asked["args"][1:]],
            "terminal": asked["preexec_fn"] is take_terminal,
            "folder": os.path.abspath(asked["cwd"] or "."),
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        }
        self.pid = _server.fork(request, files)
        self._child_created = True
        self._close_pipe_fds(
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def run(
    words: list[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, with such a process."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
