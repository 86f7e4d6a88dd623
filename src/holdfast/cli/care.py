"""Commands that maintain a store: prune, delete, archive, unarchive, backup, restore, doctor.

They call `holdfast.upkeep.retention`, which decides what is deleted and why, and `holdfast.upkeep.doctor`, which finds problems,
and print the results. No file is overwritten, and every command may be killed and called again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

import typer

from holdfast.cli import flow_files, options, screen, stores
from holdfast.cli.app import CARE, command
from holdfast.cli.exits import Exit
from holdfast.cli.gauge import gauge
from holdfast.cli.suggestions import command_line, line, say_commands, say_remedies
from holdfast.core.run_state import FINAL
from holdfast.errors import SettingError
from holdfast.reading.diagnosis import Diagnosis
from holdfast.reading.reader import Reader
from holdfast.runtime import settings
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Holder, RunRow, in_order
from holdfast.storage.files import remote, restoring
from holdfast.upkeep import archive as archives
from holdfast.upkeep import doctor as doctors
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Choice, Deleted, Pruned, RetentionPolicy, Swept

_NAMED_MAX = 3

Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        help="Archive each run before it is deleted or compacted: to a new file, or into a folder or URL that ends in /.",
    ),
]


# --- prune -------------------------------------------------------------------------------------------

Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Delete only runs with this status: completed, cancelled or failed; repeatable. Default: completed and cancelled.",
    ),
]
SharedBlobs = Annotated[
    bool,
    typer.Option(
        "--shared-blobs",
        help="Also remove unused blobs from the place that the setting `blobs` names. No other store may use that place.",
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="TIME",
        help="Delete only runs whose last event is older than this, e.g. 30d or 12h.",
    ),
]


@command(CARE)
def prune(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            callback=options.check_run_id,
            help="The run whose old checkpoints are retired. Without RUN, whole runs are deleted instead.",
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last", metavar="N", min=1, help="How many checkpoints of RUN to keep. Default: 5."
        ),
    ] = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Also replace the events of RUN before the kept checkpoints with one stored state (a base).",
        ),
    ] = False,
    older_than: OlderThan = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0, help="Do not delete the newest N runs of each flow and status."
        ),
    ] = None,
    status: Statuses = None,
    flow: Annotated[
        str | None, typer.Option("--flow", metavar="NAME", help="Delete only runs of this flow.")
    ] = None,
    archive: Archive = None,
    shared_blobs: SharedBlobs = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")
    ] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Retire old checkpoints of a run, or delete runs that have ended.

    Without RUN and options, the policies of [tool.holdfast.retention] decide which runs are deleted. A run that another run still
    needs is kept, and the reason is printed.
    """
    of_runs = (older_than, keep, status, flow)
    if run_id is not None:
        if any(option is not None for option in of_runs) or dry_run:
            raise SettingError(
                "--older-than, --keep, --status, --flow and --dry-run choose runs to delete and cannot be combined with RUN; "
                "leave RUN out"
            )
        if archive is not None and not compact:
            raise SettingError(
                "with RUN, --archive needs --compact: retiring checkpoints alone deletes no events that could be archived"
            )
        _prune_one(run_id, keep_last or retention.KEEP_LAST, compact, archive, store, as_json=as_json)
        return
    if keep_last is not None or compact:
        raise SettingError("--keep-last and --compact apply to one run; give its id as RUN")
    wanted, place = _policies(older_than, keep, status, flow, archive)
    _prune_many(wanted, place, shared_blobs, store, dry_run=dry_run, as_json=as_json)


def _prune_one(
    run_id: str, keep_last: int, compact: bool, archive: str | None, store: str | None, *, as_json: bool
) -> None:
    async def use(engine: Engine) -> Pruned:
        pruned = await engine.prune(run_id, keep_last, compact=compact, archive=archive)
        while engine.store.upkeep.sweep():
            pass
        return pruned

    done = stores.execute(store, use, {"run_base": ""})
    if as_json:
        screen.say_json(done)
        return
    went = f", {screen.count(done.snapshots, 'snapshot')} deleted" if done.snapshots else ""
    screen.say(("pruned  ", "bold green"), f"{run_id}  {screen.count(done.kept, 'checkpoint')} kept{went}")
    if done.events:
        screen.say(f"  a base replaces {screen.count(done.events, 'event')}, up to event {done.base}")
    if done.place:
        screen.say(f"  archived at {done.place}")
    if done.why:
        screen.say(f"  no more events could be replaced: {done.why}")


