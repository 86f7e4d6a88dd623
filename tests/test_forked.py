"""A process that is forked from the server is like one that the interpreter has started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every process gets a real start")

LOOK = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ), "path": sys.path, "parent": os.getppid(),
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1], "input": sys.stdin.read(),
    "signals": {str(one): str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "main": __name__, "buffered": sys.stdout.line_buffering,
    "encoding": [sys.stdout.encoding, sys.stderr.errors],
    "left": [name for name in ("serve", "become", "asked") if name in vars(sys.modules["__main__"])],
}))
"""
WAYS = (["-c", LOOK, "a", "--b"], ["look.py", "a", "--b"], ["-m", "look", "a", "--b"])


@pytest.mark.parametrize("words", WAYS, ids=["code", "file", "module"])
def test_a_program_sees_the_same_as_after_a_real_start(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK, "utf-8")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "here:" + str(tmp_path / "there"), "OWN": "ü"}
    environment |= {name: os.environ[name] for name in forked.SETTINGS if name in os.environ}
    seen: list[dict[str, Any]] = []
    for run in (subprocess.run, forked.run):
        done = run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            input="given",
            text=True,
            capture_output=True,
            check=True,
        )
        seen.append(json.loads(done.stdout))
    started, by_fork = seen
    assert by_fork == started
    assert by_fork["parent"] == os.getpid()


def test_a_process_has_a_session_of_its_own_and_the_files_that_it_was_given() -> None:
    listen, say = os.pipe()
    code = f"import os; os.write({say}, str(os.getsid(0) == os.getpid()).encode())"
    process = forked.Popen([sys.executable, "-c", code], pass_fds=[say])
    os.close(say)
    with os.fdopen(listen) as pipe:
        assert pipe.read() == "True"
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("import os; os._exit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("1 / 0", 1, 'File "<string>", line 1, in <module>'),
        ("import threading; threading.Thread(target=lambda: print('later')).start()", 0, ""),
        ("import atexit; atexit.register(print, 'at the end'); raise SystemExit('no')", 1, "no"),
        ("class A:\n def __del__(self): print('gone')\na = A()\nb = A()\nb.itself = b", 0, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')", 120, "No space left"),
    ],
)
def test_a_process_ends_as_after_a_real_start(code: str, status: int, error: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    seen = [
        run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        for run in (subprocess.run, forked.run)
    ]
    assert [done.returncode for done in seen] == [status, status]
    assert seen[0].stdout == seen[1].stdout
    # From Python 3.13 on, a traceback shows the lines of a program that was given on the command line.
    shown = [re.sub(r"^    .*\n", "", done.stderr, flags=re.MULTILINE) for done in seen]
    assert shown[0] == shown[1]
    assert error in seen[1].stderr


def test_what_the_server_cannot_give_gets_a_real_start() -> None:
    own = "import sys; print('holdfast.cli.app' in sys.modules, sys.flags.dev_mode)"
    assert forked.run([sys.executable, "-c", own], capture_output=True).stdout.split()[0] == b"True"
    started = forked.run([sys.executable, "-X", "dev", "-c", own], capture_output=True).stdout
    assert started.split() == [b"False", b"True"]
    changed = {**os.environ, "PYTHONHASHSEED": "7"}
    assert (
        forked.run([sys.executable, "-c", own], env=changed, capture_output=True).stdout.split()[0]
        == b"False"
    )
    assert forked.run(["echo", "hello"], capture_output=True).stdout == b"hello\n"


def test_the_server_keeps_nothing_of_a_process_that_has_ended() -> None:
    before = forked.run(
        [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"], capture_output=True
    )
    for _ in range(20):
        forked.run([sys.executable, "-c", ""])
    own = f"/proc/{forked._server.process.pid}"
    assert len(os.listdir(f"{own}/fd")) < 8
    assert Path(f"{own}/task/{forked._server.process.pid}/children").read_text() == ""
    assert before.returncode == 0
