"""Commands for plans, which are flows written as data: check, run, draw, schema, and the plan of a run.

PLAN is a JSON or YAML file, or `-` for stdin. The capabilities that it calls come from a Python file, as flows do. The run of a
plan is resumed, answered and looked at with the same commands as any other run, because the store has its plan.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import flow_files, options, program, screen, stores
from holdfast.cli.app import PLANS, command
from holdfast.cli.execution import Errand, WhenDurable, execute
from holdfast.cli.exits import Exit
from holdfast.cli.listing import facts_of, print_graph
from holdfast.cli.suggestions import line, say_commands, status_words
from holdfast.cli.worker import say_recorded
from holdfast.core import drawing, requests
from holdfast.core.graph import Flow
from holdfast.errors import PlanError, Problem, SettingError
from holdfast.plan import Capabilities, document, texts
from holdfast.reading.cases import case_of
from holdfast.reading.diagnosis import diagnose
from holdfast.reading.node_reasons import NodeReasons, reasons_of, tell
from holdfast.reading.reader import Reader
from holdfast.reading.views import Run
from holdfast.storage.contract import RunRow

_STDIN = "-"

Plan = Annotated[
    str, typer.Argument(metavar="PLAN", help="The plan: a JSON or YAML file, or - to read it from stdin.")
]
CapabilitiesFile = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE.py[:NAME]",
        help="The Python file that defines the capabilities. Default: [tool.holdfast] flows in pyproject.toml.",
    ),
]


class _Given(msgspec.Struct):
    """The arguments of a command: a plan, and the capabilities that it calls."""

    plan: str
    file: str | None
    capabilities: Capabilities

    @property
    def name(self) -> str:
        return "the plan from stdin" if self.plan == _STDIN else self.plan

    def problems(self) -> tuple[dict[str, Any], list[Problem]]:
        """Return the plan as plain data, and all its problems."""
        try:
            plain = document.read(self._source())
        except PlanError as fault:
            return {}, list(fault.problems)
        return plain, self.capabilities.check(plain)

    def flow(self) -> Flow[Any]:
        """Return the flow of the plan. Raises `PlanError`, which names the file and lists all problems."""
        try:
            return self.capabilities.plan(self._source())
        except PlanError as fault:
            raise PlanError(self.name, fault.problems) from fault

    def _source(self) -> bytes | Path:
        return sys.stdin.buffer.read(texts.BYTES_MAX + 1) if self.plan == _STDIN else Path(self.plan)


def _read(plan: str, file: str | None) -> _Given:
    """Return the plan and the capabilities that were named. The two may be swapped: only one of them is a Python file."""
    if _is_python(plan) and not (file is not None and _is_python(file)):
        if file is None:
            raise SettingError(
                f"{plan} is a Python file, and not a plan. Name the plan, a JSON or YAML file, before it: "
                f"`{line('plan', program.typed()[1], 'PLAN', plan)}`"
            )
        plan, file = file, plan
    return _Given(plan, file, flow_files.load_capabilities(file))


def _is_python(named: str) -> bool:
    return flow_files.split(named)[0].endswith(".py")


@command(PLANS, "plan")
def check(
    plan: Plan,
    file: CapabilitiesFile = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Check a plan, and print all its problems.

    Each problem has its path in the document. Nothing is executed and nothing recorded. Exit code 2 means that the plan has
    problems.
    """
    given = _read(plan, file)
    plain, problems = given.problems()
    if as_json:
        screen.say_json({"ok": not problems, "problems": [problem._asdict() for problem in problems]})
    elif problems:
        screen.say(("✗ ", "red"), f"{given.name}: {screen.count(len(problems), 'problem')}")
        for problem in problems:
            screen.say("  ", (problem.path, "bold"), f"{': ' if problem.path else ''}{problem.message}")
    else:
        size = f"{screen.count(len(plain['tasks']), 'task')}, {screen.count(len(plain.get('edges', ())), 'edge')}"
        screen.say(("✓ ", "green"), f"{given.name}: {size}, no problems")
    return Exit.USAGE if problems else Exit.OK


