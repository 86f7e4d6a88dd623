"""A process that has imported Holdfast and forks the Python processes that tests start: `forked.py` sends the requests.

A request is what the interpreter would get (words, folder, environment, open files). The child becomes a process as the test
wants it: a session, files, an environment and signals of its own, and a new `__main__`. It is not a child of this process but
of the test: an intermediate process forks it and ends, and the test has declared itself the parent of its orphans.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import termios
import threading
import time
import types
from contextlib import suppress
from typing import Any

import holdfast

REQUEST_BYTES_MAX = 1 << 18
FILES_MAX = 16
SPARE = 100
"""Files that a request brings are moved to this number and above, before they get the numbers that the child knows."""

FRESH = ("testing", "__main__", "demo_flow", "suggestion")
"""Modules with these words in their names are not imported here: they read the environment, or few programs need them."""


def import_holdfast() -> None:
    """Import what a process of a test would import, and keep it where children share its memory."""
    for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not any(word in found.name for word in FRESH):
            importlib.import_module(found.name)
    for name in ("aiohttp", "psycopg", "uvicorn", "uvloop", "yaml"):
        importlib.import_module(name)
    for name in ("pydantic.type_adapter", "typer._adapters", "typer._click.decorators"):
        with suppress(ImportError):  # the command line imports them if Typer has them
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket, paths: list[str]) -> dict[str, Any] | None:
    """Fork a child for each request and send its process id. Returns in a child, with its request; None when the test ends."""
    while True:
        body, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, FILES_MAX)
        if not body:
            return None
        listen, say = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                while os.getppid() == parent:
                    os.sched_yield()  # until it is a child of the test
                connection.close()
                request = json.loads(body)
                become(request, files, paths)
                return request
            os.write(say, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(listen, 32))
        for number in (listen, say, *files):
            os.close(number)


def become(request: dict[str, Any], files: list[int], paths: list[str]) -> None:
    """Make this process what the request says, except for the program that it executes."""
    os.setsid()
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) not in {signal.SIG_DFL, None} and number not in {
            signal.SIGPIPE,
            signal.SIGXFSZ,
        }:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    take_files(dict(zip(request["files"], files, strict=True)))
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    found = os.environ.get("PYTHONPATH", "")
    sys.path[:] = ["", *(os.path.abspath(path) for path in found.split(os.pathsep) if path), *paths]
    sys.orig_argv[:] = [sys.executable, *request["words"]]
    open_streams()


def take_files(wanted: dict[int, int]) -> None:
    """Give each file the number under which the child knows it, and close all others."""
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, SPARE) for number, file in wanted.items()}
    for number, file in moved.items():
        os.dup2(file, number)
    last = 2
    for number in sorted(moved):
        os.closerange(last + 1, number) if number > last else None
        last = max(last, number)
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX") if last > SPARE else SPARE * 4)


def open_streams() -> None:
    """Replace the streams of the server by streams over the files of the child, as the interpreter opens them."""
    encoding, direct = sys.stdout.encoding, bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name, errors in (
        (0, "stdin", "strict"),
        (1, "stdout", "strict"),
        (2, "stderr", "backslashreplace"),
    ):
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        buffered: Any = io.BufferedReader(raw) if number == 0 else raw if direct else io.BufferedWriter(raw)
        line_by_line = number == 2 or raw.isatty()
        stream = io.TextIOWrapper(
            buffered,
            encoding,
            errors,
            newline=None if number == 0 else "\n",
            line_buffering=line_by_line,
            write_through=direct,
        )
        raw.name = f"<{name}>"
        stream.mode = raw.mode[0]  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def execute(words: list[str]) -> None:
    """Execute the program as the interpreter does: `-m module`, `-c code` or a file, each as a new `__main__`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = words[1:]
        runpy._run_module_as_main(words[1])
        return
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        code = compile(words[1], "<string>", "exec")
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
        main.__dict__["__file__"] = os.path.abspath(words[0])
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


def run(words: list[str]) -> None:
    """Execute the program and end the process. A fault that nobody caught is printed without the frames of this file."""
    code: Any = None
    try:
        execute(words)
    except SystemExit as ended:
        code = ended.code
    except Exception as fault:
        frames = fault.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(fault), fault.with_traceback(frames), frames)
        code = 1
    if code is None or isinstance(code, int):
        end(code or 0)
    sys.exit(code)


def end(code: int) -> None:
    """End the process as the interpreter does: wait for its threads, call what was registered, drop the objects of the program
    and write what is buffered. What the server has imported is not taken apart, which would take ten times as long as the fork.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter tries again, says so and has an exit code for it
    os._exit(code & 0xFF)


if __name__ == "__main__":
    # The folder of this file is not on the path of a child, nor is what PYTHONPATH has added for the server.
    own = {os.path.dirname(__file__), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    rest = [path for path in sys.path if path not in own]
    import_holdfast()
    with socket.socket(fileno=int(sys.argv[1])) as door:
        door.send(b"ready")
        asked = serve(door, rest)
    if asked is not None:
        run(asked["words"])