@command(CARE)
def delete(
    run_id: options.RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it without asking.")] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Delete a run that is over, with its log.

    Only a run that is completed, cancelled or failed is deleted, and none that another run needs: one that was forked from it, or
    one that is not over and has started it. On a terminal, the command asks first; elsewhere it needs --yes.
    """
    if not yes and not _is_wanted(stores.read(store, lambda reader: _deletable(reader, run_id)), store):
        screen.say("nothing was deleted")
        return Exit.REFUSED

    async def use(engine: Engine) -> Deleted:
        return await engine.delete(run_id)

    done = stores.execute(store, use, {"run_base": ""})
    if as_json:
        screen.say_json(done)
    else:
        said = f"{run_id}  {done.flow} {done.status}, {screen.count(done.events, 'event')}"
        screen.say(("deleted  ", "yellow"), said)
    return Exit.OK


def _deletable(reader: Reader, run_id: str) -> RunRow:
    """Return the row of a run that may be deleted, so that nothing is asked about another. Raises `ResumeRefused`."""
    row = reader.store.run(run_id)
    retention.refuse_needed(reader.store, row)
    return row


def _is_wanted(row: RunRow, store: str | None) -> bool:
    """Ask on the terminal whether a run is to be deleted. Raises `SettingError` if there is none."""
    if not sys.stdin.isatty():
        raise SettingError(
            f"delete removes run {row.run_id!r} for good, and cannot ask here, because stdin is not a terminal. "
            f"To delete it, add --yes: `{line('delete', row.run_id, '--yes', store=store)}`"
        )
    sys.stderr.write(f"Delete run {row.run_id} for good ({row.flow}, {row.status}, {row.seq} events)? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _policies(
    older_than: str | None, keep: int | None, status: list[str] | None, flow: str | None, archive: str | None
) -> tuple[list[RetentionPolicy], str | None]:
    if older_than is None and keep is None and status is None and flow is None:
        where = f"{settings.project_file()}: [tool.holdfast.retention]"
        found, place = retention.policies(settings.project_table().get("retention", {}), where)
        if not found:
            raise SettingError(
                "say which runs may be deleted: --older-than 30d, --keep 1000, or both; or list policies in pyproject.toml "
                "under [tool.holdfast.retention]"
            )
        return found, archive or place
    policy = RetentionPolicy(
        flow=flow,
        status=tuple(map(retention.status_of, status)) if status else in_order(FINAL),
        older_than=retention.seconds(older_than, "--older-than") if older_than is not None else None,
        keep=keep,
    )
    return [retention.check_policy(policy)], archive


def _prune_many(
    wanted: list[RetentionPolicy],
    place: str | None,
    shared_blobs: bool,
    store: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    def use(reader: Reader) -> None:
        opened = reader.store
        with (_JsonChoices if as_json else _PrintedChoices)(dry_run=dry_run) as report:
            if dry_run:
                foreseen = retention.preview_deletion(opened, lambda: retention.choose(opened, wanted))
                report.add(foreseen)
                return
            # On a terminal, the lines of the deleted runs show the progress.
            with gauge(quiet=as_json or sys.stdout.isatty()) as tell:
                for choices in retention.delete_all(opened, retention.choose(opened, wanted), place):
                    report.add(choices)
                    tell("runs", report.deleted + report.kept, 0)
            own = shared_blobs or not settings.resolve({}).blobs
            report.swept = retention.sweep(opened, blobs_too=own)

    stores.read(store, use)


class _Choices:
    """Prints what happens to each run, at once, because there may be a million of them: also if an error or a signal ends the
    command. The end is printed when the block is left.
    """

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.deleted = self.kept = 0
        self.swept: Swept | None = None
        self._unsaid: Iterator[Choice] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if not self.dry_run:
            self._say_all()  # a signal may have ended the printing of runs that are deleted already
        if fault is not None:
            self.say_end(str(fault) or type(fault).__name__)
        else:
            self.say_end("")

    def add(self, choices: Iterable[Choice]) -> None:
        """Print what happened to these runs, or would happen."""
        self._unsaid = iter(choices)
        self._say_all()

    def _say_all(self) -> None:
        for choice in self._unsaid:
            if choice.goes:
                self.deleted += 1
                self.say_deleted(choice)
            else:
                self.kept += 1
                self.say_kept(choice)

    def say_deleted(self, choice: Choice) -> None:
        raise NotImplementedError

    def say_kept(self, choice: Choice) -> None:
        raise NotImplementedError

    def say_end(self, error: str) -> None:
        """Print what comes after all runs; `error` says what ended the command early."""
        raise NotImplementedError


class _JsonChoices(_Choices):
    """One JSON document. The runs that are kept come after all that are deleted, so they are collected in a file."""

    def __init__(self, *, dry_run: bool) -> None:
        super().__init__(dry_run=dry_run)
        self._later = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - it is closed at the end

    def say_deleted(self, choice: Choice) -> None:
        if self.deleted == 1:
            self._begin()
        sys.stdout.write(f"{',' if self.deleted > 1 else ''}\n    {screen.json_text(choice, indent=None)}")

    def say_kept(self, choice: Choice) -> None:
        self._later.write(f"{',' if self.kept > 1 else ''}\n    {screen.json_text(choice, indent=None)}")

    def _begin(self) -> None:
        sys.stdout.write(f'{{\n  "dry_run": {screen.json_text(self.dry_run, indent=None)},\n  "deleted": [')

    def say_end(self, error: str) -> None:
        with self._later as later:
            if not self.deleted:
                self._begin()
            sys.stdout.write('],\n  "kept": [')
            later.seek(0)
            shutil.copyfileobj(later, sys.stdout)
            sys.stdout.write(f'],\n  "swept": {screen.json_text(self.swept, indent=None)}')
            if error:
                sys.stdout.write(f',\n  "error": {screen.json_text(error, indent=None)}')
            sys.stdout.write("\n}\n")
            sys.stdout.flush()


class _PrintedChoices(_Choices):
    """A line for each run that is deleted; then a line for each reason for which runs are kept, and a sum."""

    def __init__(self, *, dry_run: bool) -> None:
        super().__init__(dry_run=dry_run)
        self._reasons: dict[str, tuple[int, list[str]]] = {}
        """Reason -> how many runs are kept for it, and the first of them."""

    def say_deleted(self, choice: Choice) -> None:
        archived = f"; archived at {choice.place}" if choice.place else ""
        word = "to delete " if self.dry_run else "deleted   "
        screen.say(
            (word, "yellow"), f"{choice.run_id}  {choice.flow} {choice.status}: {choice.why}{archived}"
        )

    def say_kept(self, choice: Choice) -> None:
        count, named = self._reasons.get(choice.why, (0, []))
        self._reasons[choice.why] = (count + 1, [*named, choice.run_id][:_NAMED_MAX])

    def say_end(self, error: str) -> None:
        if error and not self.deleted + self.kept:
            return
        for why, (count, named) in self._reasons.items():
            more = f" and {count - len(named)} more" if count > len(named) else ""
            screen.say(("kept      ", "green"), f"{', '.join(named)}{more}: {why}")
        went = "would be deleted" if self.dry_run else "deleted"
        screen.say(f"{screen.count(self.deleted, 'run')} {went}, {self.kept} kept")
        if self.swept is not None:
            _say_swept(self.swept)


def _say_swept(swept: Swept) -> None:
    parts = [
        screen.count(number, noun)
        for number, noun in (
            (swept.events, "event"),
            (swept.blobs, "blob"),
            (swept.pieces, "torn blob"),
            (swept.spills, "partial stream"),
            (swept.definitions, "definition"),
        )
        if number
    ]
    if parts:
        screen.say(("swept     ", "yellow"), ", ".join(parts))
    for kept in swept.kept:
        screen.say(("kept      ", "green"), kept)


# --- archives ----------------------------------------------------------------------------------------


@command(CARE)
def archive(
    run_id: options.RunId,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where to write the archive: a new file, or a folder or URL that ends in /.",
        ),
    ],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write a run with everything it refers to into one file.

    The run stays in the store; `prune --archive` archives runs and then deletes them.
    """
    done = stores.read(store, lambda reader: archives.archive(reader.store, run_id, to))
    if as_json:
        screen.say_json(done)
        return
    held = f"{screen.count(done.events, 'event')}, {screen.count(done.blobs, 'blob')}"
    screen.say(("archived  ", "bold green"), f"{run_id}  {held}, {screen.size(done.bytes)}: {done.place}")


@command(CARE)
def unarchive(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="The file or URL of an archived run.")],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Put an archived run back into a store, unchanged.

    The store is created if it does not exist. If the run is in the store already, nothing changes; another run with the same id
    is never replaced.
    """
    known = False

    def found() -> None:
        nonlocal known
        known = True

    run_id = stores.read(
        store, lambda reader: archives.put_back(reader.store, place, on_known=found), create=True
    )
    if as_json:
        screen.say_json({"id": run_id, "place": remote.shown(place), "repeated": known})
        return
    told = f"{run_id}: the store has this run already; nothing changed" if known else run_id
    screen.say(("known  " if known else "back  ", "bold green"), told)
    say_commands([(line("show", run_id, store=store), "look at it")])


# --- backups -----------------------------------------------------------------------------------------


@command(CARE)
def backup(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The backup file to write; it must not exist yet.")
    ],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Copy the whole store into a file while runs continue.

    Blobs that are not in the database are copied into the folder FILE.blobs.
    """

    def use(reader: Reader) -> tuple[int, str]:
        with gauge(quiet=as_json) as tell:
            return restoring.back_up(reader.store, file, tell), reader.store.url

    blobs, url = stores.read(store, use)
    if as_json:
        screen.say_json({"file": file, "blobs": blobs, "store": url})
        return
    beside = f", and {screen.count(blobs, 'blob')} in {file}.blobs" if blobs else ""
    screen.say(("backed up  ", "bold green"), f"{url} to {file}{beside}")