@command(PLANS, "plan")
@options.of(requests.Start, without=options.NOT_TYPED)
def run(
    plan: Plan,
    file: CapabilitiesFile = None,
    run_id: options.NewRunId = None,
    label: options.Label = None,
    *,
    said: options.Said,
    durability: WhenDurable = None,
    no_execute: Annotated[
        bool, typer.Option("--no-execute", help="Execute nothing here: record the run for a worker.")
    ] = False,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    resources: options.Resources = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Start a run of a plan and execute it.

    The whole plan is checked first: of a plan with a problem, nothing is executed and nothing recorded. The plan is stored with
    the run, so a resume needs only the capabilities. If a run with this id and plan exists already, that run is resumed.
    """
    given = _read(plan, file)
    flow = given.flow()
    chosen = run_id if run_id is not None else f"{flow.name[:40]}-{secrets.token_hex(4)}"
    options.check_timeout(said["timeout"])
    asked: dict[str, Any] = {
        **said, "run_id": chosen, "labels": options.read_pairs(label or [], "--label"), "by": options.resolve_actor(by),
    }  # fmt: skip
    if no_execute:
        _refuse_execution_options({"--durability": durability, "--grace": grace, "--resources": resources})
        return _record(given, flow, asked, store, run_base, as_json=as_json)
    errand = Errand(
        verb="run",
        run_id=chosen,
        flows=[given.capabilities],
        file=given.file,
        store=store,
        as_json=as_json,
        debug=debug,
        grace=grace,
        run_base=run_base,
        resources=resources,
        durability=durability,
        create=True,
        has_plan=True,
    )
    return execute(errand, lambda engine: engine.run(flow, **asked))


def _refuse_execution_options(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise SettingError(
                f"{name} cannot be combined with --no-execute, because a worker executes the run; leave it out"
            )


def _record(
    given: _Given,
    flow: Flow[Any],
    asked: dict[str, Any],
    store: str | None,
    run_base: str | None,
    *,
    as_json: bool,
) -> int:
    """Record a run for a worker, and print how it is executed."""
    stores.require_shared(store, "plan run --no-execute")

    async def use(engine: Any) -> RunRow:
        if given.file is not None:
            engine.flow_files[flow.name] = flow_files.absolute(given.file)
        await engine.start(flow, **asked)
        row: RunRow = engine.store.run(asked["run_id"])
        return row

    row = stores.execute(store, use, {"flows": [given.capabilities], "run_base": run_base}, create=True)
    say_recorded(row, given.file, store, as_json=as_json)
    return Exit.OK


@command(PLANS, "plan")
def draw(
    plan: Plan,
    file: CapabilitiesFile = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the plan as a Mermaid flowchart instead of text.")
    ] = False,
    svg: Annotated[
        bool, typer.Option("--svg", help="Print the plan as an SVG document instead of text.")
    ] = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Draw the tasks and edges of a plan.

    Guards are written at the edges, and edges that take a failure are marked. `holdfast graph RUN` draws the plan of a run.
    """
    flow = _read(plan, file).flow()
    if as_json:
        screen.say_json({"definition": flow.definition})
        return
    if flow.description and not (mermaid or svg):
        screen.say(f"{drawing.clean(flow.description)}\n")
    print_graph(flow.definition, mermaid=mermaid, svg=svg)


@command(PLANS, "plan")
def schema(
    file: CapabilitiesFile = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Print the JSON Schema of the plans that can be executed.

    It lists the capabilities with the types of their inputs, so that a model can be constrained to it.
    """
    screen.say_json(flow_files.load_capabilities(file).schema())


# --- the plan of a run -------------------------------------------------------------------------------


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run, and what became of each part of it."""

    run_id: str
    flow: str
    status: str
    reason: str
    title: str
    rationale: str
    alternatives: list[Any]
    goal: Any
    plan: dict[str, Any]
    """Tasks, edges and rules, as they are stored."""
    nodes: list[NodeReasons]


@command(PLANS, "plan")
def show(
    run_id: options.RunId,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Show the plan of a run: what each task did, and why.

    For every task: which edges led to it, the guards with the values that they have read, what policies decided, how its output
    was verified, and why it was skipped. It needs no file: the plan is in the store.
    """

    def use(reader: Reader) -> tuple[PlanView, Run[Any], str]:
        row, now = reader.store.run(run_id), reader.store.now()
        case = case_of(reader.store, row, holders=reader.store.queues.holders())
        assert case.state is not None
        definition = reader.definition(row)
        if not definition.plan:
            raise SettingError(
                f"run {run_id!r} follows the flow {row.flow!r}, a graph in code, and not a plan. Show it with "
                f"`{line('show', run_id, store=store)}`"
            )
        found = diagnose(case, now)
        values = case.state.values
        about = values.get("about") or {}
        view = PlanView(
            run_id=run_id,
            flow=row.flow,
            status=row.status,
            reason=found.reason,
            title=about.get("title", ""),
            rationale=about.get("rationale", ""),
            alternatives=about.get("alternatives", []),
            goal=values.get("goal"),
            plan=definition.plan,
            nodes=list(reasons_of(reader.store, row, definition, case.state).values()),
        )
        return (
            view,
            reader.view(row, case.state),
            "; ".join([status_words(row.status, found), *facts_of(reader.view(row, case.state), now)]),
        )

    view, run, facts = stores.read(store, use)
    with screen.unread():
        if as_json:
            screen.say_json(view)
        else:
            _say_plan(view, run, facts, store)


def _say_plan(view: PlanView, run: Run[Any], facts: str, store: str | None) -> None:
    screen.say(
        (screen.one_line(view.title) or "A plan without a title", "bold"), f"  ({view.run_id}, {view.flow})"
    )
    screen.say((facts, "dim"))
    for name, told in (("goal", _goal(view.goal)), ("rationale", view.rationale)):
        if told:
            screen.say((f"{name}: ", "dim"), screen.one_line(told, 300))
    for other in view.alternatives:
        told = other if isinstance(other, str) else screen.json_text(other, indent=None)
        screen.say(("alternative: ", "dim"), screen.one_line(told, 300))
    capabilities = {part["id"]: part for part in view.plan["tasks"]}
    for reasons in view.nodes:
        screen.say("")
        _say_node(reasons, capabilities[reasons.node], run)
    screen.say("")
    screen.say("Why:  ", view.reason)
    say_commands([
        (line("show", view.run_id, store=store), "show what can be done about the run"),
        (line("ledger", view.run_id, store=store), "list every decision, in order"),
    ])  # fmt: skip


def _goal(goal: Any) -> str:
    """Return the goal of a plan in one line."""
    if isinstance(goal, str) or goal is None:
        return goal or ""
    text, acceptance = (goal.get("text"), goal.get("acceptance")) if isinstance(goal, dict) else (None, None)
    if not isinstance(text, str):
        return screen.json_text(goal, indent=None)
    wanted = [one for one in acceptance if isinstance(one, str)] if isinstance(acceptance, list) else []
    return f"{text} (accepted if: {'; '.join(wanted)})" if wanted else text


def _say_node(reasons: NodeReasons, described: dict[str, Any], run: Run[Any]) -> None:
    status = reasons.status or "not reached"
    mark = drawing.MARKS.get(status, "·")
    style = screen.STYLES.get(status, "dim")
    node = run.nodes.get(reasons.node)
    spent = f", {screen.duration(node.seconds)}" if node is not None and node.tries else ""
    tries = f", {screen.count(node.tries, 'attempt')}" if node is not None and node.tries > 1 else ""
    title = f"  {described['title']}" if described.get("title") else ""
    screen.say(
        (drawing.in_ascii(mark) if screen.ascii_only() else mark, style), " ", (reasons.node, "bold"),
        f"  {described['capability']}  ", (status, style), (f"{spent}{tries}{title}", "dim"),
    )  # fmt: skip
    join = (
        ["joins some: one edge to it is enough"] if reasons.join == "some" and len(reasons.edges) > 1 else []
    )
    for told in [*join, *tell(reasons)]:
        screen.say(f"    {screen.one_line(told)}")
