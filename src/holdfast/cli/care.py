"""Commands that keep a store small, whole and understood: prune, archive, unarchive, backup, restore, doctor.

What goes, what stays and why is decided in `holdfast.upkeep.retention`; what is wrong, in `holdfast.upkeep.doctor`. Here it is
asked and told. Nothing is overwritten, and every command may be killed and called again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import flow_files, options, program, screen, stores
from holdfast.cli.app import CARE, command
from holdfast.cli.exits import Exit
from holdfast.cli.gauge import gauge
from holdfast.cli.standing import Way, line, say_ways, standing
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL
from holdfast.errors import HoldfastError, SettingError
from holdfast.runtime import settings
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import in_order
from holdfast.storage.files import remote, restoring
from holdfast.upkeep import archive as archives
from holdfast.upkeep import doctor as doctors
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Choice, Policy, Pruned, Swept

_NAMED_MAX = 3

Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        help="Archive before anything goes: a file, or a folder or URL ending in /.",
    ),
]


# --- prune -------------------------------------------------------------------------------------------


@command(CARE)
def prune(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            callback=options.a_run,
            help="Retire checkpoints of this run. Default: delete runs.",
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", metavar="N", min=1, help="Checkpoints of RUN that stay. Default: 5."),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Also let a base stand for the events of RUN before them.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Delete runs that ended so long ago: 30d, 12h."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=0, help="The newest N of each flow and status stay."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="completed, cancelled, failed; repeatable. Default: the first two.",
        ),
    ] = None,
    flow: Annotated[
        str | None, typer.Option("--flow", metavar="NAME", help="Only runs of this flow.")
    ] = None,
    archive: Archive = None,
    shared_blobs: Annotated[
        bool,
        typer.Option("--shared-blobs", help="Also remove blobs of nobody from a place set with `blobs`."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Retire checkpoints of a run, or delete runs that ended.

    Without RUN and options the policies of [tool.holdfast.retention] decide. What something still needs stays; of runs that ended
    it is told with the reason.
    """
    of_runs = (older_than, keep, status, flow)
    if run_id is not None:
        if any(option is not None for option in of_runs) or dry_run:
            raise SettingError(
                "--older-than, --keep, --status, --flow and --dry-run are for many runs: leave RUN out"
            )
        if archive is not None and not compact:
            raise SettingError(
                "--archive goes with --compact: retiring checkpoints takes nothing from the log"
            )
        _prune_one(run_id, keep_last or retention.KEEP_LAST, compact, archive, store, as_json=as_json)
        return
    if keep_last is not None or compact:
        raise SettingError("--keep-last and --compact are for one run: name it")
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
    went = f", {screen.count(done.snapshots, 'snapshot')} dropped" if done.snapshots else ""
    screen.say(("pruned  ", "bold green"), f"{run_id}  {screen.count(done.kept, 'checkpoint')} kept{went}")
    if done.events:
        screen.say(f"  a base stands for {screen.count(done.events, 'event')} up to {done.base}")
    if done.place:
        screen.say(f"  archived at {done.place}")
    if done.why:
        screen.say(f"  not more: {done.why}")


def _policies(
    older_than: str | None, keep: int | None, status: list[str] | None, flow: str | None, archive: str | None
) -> tuple[list[Policy], str | None]:
    if older_than is None and keep is None and status is None and flow is None:
        where = f"{flow_files.project_file()}: [tool.holdfast.retention]"
        found, place = retention.policies(settings.project_table().get("retention", {}), where)
        if not found:
            raise SettingError(
                "say which runs may go: --older-than 30d, --keep 1000, or both; or list policies in pyproject.toml under "
                "[tool.holdfast.retention]"
            )
        return found, archive or place
    policy = Policy(
        flow=flow,
        status=tuple(map(retention.status_of, status)) if status else in_order(FINAL),
        older_than=retention.seconds(older_than, "--older-than") if older_than is not None else None,
        keep=keep,
    )
    return [retention.check_policy(policy)], archive