@command(CARE)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A backup file that `holdfast backup` wrote.")],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Make a new store from a backup.

    The store must not exist yet. No process holds a run in it: leases from before the backup are void.
    """
    with gauge(quiet=as_json) as tell:
        url = restoring.restore(file, settings.resolve({"store": store}).store, tell)
    if as_json:
        screen.say_json({"store": url})
        return
    screen.say(("restored  ", "bold green"), url)
    say_commands(
        [
            (line("verify", store=store), "check every run in the new store"),
            (line("runs", store=store), "list its runs"),
        ]
    )


# --- doctor ------------------------------------------------------------------------------------------


@command(CARE)
def doctor(
    file: options.File = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Report why runs cannot continue, and problems with the store.

    Each run is listed with the commands that resume or answer it: of many runs with the same reason, the first three, and of each
    kind at most 20 reasons; --json lists all. With flows (FILE, or those of the project) it also finds runs whose flow has
    changed. A run that no live worker takes is reported at once; one that an idle worker leaves alone, or whose queue is full,
    after 60 seconds.
    """
    flows = _flows(file)
    known = {flow.name: flow for flow in flows} if flows is not None else None
    commands = command_line(file=file, store=store)

    def use(reader: Reader) -> tuple[list[Diagnosis], doctors.Sample, bool, list[Holder]]:
        clock = SystemClock().now
        found = doctors.examine(reader.store, known, clock(), commands)
        sample = doctors.verify_sample(reader.store, clock, commands, known=found)
        queued = [one.holder for one in reader.store.queues.holders() if one.holder.calls]
        return found, sample, doctors.is_checked(reader.store.upkeep.facts()), queued

    found, sample, is_checked, queued = stores.read(store, use)
    found += sample.damaged
    problems = [one for one in found if not one.waits]
    with screen.unread():
        if as_json:
            verified = {"runs": sample.runs, "of": sample.of, "at": sample.at}
            findings = [_as_json(one) for one in found]
            screen.say_json(
                {
                    "ok": not found,
                    "findings": findings,
                    "verified": verified,
                    "database_checked": is_checked,
                    "calls": [_waiting_calls(one) for one in queued],
                }
            )
        else:
            _say_findings(found)
            for one in queued:
                screen.say(("calls  ", "dim"), f"{one.describe()}: {one.describe_calls()}")
            _say_sample(sample, store, is_checked=is_checked)
            _say_summary(found)
    return Exit.STUCK if problems else Exit.WAITS if found else Exit.OK


