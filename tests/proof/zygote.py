"""A process that has imported everything, and serves requests. It forks a child for a request in which the process may die: so
a death does not cost the start of a new interpreter. A simulated death does not even need a child: from then on no call changes
the disk, and no report is sent.

Requests are JSON lines on stdin, answers JSON lines on stdout. With the shim preloaded the process can be made to fail; without
it, it inspects the disk. The sender decides which of both a request needs.

    {"do": "prepare" | "perform" | "finish" | "inspect", "operation": …, "disk": …, "day": 1, "fork": true, "armed": true,
     "played": false, "point": 0, "mode": "count", "record": "", "randomness": "", "pragmas": {}, "accounts": [[…]]}
    {"status": 0 | -9, "said": [lines], "points": 12, "problems": [], "cpu_s": 1.5}
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import shim
from along_operations import post_apart
from hands import Hands, Operation, Teller, remember, shrink
from inspection import Account, inspect, inspect_end, sound
from operations import OPERATIONS, finish
from processes import Known, contents, digest

from holdfast.documents import files
from holdfast.errors import HoldfastError
from holdfast.storage.files import disk as disks

KILLED = -9
TIDY_EVERY = 20
"""After how many requests the garbage collector runs. Without it the tasks and stores of old requests stay in memory: every
event loop goes through them when it closes, and every fork copies their pages.
"""


class Complaints(logging.Handler):
    """Collects what an event loop logs about callbacks that raise; it would be lost otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))


complaints = Complaints()
logging.getLogger("asyncio").addHandler(complaints)
logging.getLogger("asyncio").propagate = False


def answer(request: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Carry out a request, and send the reports of the operation to `say`."""
    teller = Teller(say, early=bool(request.get("early")))
    told: dict[str, Any] = {"points": 0}
    complaints.heard.clear()
    try:
        if request["do"] == "inspect":
            told["problems"] = examine(request)
        else:
            work(request, teller)
    except HoldfastError as fault:
        # A refused verb was already reported by the teller; an inspection must not be refused.
        told["problems"] = [f"{type(fault).__name__}: {fault}"]
    except BaseException:
        teller.defect(traceback.format_exc(limit=-6))
    for complaint in complaints.heard:
        teller.defect(complaint)
    if request.get("armed"):
        told["points"], told["status"] = shim.count(), KILLED if shim.is_dead() else 0
        shim.disarm()
    return told


def work(request: dict[str, Any], teller: Teller) -> None:
    disk = Path(request["disk"])
    hands = Hands(disk, teller, request.get("day", 1), request.get("pragmas", {}))
    operation = OPERATIONS[request["operation"]]
    if request.get("no_folder_sync"):
        disks.sync_folder = files.sync_folder = lambda folder: None
    if request.get("apart"):
        post_apart()
    if request.get("armed"):
        record = request.get("record")
        handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if record else -1
        shim.arm(
            str(disk),
            point=request.get("point", 0),
            mode=request.get("mode", shim.COUNT),
            record=handle,
            randomness=request.get("randomness", ""),
            played=bool(request.get("played")),
        )
    {"prepare": operation.prepare, "perform": operation.perform, "finish": carry_on(operation)}[
        request["do"]
    ](hands)


def carry_on(operation: Operation) -> Callable[[Hands], None]:
    return partial(finish, operation=operation)


well = Known()
"""The disks whose runs were resumed to their end without a problem, and how the operation wants that."""


def examine(request: dict[str, Any]) -> list[str]:
    """Inspect a disk; if the request says so, also resume its runs to their end, and inspect it again. The first inspection folds
    the WAL into the database, so many crashes lead to the same disk: from there on, the work is done once.
    """
    disk = Path(request["disk"])
    problems = inspect(disk, [Account.of(lines) for lines in request["accounts"]])
    if problems or not request.get("finish"):
        return problems
    operation = OPERATIONS[request["operation"]]
    repeated = request["operation"] if operation.again else ""
    left = f"{digest(contents(disk))} {operation.files} {operation.asks} {repeated}"
    if left not in well:
        problems = finish_and_look(request, operation, disk)
        if not problems:
            well.add(left)
    return problems


def finish_and_look(request: dict[str, Any], operation: Operation, disk: Path) -> list[str]:
    said: list[str] = []
    try:
        carry_on(operation)(Hands(disk, Teller(said.append), request["day"]))
    except HoldfastError as fault:
        return [f"the runs cannot be resumed: {type(fault).__name__}: {fault}"]
    mine = Account.of(said)
    problems = [f"after resuming the runs: {line}" for line in inspect(disk, [mine])]
    return problems + inspect_end(disk, files=operation.files, asks=operation.asks)


def here(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request in this process, which will not die of it. SQLite's random generator restarts, as in a new process."""
    apsw.randomness(0)
    said: list[str] = []

    def say(line: str) -> None:
        if not (request.get("played") and shim.is_dead()):
            said.append(line)

    told = answer(request, say)
    return {"status": 0, "said": said, **told}


def in_child(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request in a child process. Return its reports, and how it ended."""
    listen, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(listen)
        recording = bool(request.get("record"))

        def say(line: str) -> None:
            os.write(out, line.encode() + b"\n")
            if recording:
                shim.mark(line)

        try:
            told = answer(request, say)
            os.write(out, msgspec.json.encode({"answer": told}) + b"\n")
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(listen, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    _, status = os.waitpid(pid, 0)
    told = msgspec.json.decode(lines.pop())["answer"] if lines and lines[-1].startswith('{"answer"') else {}
    return {**told, "status": os.waitstatus_to_exitcode(status), "said": lines}


def warm_up() -> None:
    """Do everything once, so that no child must import modules, compile queries or record runs; then freeze the garbage
    collector, so that children share this memory.
    """
    remember()
    for operation in OPERATIONS.values():
        with tempfile.TemporaryDirectory() as folder:
            disk = Path(folder).resolve()
            for day, do in enumerate((operation.prepare, operation.perform, carry_on(operation))):
                do(Hands(disk, Teller(lambda line: None), day))
            inspect(disk, [])
            inspect_end(disk, files=operation.files, asks=operation.asks)
    gc.collect()
    gc.freeze()
    gc.disable()


def main(known: Path) -> None:
    warm_up()
    for checked in (sound, well):
        checked.share(known)
    for number, line in enumerate(sys.stdin):
        request = msgspec.json.decode(line)
        told = (in_child if request.get("fork") else here)(request)
        print(msgspec.json.encode({**told, "cpu_s": cpu_s()}).decode(), flush=True)
        if number % TIDY_EVERY == 0:
            gc.collect()


def cpu_s() -> float:
    """Return the processor time of this process and of all its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    shrink()
    main(Path(sys.argv[1]))