def _prune_many(
    wanted: list[Policy],
    place: str | None,
    shared_blobs: bool,
    store: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    async def use(engine: Engine) -> tuple[list[Choice], Swept | None]:
        chosen = retention.choose(engine.store, wanted)
        if dry_run:
            return retention.preview_deletion(engine.store, chosen), None
        done: list[Choice] = []
        with _told_at_least(done, as_json=as_json), gauge(quiet=as_json) as tell:
            for choice in retention.delete_all(engine.store, chosen, place):
                done.append(choice)
                tell("runs", len(done), len(chosen))
            own = shared_blobs or not engine.settings.blobs
            return done, retention.sweep(engine.store, blobs_too=own)

    chosen, swept = stores.read(store, use)
    if as_json:
        screen.say_json(_listed(chosen, dry_run=dry_run) | {"swept": swept})
        return
    _say_choices(chosen, dry_run=dry_run)
    if swept is not None:
        _say_swept(swept)


@contextmanager
def _told_at_least(done: list[Choice], *, as_json: bool) -> Iterator[None]:
    """What went before an error is told all the same: it is gone. With a signal it is no different."""
    try:
        yield
    except BaseException as fault:
        if as_json:
            error = str(fault) or type(fault).__name__
            screen.say_json(_listed(done, dry_run=False) | {"swept": None, "error": error})
        elif done:
            _say_choices(done, dry_run=False)
        raise


def _listed(chosen: list[Choice], *, dry_run: bool) -> dict[str, Any]:
    gone = [choice for choice in chosen if choice.goes]
    kept = [choice for choice in chosen if not choice.goes]
    return {"dry_run": dry_run, "deleted": gone, "kept": kept}


def _say_choices(chosen: list[Choice], *, dry_run: bool) -> None:
    gone = [choice for choice in chosen if choice.goes]
    word = "would go  " if dry_run else "deleted   "
    for choice in gone:
        archived = f"; archived at {choice.place}" if choice.place else ""
        screen.say(
            (word, "yellow"), f"{choice.run_id}  {choice.flow} {choice.status}: {choice.why}{archived}"
        )
    reasons: dict[str, list[str]] = {}
    for choice in chosen:
        if not choice.goes:
            reasons.setdefault(choice.why, []).append(choice.run_id)
    for why, runs in reasons.items():
        more = f" and {len(runs) - _NAMED_MAX} more" if len(runs) > _NAMED_MAX else ""
        screen.say(("kept      ", "green"), f"{', '.join(runs[:_NAMED_MAX])}{more}: {why}")
    went = "would go" if dry_run else "deleted"
    screen.say(f"{screen.count(len(gone), 'run')} {went}, {len(chosen) - len(gone)} kept")


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
        str, typer.Option("--to", metavar="PLACE", help="A new file, or a folder or URL ending in /.")
    ],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write a run with everything it refers to into one file.

    The run stays; `prune --archive` archives what it deletes.
    """

    async def use(engine: Engine) -> archives.Archived:
        return archives.archive(engine.store, run_id, to)

    done = stores.read(store, use)
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
    """Put an archived run into a store, as it was.

    The store is made if it is missing. Twice is once; another run of that id is not replaced.
    """
    known = False

    def found() -> None:
        nonlocal known
        known = True

    async def use(engine: Engine) -> str:
        return archives.put_back(engine.store, place, on_known=found)

    run_id = stores.read(store, use, create=True)
    if as_json:
        screen.say_json({"id": run_id, "place": remote.shown(place), "repeated": known})
        return
    told = f"{run_id}: it was there already, as it was archived; nothing changed" if known else run_id
    screen.say(("known  " if known else "back  ", "bold green"), told)
    say_ways([Way(line("show", run_id, store=store), "look at it")])


# --- backups -----------------------------------------------------------------------------------------


@command(CARE)
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to: a file that is not there yet.")],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Copy the whole store into a file, while runs go on.

    Blobs that are not in the database lie in FILE.blobs beside it.
    """

    async def use(engine: Engine) -> tuple[int, str]:
        with gauge(quiet=as_json) as tell:
            return restoring.back_up(engine.store, file, tell), engine.store.url

    blobs, url = stores.read(store, use)
    if as_json:
        screen.say_json({"file": file, "blobs": blobs, "store": url})
        return
    beside = f", and {screen.count(blobs, 'blob')} in {file}.blobs" if blobs else ""
    screen.say(("backed up  ", "bold green"), f"{url} to {file}{beside}")


