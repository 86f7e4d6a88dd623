"""The table of all commands: each with its family, the module that defines it and its line in `holdfast --help`.

`--help` and the error for a mistyped command read this table instead of the modules, because importing those loads the whole
engine. The table must match what the modules define, in the same order; a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

EXECUTE, PLANS, OPERATE = "Execute a run", "Work with plans", "Operate a run"
LOOK, CHECK = "Look at runs", "Check"
CARE = "Take care of a store"


class Entry(NamedTuple):
    """A command. `module` is a file of this folder; `summary` is its line in `--help`, the first sentence of its docstring. The
    name has one word or two: `plan check`.
    """

    family: str
    name: str
    module: str
    summary: str


CATALOGUE: tuple[Entry, ...] = (
    Entry(EXECUTE, "demo", "demo", "Kill a running workflow, and watch it resume."),
    Entry(EXECUTE, "run", "execution", "Start a run of a flow and execute it."),
    Entry(EXECUTE, "resume", "execution", "Resume a run where it stopped, or from an earlier checkpoint."),
    Entry(EXECUTE, "retry", "execution", "Run failed, crashed or waiting nodes again, and continue the run."),
    Entry(EXECUTE, "skip", "execution", "Continue a run without a failed, crashed or waiting node."),
    Entry(EXECUTE, "worker", "worker", "Execute the runs that wait for a worker, until stopped."),
    Entry(EXECUTE, "start", "worker", "Record a new run, for a worker to execute."),
    Entry(EXECUTE, "serve", "serving", "Serve runs over HTTP, and execute them."),
    Entry(PLANS, "plan check", "plans", "Check a plan, and print all its problems."),
    Entry(PLANS, "plan run", "plans", "Start a run of a plan and execute it."),
    Entry(PLANS, "plan draw", "plans", "Draw the tasks and edges of a plan."),
    Entry(PLANS, "plan schema", "plans", "Print the JSON Schema of the plans that can be executed."),
    Entry(PLANS, "plan show", "plans", "Show the plan of a run: what each task did, and why."),
    Entry(OPERATE, "answer", "questions", "Answer a question that a run asks."),
    Entry(OPERATE, "signal", "questions", "Send a signal to a run."),
    Entry(OPERATE, "cancel", "requests", "Cancel a run for good, and stop its running nodes."),
    Entry(OPERATE, "pause", "requests", "Pause a run: no node of it starts until it is resumed."),
    Entry(OPERATE, "edit", "requests", "Change fields of the state of a run that is not running."),
    Entry(OPERATE, "fork", "requests", "Make a new run from a checkpoint of another run."),
    Entry(
        OPERATE, "queue", "worker", "List queues, or limit how many runs of a queue are executed at a time."
    ),
    Entry(LOOK, "runs", "listing", "List runs, and show which of them crashed."),
    Entry(LOOK, "watch", "watch", "Watch runs, or one run, live in the terminal."),
    Entry(LOOK, "show", "listing", "Show one run: its graph, its timings and why it stopped."),
    Entry(LOOK, "graph", "listing", "Draw the graph of a flow or of a run."),
    Entry(LOOK, "events", "log", "Print the events of a run, oldest first."),
    Entry(LOOK, "state", "log", "Print the state of a run, or what changed in it."),
    Entry(LOOK, "checkpoints", "log", "List the checkpoints that a run can be resumed or forked from."),
    Entry(LOOK, "ledger", "ledger", "Print the decisions of a run, check them, or export them."),
    Entry(LOOK, "requests", "requests", "List the requests to a run that wait or were refused."),
    Entry(LOOK, "questions", "questions", "List open questions, and those that a resume will ask."),
    Entry(CHECK, "version", "listing", "Print the versions of Holdfast and Python."),
    Entry(CHECK, "verify", "log", "Check that stored runs are exactly what was written."),
    Entry(CHECK, "receipts", "receipts", "Write the receipts and handoffs of a run again from its log."),
    Entry(CHECK, "recover", "worker", "Find runs that do not move, and offer them to workers again."),
    Entry(CARE, "prune", "care", "Retire old checkpoints of a run, or delete runs that have ended."),
    Entry(CARE, "delete", "care", "Delete a run that is over, with its log."),
    Entry(CARE, "archive", "care", "Write a run with everything it refers to into one file."),
    Entry(CARE, "unarchive", "care", "Put an archived run back into a store, unchanged."),
    Entry(CARE, "backup", "care", "Copy the whole store into a file while runs continue."),
    Entry(CARE, "restore", "care", "Make a new store from a backup."),
    Entry(CARE, "token", "serving", "Create, list or revoke tokens for the server."),
    Entry(CARE, "doctor", "care", "Report why runs cannot continue, and problems with the store."),
)
"""Every command, in the order in which `holdfast --help` lists them."""

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in CATALOGUE}

FAMILIES: dict[str, list[str]] = {
    family: [entry.name for entry in CATALOGUE if entry.family == family]
    for family in dict.fromkeys(entry.family for entry in CATALOGUE)
}
"""Family -> the names of its commands, in the order of the table."""