def _say_sample(sample: doctors.Sample, store: str | None, *, is_checked: bool) -> None:
    check = sample.check()
    if not is_checked:
        screen.say(
            ("pages ", "dim"),
            "the database itself was not checked, because it is large; `holdfast verify` does",
        )
    screen.say(("logs  ", "dim"), f"{check.fault or check.detail}, {screen.when(sample.at)}")
    if sample.runs < sample.of:
        say_commands([(line("verify", store=store), "verify all of them")])


def _waiting_calls(holder: Holder) -> dict[str, Any]:
    waiting = [{"executor": at.executor, "limit": at.limit, "waiting": at.waiting} for at in holder.calls]
    return {"worker": holder.id, "process": holder.describe(), "waiting": waiting}


def _as_json(found: Diagnosis) -> dict[str, Any]:
    said = ("kind", "reason", "remedies", "run_id", "flow", "status", "since")
    return {name: getattr(found, name) for name in said} | {"waits": found.waits}


def _flows(file: str | None) -> list[flow_files.AnyFlow] | None:
    """Return the flows of the file or of the project; None if neither names any."""
    if file is not None:
        return flow_files.flows_in(file)
    return flow_files.project_flows(all_of_them=True) if flow_files.has_project_flows() else None


_ALIKE_MAX = 3
"""How many runs with the same reason are listed one by one."""
_REASONS_MAX = 20
"""How many reasons of the same kind are listed one by one: some name their run, so there may be as many as runs."""


