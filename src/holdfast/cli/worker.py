"""Commands for a fleet of workers: worker executes runs; start, queue and recover only record or read.

A worker prints one line when it is ready, one line for each run that stopped, and problems on stderr. SIGTERM and Ctrl-C make
it drain: it claims no new run, running nodes may finish within the grace period, leases are released, and the exit code is 0,
because no run has to be resumed by hand. A second signal ends it at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO

import msgspec
import typer

from holdfast.cli import flow_files, options, program, screen, stores
from holdfast.cli.app import CHECK, EXECUTE, OPERATE, command
from holdfast.cli.execution import require_fit
from holdfast.cli.exits import Exit
from holdfast.cli.faults import say_where, where
from holdfast.cli.suggestions import command_line, find_ways_out, line, say_remedies, say_trouble
from holdfast.core import requests
from holdfast.core.run_state import ENDED
from holdfast.errors import HoldfastError, SchemaTooNew, SettingError
from holdfast.reading.diagnosis import Diagnosis
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.views import Run
from holdfast.runtime import blocking
from holdfast.runtime.creation import BEGIN_MAX_S, check_queue
from holdfast.runtime.engine import Engine
from holdfast.runtime.worker import Trouble
from holdfast.storage.contract import RunRow
from holdfast.storage.queues import DEFAULT_QUEUE, Queue
from holdfast.upkeep import retention
from holdfast.upkeep.recovery import Recovery, RecoveryReport

_FINDINGS_MAX = 100
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", metavar="N", help="How many runs the worker executes at a time. Default: 10."
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Execute only runs of this queue; repeatable. Default: all queues.",
    ),
]


@command(EXECUTE)
@options.of(requests.Resume, only=options.OF_CHANGES)
def worker(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.py[:FLOW]]...",
            help="The Python files that define the flows to execute. Default: [tool.holdfast] flows in pyproject.toml.",
        ),
    ] = None,
    flows: Annotated[
        list[str] | None,
        typer.Option(
            "--flows",
            metavar="FILE.py[:FLOW]",
            help="A Python file that defines a flow to execute, the same as the argument FILE.py; repeatable.",
        ),
    ] = None,
    concurrency: Concurrency = None,
    queue: Queues = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when there is no run left to execute.")
    ] = False,
    *,
    said: options.Said,
    resources: options.Resources = None,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Execute the runs that wait for a worker, until stopped.

    Claims runs of the given flows that were started, are due, or whose process crashed. Many workers may share a store. SIGTERM
    or Ctrl-C makes it drain: it claims no new run, and exits when its running nodes have ended, or after the grace period
    (--grace).
    """
    if concurrency is not None and concurrency < 1:
        raise SettingError(f"--concurrency {concurrency}: give a whole number, at least 1")
    stores.require_shared(store, "worker")
    stores.require_here(store, "worker", "Start the worker where the store is, and name that store.")
    given = [*(files or []), *(flows or [])]
    known, made = _flows_of(given), flow_files.load_resources(resources)
    for name in queue or []:
        check_queue(name)
    drained = False

    with screen.shielded(json_only=as_json) as out:
        voice = _Voice(out, _commands_for(given, store), as_json=as_json, debug=debug)

        async def use(engine: Engine) -> None:
            nonlocal drained
            engine.flow_files.update(flow_files.by_flow(given))
            voice.began(engine, queue or [], concurrency or engine.settings.concurrency)
            await engine.work(
                concurrency=concurrency,
                queues=queue or [],
                until="idle" if until_idle else None,
                **said,
                on_end=voice.ended,
                on_report=voice.trouble,
                on_drain=voice.drains,
            )
            drained = True

        opened: blocking.Options = {
            "flows": known,
            "resources": made,
            "grace": grace,
            "run_base": run_base,
        }
        signalled = Exit.OK
        try:
            stores.execute(store, use, opened, create=True)
        except KeyboardInterrupt:
            signalled = Exit.INTERRUPTED
        except SystemExit:
            signalled = Exit.TERMINATED
        voice.left(in_order=drained)
    return Exit.OK if drained else signalled


