"""`holdfast demo`: runs a flow in a separate process, kills that process twice, and resumes the run each time.

The demo process never executes the flow. It starts `holdfast run` and `holdfast resume` as child processes, watches the log
that they write, and kills them with SIGKILL at two chosen places. At the end it counts which process ran which node: by the
log, and by a witness file (a plain file in which the nodes note their calls).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import holdfast
from holdfast.cli import options, screen, stores
from holdfast.cli.app import EXECUTE, command
from holdfast.cli.exits import Exit
from holdfast.cli.progress import parts_of
from holdfast.cli.screen import Part
from holdfast.cli.suggestions import line, say_commands
from holdfast.core import drawing
from holdfast.errors import HoldfastError, RunNotFound, SettingError
from holdfast.reading.story import Story
from holdfast.reading.views import EventView
from holdfast.runtime.engine import Engine
from holdfast.server import MISSING_PACKAGES

NODES = ("plan", "research", "outline", "style", "write", "check", "publish")
KILLED = "killed"

KillWhen = Callable[[int], str | None]
"""A function that decides when to kill the process with this id. It returns what the process is doing if it is to be killed
now, otherwise None.
"""

_LOOK_AGAIN_S = 0.02


class _Demo(msgspec.Struct):
    """The paths, process ids and progress of one demonstration."""

    folder: str
    run_id: str
    quiet: bool
    seq: int = 0
    pids: list[int] = []
    told: list[str] = []

    @property
    def store(self) -> str:
        return os.path.join(self.folder, "runs.db")

    @property
    def file(self) -> str:
        return os.path.join(self.folder, "report.py")

    @property
    def witness(self) -> str:
        return os.path.join(self.folder, f"{self.run_id}.witness")

    @property
    def output(self) -> str:
        return os.path.join(self.folder, f"{self.run_id}.output")

    def say(self, *parts: Part) -> None:
        if not self.quiet:
            screen.say(*parts)


@command(EXECUTE)
def demo(
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder", metavar="FOLDER", help="The folder for the demo's files. Default: .holdfast/demo."
        ),
    ] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Kill a running workflow, and watch it resume.

    Takes about eight seconds. The store with the run is kept, so that you can look at it.
    """
    made = _Demo(_prepare(folder), f"demo-{secrets.token_hex(2)}", as_json)
    made.say(("A report is written by a flow of seven nodes, in a process that we kill.", "bold"))
    made.say(("Completed work is in the log, and never runs again.\n", "dim"))
    if not made.quiet:
        from holdfast.cli.demo_flow import flow

        print(drawing.terminal(flow.definition, width=screen.picture_width(), ascii=screen.ascii_only()))

    async def use(engine: Engine) -> None:
        await _perform(made, engine)

    stores.watch(made.store, use, create=True)
    return _account(made, stores.read(made.store, lambda reader: reader.events(made.run_id)))


def _prepare(folder: str | None) -> str:
    """Copy the flow's file into a folder and return that folder: the given one, `.holdfast/demo`, or else a temporary one."""
    source = Path(__file__).with_name("demo_flow.py")
    for place in [folder] if folder is not None else [os.path.join(".holdfast", "demo"), None]:
        chosen = place if place is not None else tempfile.mkdtemp(prefix="holdfast-demo-")
        try:
            os.makedirs(chosen, exist_ok=True)
            shutil.copyfile(source, os.path.join(chosen, "report.py"))
        except OSError as fault:
            if place == folder or place is None:
                raise SettingError(
                    f"the demo cannot use the folder {chosen}: {fault.strerror}. Choose one with --folder."
                ) from fault
        else:
            return chosen
    raise AssertionError("no temporary folder was made, although no error was raised")


# --- running and killing -----------------------------------------------------------------------------