@command(CARE)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A backup.")],
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Make a store from a backup, where there is none.

    Nobody holds anything in it, and no lease from before the backup is of use.
    """
    with gauge(quiet=as_json) as tell:
        url = restoring.restore(file, settings.resolve({"store": store}).store, tell)
    if as_json:
        screen.say_json({"store": url})
        return
    screen.say(("restored  ", "bold green"), url)
    say_ways(
        [Way(line_of("verify", store), "check every run of it"), Way(line_of("runs", store), "list them")]
    )


def line_of(verb: str, store: str | None) -> str:
    """A command that takes no run, as it would be typed."""
    return line(verb, "", store=store).replace(" ''", "")


# --- doctor ------------------------------------------------------------------------------------------


@command(CARE)
def doctor(
    file: options.File = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Say which runs cannot go on and why, and whether the store is well.

    Every run comes with the command that carries it on; of many that stand still for the same reason the first three are told,
    and all of them with --json. With flows (FILE, or those of the project) it also tells which changed.
    What waits for a worker, or is past its time, is told after 60 seconds; everything else at once.
    """
    flows = _flows(file)

    async def use(engine: Engine) -> tuple[list[doctors.Finding], dict[doctors.Finding, list[Way]]]:
        known = {flow.name: flow for flow in flows} if flows is not None else None
        found = doctors.examine(engine.store, known, SystemClock().now())
        told = found if as_json else [one for alike in _by_reason(found) for one in alike[:_ALIKE_MAX]]
        return found, {
            finding: await _ways(engine, finding, _file_for(finding, file, known), store) for finding in told
        }

    found, ways = stores.read(store, use)
    problems = [finding for finding in found if not finding.waits]
    with screen.unread():
        if as_json:
            listed = [
                msgspec.to_builtins(finding) | {"waits": finding.waits, "ways": ways[finding]}
                for finding in found
            ]
            screen.say_json({"ok": not found, "findings": listed})
        else:
            _say_findings(found, ways)
    return Exit.STUCK if problems else Exit.WAITS if found else Exit.OK


def _flows(file: str | None) -> list[Flow[Any]] | None:
    """The flows that are known here; None: nobody named any."""
    if file is not None:
        return flow_files.flows_in(file)
    return flow_files.project_flows(all_of_them=True) if flow_files.has_project_flows() else None


def _file_for(finding: doctors.Finding, file: str | None, known: dict[str, Flow[Any]] | None) -> str | None:
    """The file to name in a command: not the one that was looked into and has not the flow, or not in the shape it needs."""
    lacks = known is not None and finding.flow is not None and finding.flow not in known
    return "FILE.py" if lacks or finding.takes is None else file


async def _ways(engine: Engine, finding: doctors.Finding, file: str | None, store: str | None) -> list[Way]:
    if finding.run_id is None:
        return []
    if finding.kind == "unreadable":
        return [Way(line("verify", finding.run_id, store=store), "see what is wrong with it")]
    try:
        run = await engine.get(finding.run_id)
        stands = await standing(engine, run, file=file, store=store, takes=finding.takes or ())
    except HoldfastError:
        return []
    if finding.kind == "queue full":
        return [Way(line_of("queue", store), "see the queues; raise the limit, or wait"), *stands.ways]
    if finding.takes != ():
        return _of_changed(finding, store, stands.ways)
    return stands.ways


def _of_changed(finding: doctors.Finding, store: str | None, ways: list[Way]) -> list[Way]:
    """What carries a run on whose flow has another shape now, each with what has to be true for it."""
    renamed = [pair.replace("=", " is called ") + " now" for pair in finding.takes or () if "=" in pair]
    made_with = "with the code that it was made with"
    provided = f"if {' and '.join(renamed)}" if renamed else "with the flow as it is now"
    if finding.takes is None:
        provided = made_with
        places = line("checkpoints", finding.run_id or "", store=store)
        ways = [*ways, Way(places, "or fork it from a place before the change")]
    needs = {f"{program.name()} resume ": provided, f"{program.name()} skip ": made_with}
    return [
        Way(
            way.command,
            way.does + "".join(f" ({need})" for verb, need in needs.items() if way.command.startswith(verb)),
        )
        for way in ways
    ]


_ALIKE_MAX = 3
"""Runs that stand still for the same reason and are told one by one."""


def _by_reason(found: list[doctors.Finding]) -> list[list[doctors.Finding]]:
    alike: dict[tuple[str, str | None, str], list[doctors.Finding]] = {}
    for finding in found:
        alike.setdefault((finding.kind, finding.flow, finding.told), []).append(finding)
    return list(alike.values())


def _say_findings(found: list[doctors.Finding], ways: dict[doctors.Finding, list[Way]]) -> None:
    for alike in _by_reason(found):
        kind = f"{alike[0].kind}  ", "yellow" if alike[0].waits else "red"
        for finding in alike[:_ALIKE_MAX]:
            since = f" (since {screen.when(finding.since)})" if finding.since is not None else ""
            screen.say(kind, f"{finding.run_id or 'store'}: {finding.told}{since}")
            say_ways(ways[finding])
        if more := len(alike) - len(alike[:_ALIKE_MAX]):
            screen.say(
                kind,
                f"{screen.count(more, 'more run')} of flow {alike[0].flow!r}: the same (--json names each)",
            )
    waiting = sum(finding.waits for finding in found)
    if not found:
        screen.say(("✓ ", "green"), "the store is well, and no run stands still")
        return
    problems = len(found) - waiting
    screen.say(f"{screen.count(problems, 'problem')}, {screen.count(waiting, 'run')} waiting for somebody")