def _commands_for(given: list[str], store: str | None) -> CommandLine:
    return command_line(file=given[0] if len(given) == 1 else None, store=store)


def _flows_of(given: list[str]) -> list[flow_files.AnyFlow]:
    found = [flow for file in given for flow in flow_files.flows_in(file)] or flow_files.project_flows(
        all_of_them=True
    )
    if not found:
        raise SettingError(
            f"a worker needs flows. Name the files that define them: {program.name()} worker FILE.py; or list them in "
            'pyproject.toml: [tool.holdfast] flows = ["FILE.py"].'
        )
    return list({id(flow): flow for flow in found}.values())


class _Voice:
    """Prints what a worker reports: lines of text, or one JSON document per line."""

    def __init__(self, out: TextIO, commands: CommandLine, *, as_json: bool, debug: bool) -> None:
        self._out = out
        self._commands = commands
        self._reader: Reader | None = None
        self._as_json = as_json
        self._debug = debug
        self._count = 0
        self._open: set[str] = set()
        """The runs that were counted and have not ended, so that a run which waits and is claimed again counts once."""

    def began(self, engine: Engine, queues: list[str], concurrency: int) -> None:
        names = sorted(engine.flows)
        self._reader = engine.reader
        if self._as_json:
            self._say_json(
                "began", flows=names, queues=queues, concurrency=concurrency, store=engine.store.url
            )
            return
        of = f"queue {', '.join(queues)}" if queues else "all queues"
        at_a_time = f"{screen.count(concurrency, 'run')} at a time"
        self._say(("worker  ", "bold"), f"{', '.join(names)}  ({of}, {at_a_time})  {engine.store.url}")

    def ended(self, run: Run[Any]) -> None:
        self._count += run.id not in self._open
        (self._open.discard if run.status in ENDED else self._open.add)(run.id)
        error = run.error.describe() if run.error is not None else None
        if self._as_json:
            self._say_json(
                "run",
                id=run.id,
                flow=run.flow,
                status=run.status,
                active_s=run.active_s,
                error=error,
                where=where(run.error),
            )
            return
        tries = screen.count(sum(node.tries for node in run.nodes.values()), "attempt")
        why = f": {screen.one_line(error, 300)}" if error is not None and run.status == "failed" else ""
        asked = f"; asks question {run.questions[0].key}" if run.questions else ""
        status = (run.status, screen.STYLES.get(run.status, ""))
        self._say(status, f"  {run.id}  {run.flow}, {tries}, {screen.duration(run.active_s)}{why}{asked}")
        if run.status == "failed":
            say_where(run.error, debug=self._debug)
            self._out.flush()

    def trouble(self, trouble: Trouble) -> None:
        ways = find_ways_out(self._reader, trouble, self._commands) if self._reader is not None else ()
        if self._as_json:
            more = {"remedies": ways} if ways else {}
            self._say_json("trouble", run=trouble.run_id, flow=trouble.flow, told=trouble.message, **more)
            return
        say_trouble(trouble, ways)

    def drains(self, going: int) -> None:
        if self._as_json:
            self._say_json("draining", runs=going)
        elif going:
            still = "1 run is still executed" if going == 1 else f"{going} runs are still executed"
            self._say(("draining  ", "bold"), f"{still}; a second signal stops the worker at once")

    def left(self, *, in_order: bool) -> None:
        if self._as_json:
            self._say_json("left", in_order=in_order, runs=self._count)
        elif in_order:
            self._say(("stopped  ", "bold"), f"{screen.count(self._count, 'run')} executed, no lease held")
        else:
            screen.say(
                ("stopped at once. ", "yellow"),
                "Other workers take over the runs of this worker when its lease has expired.",
                err=True,
            )

    def _say(self, *parts: screen.Part) -> None:
        screen.say(*parts)
        self._out.flush()

    def _say_json(self, event: str, **facts: Any) -> None:
        self._out.write(screen.json_text({"event": event, **facts}, indent=None) + "\n")
        self._out.flush()


# --- recording and reading ---------------------------------------------------------------------------


