"""What `holdfast` can do, as one table: every command with its family, the module that defines it and its line in `--help`.

It is read instead of the modules, which bring the whole engine with them: help, a mistyped command and the suggestion for it need
none of them. Nothing is done here. The table says exactly what the modules define, in the order they define it; a test compares.
"""

from __future__ import annotations

from typing import NamedTuple

EXECUTE, OPERATE, LOOK, CHECK = "Execute a run", "Operate a run", "Look at runs", "Check"
CARE = "Take care of a store"


class Entry(NamedTuple):
    """A command: `module` is a file of this folder, `told` how `--help` lists it, the first sentence of its docstring."""

    family: str
    name: str
    module: str
    told: str


CATALOGUE: tuple[Entry, ...] = (
    Entry(EXECUTE, "demo", "demo", "Kill a workflow in the middle, and see it resume."),
    Entry(EXECUTE, "run", "execution", "Start a run of a flow and execute it."),
    Entry(EXECUTE, "resume", "execution", "Resume a run, from its end or an earlier checkpoint."),
    Entry(EXECUTE, "retry", "execution", "Try failed, crashed or waiting nodes again, and continue."),
    Entry(EXECUTE, "skip", "execution", "Continue without a failed, crashed or waiting node."),
    Entry(EXECUTE, "worker", "worker", "Execute what is on offer, until it is stopped."),
    Entry(EXECUTE, "start", "worker", "Record a run; a worker executes it."),
    Entry(OPERATE, "answer", "questions", "Answer a question of a run."),
    Entry(OPERATE, "signal", "questions", "Send a run a signal that it waits for."),
    Entry(OPERATE, "cancel", "requests", "Cancel a run, for good."),
    Entry(OPERATE, "pause", "requests", "Start nothing new in a run until it is resumed."),
    Entry(OPERATE, "fork", "requests", "Make a new run from a checkpoint of another."),
    Entry(OPERATE, "queue", "worker", "List queues, or limit one over all workers of the store."),
    Entry(LOOK, "runs", "listing", "List runs, and which of them crashed."),
    Entry(LOOK, "show", "listing", "Show one run: graph, timings, why it stopped."),
    Entry(LOOK, "graph", "listing", "Draw a flow from its file, or a run."),
    Entry(LOOK, "events", "log", "Print the log of a run, oldest first."),
    Entry(LOOK, "state", "log", "Print the state of a run, or what changed."),
    Entry(LOOK, "checkpoints", "log", "List where a run can be resumed or forked from."),
    Entry(LOOK, "questions", "questions", "List open questions, and how to answer them."),
    Entry(CHECK, "version", "listing", "Print the version of Holdfast and Python."),
    Entry(CHECK, "verify", "log", "Check that runs are exactly what was written."),
    Entry(CHECK, "receipts", "receipts", "Make the receipts and handoffs of a run from its log."),
    Entry(CHECK, "recover", "worker", "Find runs that should move and do not, and offer them again."),
    Entry(CARE, "prune", "care", "Retire checkpoints of a run, or delete runs that ended."),
    Entry(CARE, "archive", "care", "Write a run with everything it refers to into one file."),
    Entry(CARE, "unarchive", "care", "Put an archived run into a store, as it was."),
    Entry(CARE, "backup", "care", "Copy the whole store into a file, while runs continue."),
    Entry(CARE, "restore", "care", "Make a store from a backup, where there is none."),
    Entry(CARE, "doctor", "care", "Say which runs cannot continue and why, and whether the store is well."),
)
"""Every command, in the order in which `holdfast --help` lists them."""

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in CATALOGUE}

FAMILIES: dict[str, list[str]] = {
    family: [entry.name for entry in CATALOGUE if entry.family == family]
    for family in dict.fromkeys(entry.family for entry in CATALOGUE)
}
"""Family -> the names of its commands, in the order they are listed."""
