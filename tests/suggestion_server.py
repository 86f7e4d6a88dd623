"""Runs commands of Holdfast, each in a child of a process that has imported everything: `suggestions` asks for them.

Requests and answers are JSON lines on stdin and stdout:

    {"words": ["resume", "r", "work.py"], "folder": "/tmp/…", "environment": {…}, "seconds": 2.0}
    {"code": 0, "said": "completed  r …"}        code null: the command did not end in time, and was killed
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import threading
from typing import Any

from holdfast.cli.app import app
from holdfast.cli.catalogue import BY_NAME


def run(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            _be_the_command(request, said.fileno())
        late = threading.Timer(request["seconds"], os.kill, (pid, signal.SIGKILL))
        late.start()
        _, status = os.waitpid(pid, 0)
        was_late = not late.is_alive() or late.finished.is_set()
        late.cancel()
        late.join()
        code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return {"code": None if was_late and code == -signal.SIGKILL else code, "said": text}


def _be_the_command(request: dict[str, Any], said: int) -> None:
    os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 70
    try:
        app(request["words"], prog_name="holdfast")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for name in BY_NAME:
        app_of(name)
    gc.collect()
    gc.freeze()  # the children share the memory of what is imported here
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def app_of(name: str) -> None:
    """Import the module of a command."""
    from importlib import import_module

    import_module(f"holdfast.cli.{BY_NAME[name].module}")


if __name__ == "__main__":
    main()