BeginAt = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="Begin at this time, e.g. 2030-01-31T09:00+01:00. Default: at once."
    ),
]
BeginIn = Annotated[
    str | None, typer.Option("--in", metavar="TIME", help="Begin after this time, e.g. 90s, 45m, 2h or 3d.")
]


@command(EXECUTE)
@options.of(requests.Start, without=options.NOT_TYPED)
def start(
    file: options.FlowFile,
    given: options.Input = None,
    run_id: options.NewRunId = None,
    label: options.Label = None,
    *,
    said: options.Said,
    at: BeginAt = None,
    delay: BeginIn = None,
    run_base: options.RunBase = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Record a new run, for a worker to execute.

    If a run with this id, flow and input exists already, nothing changes, so that starting a run twice is harmless.
    """
    stores.require_shared(store, "start")
    flow = flow_files.load_flow(file, with_plan="plan run PLAN --no-execute")
    chosen = run_id if run_id is not None else f"{flow.name[:40]}-{secrets.token_hex(4)}"
    value, labels = options.read_fields(given, "--input"), options.read_pairs(label or [], "--label")
    require_fit(flow, value)
    options.check_timeout(said["timeout"])
    begins = _Begins(at, delay)

    async def use(engine: Engine) -> RunRow:
        engine.flow_files[flow.name] = flow_files.absolute(file)
        with begins.named():
            await engine.start(
                flow,
                value,
                run_id=chosen,
                labels=labels,
                **said,
                begin_at=begins.moment(engine.store.now()),
                by=options.resolve_actor(by),
            )
        return engine.store.run(chosen)

    row = stores.execute(store, use, {"flows": [flow], "run_base": run_base}, create=True)
    say_recorded(row, file, store, as_json=as_json)


def say_recorded(row: RunRow, file: str | None, store: str | None, *, as_json: bool) -> None:
    """Print that a run is recorded, and how it is executed. `file` defines its flow; None if the project lists that file."""
    words = [file] if file is not None else []
    executes = line("worker", *words, store=store) if not stores.is_server(store) else None
    if as_json:
        facts = {"id": row.run_id, "status": row.status, "queue": row.queue, "due_at": row.due_at}
        screen.say_json(facts | {"executes": executes})
        return
    screen.say((row.status, screen.STYLES.get(row.status, "")), f"  {row.run_id}")
    if row.status == "pending":
        if row.due_at is not None:
            screen.say(f"  it begins at {screen.when(row.due_at)}")
        elif executes is not None and _say_obstacle_or_taker(row, file, store):
            return
        screen.say(
            f"  execute it with a worker: {executes}"
            if executes is not None
            else "  a worker of the server executes it; see its progress: "
            + line("events", row.run_id, "--follow", store=store)
        )


def _say_obstacle_or_taker(row: RunRow, file: str | None, store: str | None) -> bool:
    """Print which live worker claims a new run, or that its queue is stopped. Return whether that says enough. The run is
    recorded, so the command has succeeded even if the store cannot be read now.
    """
    try:
        found = stores.read(
            store, lambda reader: reader.diagnose(row.run_id, command_line(file=file, store=store))
        )
    except HoldfastError as fault:
        return isinstance(fault, SchemaTooNew)  # a worker of a newer version has claimed it
    if found.taker is not None:
        screen.say(f"  {found.taker} takes flow {row.flow!r}, and claims the run")
    elif [one.verb for one in found.remedies[:1]] == ["queue"]:
        screen.say(f"  {found.reason}")
        say_remedies(found.remedies)
    else:
        return False
    return True


class _Begins:
    """When a run begins: the options `--at` and `--in`."""

    def __init__(self, at: str | None, delay: str | None) -> None:
        if at is not None and delay is not None:
            raise SettingError("--at and --in cannot be combined; give one of the two")
        self._option = f"--at {at}" if at is not None else f"--in {delay}"
        self._at = _read_time(at) if at is not None else None
        self._delay_s = retention.seconds(delay, "--in") if delay is not None else None
        if self._delay_s is not None and not 0 < self._delay_s <= BEGIN_MAX_S:
            raise SettingError(f"--in {delay}: give a time of more than 0 seconds and at most ten years")

    def moment(self, now: float) -> datetime | None:
        """Return the time at which the run begins; None: at once. `now` is the store's time."""
        if self._delay_s is not None:
            self._at = datetime.fromtimestamp(now + self._delay_s, UTC)
        return self._at

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors about the time name the option that was typed."""
        try:
            yield
        except SettingError as fault:
            typed = str(fault).replace(
                f"begin_at={self._at.isoformat()}" if self._at else "begin_at", self._option
            )
            raise SettingError(typed.replace("begin_at", self._option.split()[0])) from fault


def _read_time(given: str) -> datetime:
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise SettingError(
            f"--at {given!r} is not a time: write it as 2030-01-31T09:00+01:00 or 2030-01-31T08:00Z; or use --in 2h"
        ) from None
    if at.utcoffset() is None:
        raise SettingError(
            f"--at {given!r} has no time zone: add it at the end, as in {at.isoformat()}+01:00, or Z for UTC"
        )
    return at


@command(OPERATE)
def queue(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The queue to list or to limit. Default: list all queues."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            help="How many runs of this queue all workers together may execute at a time.",
        ),
    ] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Remove the limit of this queue.")] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List queues, or limit how many runs of a queue are executed at a time."""
    if limit is not None and no_limit:
        raise SettingError(f"--limit {limit} and --no-limit cannot be combined; give one of the two")
    if limit is not None and limit < 0:
        raise SettingError(f"--limit {limit}: give a whole number, 0 or more; --no-limit removes the limit")
    if name is None and (limit is not None or no_limit):
        raise SettingError(f"name the queue to limit, as in {program.name()} queue {DEFAULT_QUEUE} --limit 5")
    if name is not None:
        check_queue(name)

    def use(reader: Reader) -> list[Queue]:
        queues = reader.store.queues
        if name is not None and (limit is not None or no_limit):
            queues.limit(name, limit)
        return [found for found in queues.queues() if name in (None, found.name)]

    found = stores.read(store, use)
    if name is not None and not found:
        found = [Queue(name=name)]
    if as_json:
        screen.say_json([msgspec.to_builtins(one) for one in found])
        return
    if not found:
        screen.say("no run waits in any queue, and no queue has a limit")
        return
    rows = [
        [one.name, str(one.offered), str(one.held), "none" if one.limit is None else str(one.limit)]
        for one in found
    ]
    screen.say_table(["QUEUE", "ON OFFER", "EXECUTED", "LIMIT"], rows)


@command(CHECK)
def recover(
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Find runs that do not move, and offer them to workers again.

    It executes no run: workers claim the runs, or `holdfast resume` executes one.
    """
    commands = command_line(store=store)
    report = stores.read(store, lambda reader: Recovery(reader.store, commands=commands).sweep())
    if as_json:
        screen.say_json(report)
    else:
        _say_report(report)
    return Exit.OK if report.error is None else Exit.STORE


def _say_report(report: RecoveryReport) -> None:
    for holder in report.given_back:
        screen.say(("released  ", "bold"), f"the leases of {holder}, which has died")
    for found in report.findings[:_FINDINGS_MAX]:
        _say_finding(found, report.at)
    more = len(report.findings) - _FINDINGS_MAX
    if more > 0:
        screen.say(f"… and {more} more; --json lists them all")
    if not report.complete:
        screen.say(
            "not all runs were examined, because there are too many for one call; run this command again when some have ended"
        )
    if report.error is not None:
        screen.say(("error: ", "bold red"), report.error, err=True)
    elif not report.findings:
        screen.say("no run is stuck" if report.complete else "none of the examined runs is stuck")


def _say_finding(found: Diagnosis, now: float) -> None:
    node = f" {found.node}" if found.node is not None else ""
    since = f", {screen.ago(now - found.since)}" if found.since is not None else ""
    screen.say((found.kind, "yellow"), f"  {found.run_id}{node}: {found.reason}{since}")
    say_remedies(found.remedies)