async def _perform(made: _Demo, engine: Engine) -> None:
    from holdfast.cli.demo_flow import flow

    story = Story(flow.definition)
    researched, written = story.nodes["research"], story.nodes["write"]

    def in_the_fan_out(pid: int) -> str | None:
        done, listed = researched.items_done, researched.items_all
        going = _called(made, pid, "research") - done
        return (
            f"{done} of {listed} topics are researched, {going} in progress" if done >= 3 and going else None
        )

    def in_the_loop(pid: int) -> str | None:
        again = written.iteration == 2 and written.status == "running" and _called(made, pid, "write 2")
        return "the draft is being written for the second time" if again else None

    first = ("run", made.file, "--run-id", made.run_id)
    again = ("resume", made.run_id, made.file)
    await _process(made, engine, story, "starts the run", first, in_the_fan_out)
    await _process(made, engine, story, "resumes it", again, in_the_loop)
    await _process(made, engine, story, "resumes it", again, lambda pid: None)


def _called(made: _Demo, pid: int, what: str) -> int:
    """Count how often a process has called a node, by the file in which nodes note their calls. A start in the log does not
    prove a call.
    """
    with suppress(FileNotFoundError), open(made.witness, encoding="utf-8") as file:
        return sum(line.startswith(f"{pid} {what} ") for line in file)
    return 0


async def _process(
    made: _Demo,
    engine: Engine,
    story: Story,
    does: str,
    arguments: tuple[str, ...],
    kill_when: KillWhen,
) -> None:
    """Start a process, print what it does, and kill it at the chosen place."""
    child = _spawn(made, arguments)
    made.pids.append(child.pid)
    made.say(("\nprocess ", "bold"), (str(child.pid), "bold cyan"), (f" {does}", "bold"))
    try:
        await _watch(made, engine, story, child, kill_when)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def _spawn(made: _Demo, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    with open(made.output, "ab") as output:
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "holdfast.cli", *arguments, "--store", made.store],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(made),
        )


async def _watch(
    made: _Demo,
    engine: Engine,
    story: Story,
    child: subprocess.Popen[bytes],
    kill_when: KillWhen,
) -> None:
    """Print the events of a child process as they become durable, until the process ends or is killed."""
    while True:
        ended = child.poll() is not None
        await _tell_news(made, engine, story)
        if (where := kill_when(child.pid)) is not None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            await _tell_news(made, engine, story)  # events that became durable before it died
            where = kill_when(child.pid) or where
            made.say((f"  ✗ kill -9 {child.pid}", "bold red"), (f"  {where}", "red"))
            return
        if ended:
            if child.returncode != 0:
                raise HoldfastError(
                    f"the process of the demo exited with code {child.returncode}; its output is in {made.output}"
                )
            return
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _tell_news(made: _Demo, engine: Engine, story: Story) -> None:
    """Print the events that have become durable since the last call."""
    with suppress(RunNotFound):  # the first process may not have created the run yet
        for event in await engine.events(made.run_id, made.seq):
            made.seq = event.seq
            told = story.tell(event)
            if told is not None and event.kind not in ("RunResumed", "RunCompleted"):
                made.say("  ", *parts_of(told))


