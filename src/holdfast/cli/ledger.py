"""The command `ledger`, which prints the decisions of a run, checks that its log is what was written, and exports the ledger to a
file that can be checked without the store.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from holdfast.cli import options, screen, stores
from holdfast.cli.app import LOOK, command
from holdfast.cli.exits import Exit
from holdfast.cli.suggestions import line, say_commands
from holdfast.core.validate import RUN_ID
from holdfast.documents.ledger_file import Exported, LedgerFile, compare, export
from holdfast.errors import SettingError
from holdfast.reading.damage import LogDamage
from holdfast.reading.ledger import Ledger
from holdfast.reading.ledger_entries import LedgerEntry
from holdfast.reading.reader import Reader

_STYLES = {
    "failure": "red",
    "refusal": "red",
    "skip": "yellow",
    "rewind": "yellow",
    "edit": "yellow",
    "decision": "cyan",
    "policy": "cyan",
}
"""Type of an entry -> the colour in which it is printed."""


@command(LOOK)
def ledger(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            callback=options.check_run_id,
            help="The id of a run; `holdfast runs` lists them. Without it, --file names an exported ledger.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check that the log is exactly what was written, and name every event that was removed or altered.",
        ),
    ] = False,
    export_to: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="FILE", help="Write the ledger to a new file that can be checked alone."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Read and check an exported ledger. With RUN, also compare it with the run in the store.",
        ),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Print the decisions of a run, check them, or export them.

    Decisions are branches, guards, policies, verifications, answers, skips, failures, edits, resumes, rewinds and refusals. Each
    is printed with its number in the log, its time, who made it, and why. Exit code 9 means that the log, or the file, is not
    what was written.
    """
    _check_options(run_id, export_to, file)
    if file is not None:
        return _check_file(file, run_id, store, as_json=as_json)
    assert run_id is not None
    if export_to is not None:
        return _export(run_id, export_to, store, verify=verify, as_json=as_json)
    found = stores.read(store, lambda reader: reader.ledger(run_id, verify=verify))
    with screen.unread():
        _say(found, as_json=as_json)
    return Exit.OK if found.verified is not False else Exit.DAMAGED


def _check_options(run_id: str | None, export_to: str | None, file: str | None) -> None:
    """Raise `SettingError` for options that cannot be combined."""
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise SettingError(
            f"{run_id!r} is not the id of a run. To check an exported ledger: {line('ledger', '--file', run_id)}"
        )
    if file is not None and export_to is not None:
        raise SettingError("--file reads a ledger and --export writes one; give only one of them")
    if run_id is None and file is None:
        raise SettingError(
            "name a run, as in `holdfast ledger RUN`, or an exported ledger, as in `holdfast ledger --file FILE`"
        )


def _export(run_id: str, file: str, store: str | None, *, verify: bool, as_json: bool) -> int:
    """Export the ledger of a run, print where it is, and return the exit code. A log whose chain is broken is never exported;
    `verify` also checks the blobs, the run row and the definition.
    """
    done = stores.read(store, lambda reader: export(reader.store, run_id, file))
    found = stores.read(store, lambda reader: reader.ledger(run_id, verify=True)) if verify else None
    with screen.unread():
        if as_json:
            told = {"verified": found.verified, "problems": found.problems} if found is not None else {}
            screen.say_json(msgspec.to_builtins(done) | told)
        else:
            _say_exported(done)
            if found is not None:
                _say_verdict(found, "")
    return Exit.OK if found is None or found.verified else Exit.DAMAGED


def _check_file(file: str, run_id: str | None, store: str | None, *, as_json: bool) -> int:
    """Check an exported ledger, print it, and return the exit code."""
    exported = LedgerFile(file)

    def use(reader: Reader) -> LogDamage | None:
        if run_id != exported.head.run_id:
            raise SettingError(
                f"{file} is the ledger of run {exported.head.run_id!r}, not of {run_id!r}. "
                f"To compare it with that run: {line('ledger', exported.head.run_id, '--file', file, store=store)}"
            )
        return compare(reader.store, exported)

    differs = stores.read(store, use) if run_id is not None else None
    if differs is not None:
        exported.damage.append(differs)
        exported.problems.append(differs.text)
    found = exported.ledger
    with screen.unread():
        _say(found, as_json=as_json, source=file)
    return Exit.OK if found.verified else Exit.DAMAGED


# --- printing ----------------------------------------------------------------------------------------


def _say(found: Ledger, *, as_json: bool, source: str = "") -> None:
    if as_json:
        screen.say_json(found)
        return
    if found.beginning:
        screen.say((found.beginning, "dim"), err=True)
    _say_entries(found)
    if found.verified is not None:
        _say_verdict(found, source)


def _say_entries(found: Ledger) -> None:
    damaged = {entry.seq for entry in found.entries if any(one.is_about(entry.seq) for one in found.damage)}
    rows = [
        [
            (f"{entry.seq:>6}", "dim"),
            (screen.time_of_day(entry.at), "dim"),
            (entry.type, _STYLES.get(entry.type, "")),
            entry.actor,
            entry.by or "",
            (f"✗ {_about(entry)}", "red") if entry.seq in damaged else _about(entry),
        ]
        for entry in found.entries
    ]
    if rows:
        screen.say_table(["   SEQ", "TIME", "TYPE", "ACTOR", "BY", "DECISION"], rows, flexible=5)
    else:
        screen.say("The log has no decision.")


def _about(entry: LedgerEntry) -> str:
    return f"{entry.text}: {entry.reason}" if entry.reason else entry.text


def _say_verdict(found: Ledger, source: str) -> None:
    where = f"{source}: " if source else ""
    if found.verified:
        told = f"{where}run {found.run_id}, up to event {found.seq}: exactly as written"
        screen.say(("✓ ", "green"), told, (f"  {found.digest}", "dim"))
        return
    types = {one.text: one.type for one in found.damage if one.type}
    for problem in found.problems:
        of_type = f" [{types[problem]}]" if problem in types else ""
        screen.say(("✗ ", "red"), f"{where}{problem}{of_type}")


def _say_exported(done: Exported) -> None:
    held = f"{screen.count(done.entries, 'decision')}, {screen.count(done.events, 'event')}"
    screen.say(("exported  ", "bold green"), f"{done.run_id}  {held}: {done.file}")
    screen.say((f"  the digest of the last event is {done.digest}", "dim"))
    say_commands([(line("ledger", "--file", done.file), "check the file, on any machine")])