def _by_reason(found: list[Diagnosis]) -> list[list[Diagnosis]]:
    alike: dict[tuple[str, str | None, str], list[Diagnosis]] = {}
    for one in found:
        alike.setdefault((one.kind, one.flow, one.reason), []).append(one)
    return list(alike.values())


def _say_findings(found: list[Diagnosis]) -> None:
    named: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    for alike in _by_reason(found):
        named[alike[0].kind] += 1
        if named[alike[0].kind] > _REASONS_MAX:
            unnamed[alike[0].kind] += len(alike)
            continue
        kind = f"{alike[0].kind}  ", "yellow" if alike[0].waits else "red"
        for one in alike[:_ALIKE_MAX]:
            since = f" (since {screen.when(one.since)})" if one.since is not None else ""
            screen.say(kind, f"{one.run_id or 'store'}: {one.reason}{since}")
            say_remedies(one.remedies)
        if more := len(alike) - len(alike[:_ALIKE_MAX]):
            screen.say(
                kind,
                f"{screen.count(more, 'more run')} of flow {alike[0].flow!r} with the same reason (--json lists all)",
            )
    for name, count in unnamed.items():
        screen.say(
            (f"{name}  ", "red"),
            f"{screen.count(count, 'more run')} with other reasons of this kind (--json lists all)",
        )


def _say_summary(found: list[Diagnosis]) -> None:
    waiting = sum(one.waits for one in found)
    if not found:
        screen.say(("✓ ", "green"), "no problems found in the store, and no run is stuck")
        return
    problems = len(found) - waiting
    screen.say(
        f"{screen.count(problems, 'problem')}, {screen.count(waiting, 'run')} waiting for an answer, a signal or a resume"
    )