def _environment(made: _Demo) -> dict[str, str]:
    """Return the environment variables with which a child process imports this copy of Holdfast and finds the witness file."""
    package = str(Path(holdfast.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH")
    path = f"{package}{os.pathsep}{known}" if known else package
    return {**os.environ, "PYTHONPATH": path, "HOLDFAST_DEMO_WITNESS": os.path.abspath(made.witness)}


# --- counting ----------------------------------------------------------------------------------------


class Counted(msgspec.Struct):
    """How often a node was called, according to the file in which nodes note their calls, and how often it completed, according
    to the log.
    """

    called: list[int]
    """Calls in each process."""
    completed: int
    wanted: int
    """How many iterations, or items of a fan-out, the node has."""
    again: int
    """Calls for an iteration or item whose completion was already recorded; must be 0."""


def count(made: _Demo, log: list[EventView]) -> dict[str, Counted]:
    """Count the calls of each node from the file in which nodes note them, and its completions from the log."""
    counted = {name: Counted([0] * len(made.pids), 0, 0, 0) for name in NODES}
    with open(made.witness, encoding="utf-8") as file:
        calls = [text.rstrip("\n").split(" ") for text in file]
    where: dict[tuple[str, str, str], int] = {}
    for pid, node, iteration, item in calls:
        process = made.pids.index(int(pid))
        counted[node].called[process] += 1
        where.setdefault((node, iteration, item), process)
    done_in = _completed_in(log)
    for pid, node, iteration, item in calls:
        done = done_in.get((node, iteration, item))
        counted[node].again += done is not None and made.pids.index(int(pid)) > done
    for node, iteration, item in where:
        counted[node].wanted += 1
        counted[node].completed += (node, iteration, item) in done_in
    return counted


def _completed_in(log: list[EventView]) -> dict[tuple[str, str, str], int]:
    """Return (node, iteration, item) -> the number of the process that recorded its completion."""
    process, found = 0, {}
    for event in log:
        process += event.kind == "RunResumed"
        item = event.body.get("item", "")
        if event.kind == "ItemCompleted" or (event.kind == "NodeCompleted" and not event.body.get("items")):
            found[event.node or "", str(event.iteration), str(item)] = process
    return found


def _account(made: _Demo, log: list[EventView]) -> int:
    """Print how often each node was called in each process, and commands to try next. Returns the exit code."""
    counted = count(made, log)
    again = sum(entry.again for entry in counted.values())
    ended = log[-1].kind == "RunCompleted" and not again
    if made.quiet:
        told = {
            "ok": ended,
            "run": made.run_id,
            "store": made.store,
            "file": made.file,
            "killed": made.pids[:-1],
        }
        screen.say_json(told | {"nodes": counted, "run_again_after_completion": again})
        return Exit.OK if ended else Exit.FAILED
    screen.say(
        ("\nHow often each node was called", "bold"),
        ("  (by a file in which the nodes note their calls)", "dim"),
    )
    heads = ["NODE", *(f"{pid} {KILLED}" for pid in made.pids[:-1]), str(made.pids[-1]), "COMPLETED", ""]
    screen.say_table(heads, [_cells(name, entry) for name, entry in counted.items()])
    calls = sum(sum(entry.called) for entry in counted.values())
    wanted = sum(entry.wanted for entry in counted.values())
    before = sum(place < len(made.pids) - 1 for place in _completed_in(log).values())
    screen.say("")
    if ended:
        screen.say(("✓ ", "green"), f"The report is published. It took {wanted} pieces of work.")
        screen.say(f"  {before} of them were completed before a kill: none of these ran again.")
        screen.say(f"  {calls - wanted} were interrupted by a kill: only these were called a second time.")
    else:
        screen.say(
            ("✗ ", "red"), f"{again} calls were made for work that was completed already. Please report this."
        )
    _say_next(made, log)
    return Exit.OK if ended else Exit.FAILED


def _cells(name: str, entry: Counted) -> list[Part]:
    cut = sum(entry.called) - entry.wanted
    note = f"{screen.count(cut, 'call')} interrupted by a kill and repeated" if cut else ""
    kind = "" if entry.wanted == 1 else " items" if name == "research" else " iterations"
    numbers: list[Part] = [
        (str(number) if number else "·", "" if number else "dim") for number in entry.called
    ]
    return [name, *numbers, (f"{entry.completed} of {entry.wanted}{kind}", "green"), (note, "yellow")]


def _say_next(made: _Demo, log: list[EventView]) -> None:
    styled = next(event.seq for event in log if event.kind == "NodeCompleted" and event.node == "outline")
    screen.say(("\nTry next", "bold"))
    fork = line(
        "fork", f"{made.run_id}@{styled}", made.file, "--edit", '{"subject": "storms"}', store=made.store
    )
    opens = f"open the address that it prints in a browser, and choose {made.run_id}"
    has_server = find_spec("uvicorn") is not None
    say_commands([
        (line("show", made.run_id, store=made.store), "show the run, its graph and timings"),
        (line("events", made.run_id, store=made.store), "print its log; a RunResumed follows each kill"),
        (line("state", f"{made.run_id}@{styled}", "--diff", store=made.store), "what changed at a checkpoint"),
        (line("checkpoints", made.run_id, store=made.store), "list the places it can go back to"),
        (fork, "make another report from the same research"),
        (f"$EDITOR {made.file}", "change the flow and run it"),
        (line("serve", made.file, store=made.store), opens + ("" if has_server else f"; {MISSING_PACKAGES}")),
    ])  # fmt: skip
