"""Decide what a run does next. `decide(flow, state, now) -> commands` is a pure function of the flow's definition, the state of
the run and the time.

The engine calls it after every append until it returns no more commands. It decides in this order:

1. Waits whose time has come end, and nodes of a plan that can never run any more are skipped.
2. Open visits that need a decision: an interrupted visit is run again, asked about or skipped, as the options of its node say
   (a visit that was interrupted inside a step with `idempotent=False` is always asked about), or quarantined if it repeatedly
   crashes its process; a visit whose retry is due, or for which something it waited for has come, continues; a fan-out starts,
   completes or fails its items; a completed node whose router had failed is routed; what a node has returned is judged again;
   a failure that an edge of a plan takes is handled.
3. Nodes that are due begin a new visit, as long as fewer than `max_parallel` nodes run and the iteration limit is not reached. A
   node with a gate asks first (a person, or its policies), and only an approval lets it begin. A fork first asks whether to
   repeat a visit that its parent has begun, and skips the visit if the answer says so.
4. If nothing runs and nothing can start, the layer is complete, the run has failed, it is completed, or it is paused because
   everything that is left is out of its scope.

Once a node has failed for good, or while the run is paused, no node starts, and running nodes may end. (A running fan-out
continues with its items.) Once the budget of the run is spent, no attempt and no item begins either, and the run fails when
nothing runs any more; an attempt that only waited continues. Nodes that are not in the scope of the run never start.

A run never ends while a node that it has reached has not begun: that would be a defect in this module, and is raised as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol, TypeAlias, assert_never

from holdfast.core.commands import (
    AnyCommand,
    AskAboutNode,
    AskFirst,
    AskRepeat,
    CompleteItems,
    CompleteLayer,
    CompleteRun,
    DueAt,
    ExpireQuestion,
    FailItems,
    FailRun,
    FinishNode,
    FireTimer,
    PauseRun,
    QuarantineNode,
    RouteNode,
    ScheduleNode,
    SkipNode,
    SkipNodes,
    SkipRepeat,
    StartItem,
    StartNode,
    WakeAt,
)
from holdfast.core.definition import Definition, NodeOptions
from holdfast.core.events import Failure
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import ACTIVE, NODE_LEVEL, NodeState, RunState
from holdfast.core.situation import explain_budget
from holdfast.core.topology import Topology
from holdfast.errors import IllegalEvent

_Begins: TypeAlias = StartNode | AskFirst | AskRepeat | SkipRepeat | ScheduleNode | SkipNode
"""The commands for a node that is due, or whose visit was refused before it began."""


REFUSALS = ("QuestionRefused", "PolicyDenied", "BudgetExceeded")
"""The types of failures by which a person, an agent or a policy refused a visit, or the budget of the run did. None of them is a
failure of the node itself."""


class Shape(Protocol):
    """The part of a flow that `decide` needs: its definition and its topology, but no functions."""

    @property
    def definition(self) -> Definition: ...

    @property
    def topology(self) -> Topology: ...


def decide(flow: Shape, state: RunState, now: float, ready: Readiness | None = None) -> list[AnyCommand]:
    """Return the next commands for the engine; none if the run has ended, or waits for a node to end, an answer, a signal or an
    operator.
    """
    if state.status not in ACTIVE:
        return []
    ready = ready or Readiness(flow.topology, state)
    commands: list[AnyCommand] = []
    wakes: list[float] = []
    lapses: list[float] = []
    if state.waits or state.questions:
        commands.extend(_over(state, now, wakes, lapses))
    if ready.doomed:
        commands.append(SkipNodes(tuple(ready.doomed), dict(ready.doomed)))
    room = flow.definition.max_parallel - state.running
    for name in tuple(ready.open):
        for command in _open_visit(flow.definition, state, name, now, wakes):
            if isinstance(command, StartNode) or (
                isinstance(command, AskFirst) and _asks_policies(flow, name)
            ):
                room -= 1
                if room < 0:
                    continue  # the visit stays due until another node ends and makes room
            commands.append(command)
    if state.budget is not None and state.is_over_budget:
        commands.extend(_refused(flow.definition, state))
        return _over_budget(state, ready, commands, wakes, lapses)
    starts, limit = _begin(flow.definition, state, ready, room)
    if state.running or commands or starts:
        wanted = commands + starts
        return wanted + _later(state, wanted, wakes, lapses) if wakes or lapses else wanted
    return [limit] if limit is not None else _end(state, ready, wakes, lapses)


def _asks_policies(flow: Shape, name: str) -> bool:
    return "pre" in flow.definition.nodes[name].judged


def _over(state: RunState, now: float, wakes: list[float], lapses: list[float]) -> Iterator[AnyCommand]:
    """End the waits and questions whose time has come. Adds the times of the others to `wakes` (when a timer ends) or to `lapses`
    (when it is too late for a signal or an answer).
    """
    for key, wait in state.waits.items():
        until = wait.until
        if until is None:
            continue
        if until <= now:
            yield FireTimer(key)
            continue
        match wait.kind:
            case "timer":
                wakes.append(until)
            case "signal" | "child":
                lapses.append(until)
            case unknown:
                assert_never(unknown)
    for key, question in state.questions.items():
        if question.until is None:
            continue
        if question.until <= now:
            yield ExpireQuestion(key)
        else:
            lapses.append(question.until)


def _open_visit(
    definition: Definition, state: RunState, name: str, now: float, wakes: list[float]
) -> Iterator[AnyCommand]:
    """Yield the commands for an open visit that needs a decision."""
    node = state.nodes[name]
    options = definition.nodes[name]
    held_back = bool(state.failed) or state.paused
    if not node.routed:
        if name not in state.failed and not state.paused:
            yield RouteNode(name)
    elif node.status == "running":
        yield from _items(options, node, name, now, wakes)
    elif node.status == "interrupted":
        yield from _cut(options, state, node, name, held_back=held_back)
    elif node.status == "waiting" and node.retry_at is not None:
        if now < node.retry_at:
            wakes.append(node.retry_at)
        elif not held_back:
            yield _again(options, state, node, name)
    elif node.status == "waiting" and node.items is not None and node.question is None and not held_back:
        yield from _items(options, node, name, now, wakes)
    elif node.status == "pending" and node.input is not None and not held_back:
        yield _again(options, state, node, name)
    elif node.status == "failed" and (
        is_caught(options, node) or (options.safe_to_fail and not _is_refused(node))
    ):
        yield SkipNode(name)


def _is_refused(node: NodeState) -> bool:
    """Return whether an answer or a policy refused the visit. `safe_to_fail` does not apply to a refusal."""
    return node.failure is not None and node.failure.type in REFUSALS


def _refused(definition: Definition, state: RunState) -> Iterator[SkipNode]:
    """Skip visits that were refused before they began, if an edge takes the refusal."""
    for name in state.failed:
        if name not in state.open and is_caught(definition.nodes[name], state.nodes[name]):
            yield SkipNode(name)


def is_caught(options: NodeOptions, node: NodeState) -> bool:
    """Return whether an edge may take the failure of a node. A refusal is taken only by an edge that names it."""
    failure = node.failure
    if not options.on_error or failure is None or node.unhandled:
        return False
    return catches(options.on_error, failure)


def catches(named: Collection[str], failure: Failure) -> bool:
    """Return whether one of these failure classes or types is that of a failure. `*` is every failure. A refusal must be named by
    its type: neither its class nor `*` takes it.
    """
    name = failure.type.rpartition(".")[2]
    if failure.type in named or name in named:
        return True
    return name not in REFUSALS and ("*" in named or failure.kind in named)


def _cut(
    options: NodeOptions, state: RunState, node: NodeState, name: str, *, held_back: bool
) -> Iterator[AnyCommand]:
    """Yield the command for an interrupted visit: ask about it, quarantine it, skip it or run it again."""
    if options.on_interrupt == "ask" or node.is_in_doubt:
        yield AskAboutNode(name)
    elif options.on_interrupt == "rerun" and node.crashes >= options.crash_limit:
        yield QuarantineNode(name)
    elif held_back:
        return
    elif options.on_interrupt == "skip":
        yield SkipNode(name)
    else:
        yield _again(options, state, node, name)


def _again(options: NodeOptions, state: RunState, node: NodeState, name: str) -> AnyCommand:
    """Return the command that continues a visit: the next attempt, the same attempt after a wait, or, if the visit is repeated,
    the first attempt of a new execution. For a gated node, the question is asked again before a new execution.
    """
    if NODE_LEVEL in node.parked:
        return StartNode(name, node.iteration, node.execution, node.attempt, 0, woken=True)
    if node.returned is not None and node.attempt:
        return FinishNode(name)
    execution = state.next_execution(name, node.iteration)
    if not node.attempt and state.begun:
        instead = _instead_of_repeating(state, name, node.iteration, execution, 0)
        if instead is not None:
            return instead
    interrupted_after_answer = node.status == "interrupted" and bool(node.asked)
    if options.question is not None and not node.approved and not interrupted_after_answer:
        # Computing the question or merging the answer failed, so nothing is approved yet.
        return AskFirst(name, node.iteration, execution)
    if node.attempt:
        return StartNode(name, node.iteration, node.execution, node.attempt + 1, 0)
    if options.gated and not node.approved:
        return AskFirst(name, node.iteration, execution)
    return StartNode(name, node.iteration, execution, 1, 0)


def _instead_of_repeating(
    state: RunState, name: str, iteration: int, execution: int, took: int
) -> AskRepeat | SkipRepeat | None:
    """Return the command that comes in place of a visit that the parent of this fork has begun; None if the visit begins."""
    visit = state.begun_visit(name, iteration)
    if visit is None:
        return None
    if visit.undecided:
        return AskRepeat(name, iteration, execution)
    return SkipRepeat(name, iteration, execution, took) if visit.skips_whole else None


def _items(
    options: NodeOptions, node: NodeState, name: str, now: float, wakes: list[float]
) -> Iterator[AnyCommand]:
    """Start items of a fan-out up to its limit, retries and interrupted items first. When no item is left, end the node. Items
    that wait do not count, except in a node that calls a flow: its limit is that of the child runs.
    """
    items = node.items
    assert items is not None, f"node {name!r} is open and needs no decision"  # see Readiness.open
    room = options.limit - len(items.running)
    if options.calls is not None:
        room -= len(node.parked)
    for item, at in items.again.items():
        room += options.calls is not None and item in node.parked
        if at > now:
            wakes.append(at)
        elif room > 0:
            room -= 1
            yield StartItem(name, item, items.attempts.get(item, 1) + (item not in node.parked))
    count = len(items.values)
    for item in range(items.begun, min(count, items.begun + max(0, room))):
        if item not in items.done:  # of a fork, whose parent has completed it
            yield StartItem(name, item, 1)
    if items.running or items.again or items.begun < count or node.parked:
        return
    if items.failed:
        item = min(items.failed)
        yield FailItems(name, item, items.failed[item])
    else:
        yield CompleteItems(name)


def _begin(
    definition: Definition, state: RunState, ready: Readiness, room: int
) -> tuple[list[_Begins], FailRun | None]:
    """Begin a visit of every node that is due, or record why it does not start now. If a node has reached the iteration limit, no
    node starts and the run fails.
    """
    starts: list[_Begins] = []
    if state.failed:
        return list(_refused(definition, state)), None
    if not ready.due:
        return starts, None
    repeats, scope, most = state.begun, state.scope, definition.max_iterations
    for name in ready.due:
        if room <= 0 or state.paused:
            break
        if scope is not None and name not in scope:
            continue
        iteration, execution = _next_visit(state, name)
        if most is not None and iteration > most:
            return [], FailRun(_limit(name, most), name)
        took = state.arrivals[name] if name in ready.joins else 1
        if name in repeats:
            instead = _instead_of_repeating(state, name, iteration, execution, took)
            if instead is not None:
                starts.append(instead)
                continue
        if name in ready.gated and not (name in state.nodes and state.nodes[name].approved):
            starts.append(AskFirst(name, iteration, execution))
            room -= (
                "pre" in definition.nodes[name].judged
            )  # a policy decides when the visit can begin at once, not hours before
            continue
        room -= 1
        starts.append(StartNode(name, iteration, execution, 1, took))
    if len(starts) < len(ready.due) and ready.unscheduled:
        begun = {start.node for start in starts}
        why = "paused" if state.paused else "no free slot"
        starts += [
            ScheduleNode(
                name, *_next_visit(state, name), why if _is_in_scope(state, name) else "not in scope"
            )
            for name in ready.unscheduled
            if name not in begun
        ]
    return starts, None


def _next_visit(state: RunState, name: str) -> tuple[int, int]:
    """Return the iteration and the execution of the next visit of a node."""
    node = state.nodes.get(name)
    iteration = node.iteration + 1 if node is not None else 1
    return iteration, state.next_execution(name, iteration) if state.executions else 1


def _over_budget(
    state: RunState, ready: Readiness, commands: list[AnyCommand], wakes: list[float], lapses: list[float]
) -> list[AnyCommand]:
    """Return what a run still does whose budget is spent: what has begun continues and ends, and nothing begins. `commands` are
    those for its waits and its open visits. When nothing runs any more, the run fails if something would begin.
    """
    failure = Failure("partial", "BudgetExceeded", explain_budget(state))
    wanted = [command for command in commands if not _begins(state, command)]
    wanted += [fail for name in ready.open if (fail := _fail_unfinished(state, name, failure)) is not None]
    if state.running or wanted:
        return wanted + _later(state, wanted, wakes, lapses) if wakes or lapses else wanted
    would_begin = (
        len(wanted) < len(commands)
        or any(_is_in_scope(state, name) for name in ready.due)
        or any(state.nodes[name].retry_at is not None for name in ready.open)
    )
    if would_begin and not state.failed and not state.paused:
        return [FailRun(failure, None)]
    return _end(state, ready, wakes, lapses)


def _begins(state: RunState, command: AnyCommand) -> bool:
    """Return whether a command begins an attempt, or prepares that. An attempt that waited and continues has begun before."""
    match command:
        case StartNode():
            return not command.woken
        case StartItem():
            return command.item not in state.nodes[command.node].parked
        case AskFirst() | AskRepeat() | SkipRepeat():
            return True
        case _:
            return False


def _fail_unfinished(state: RunState, name: str, failure: Failure) -> FailItems | None:
    """Return the command that fails a fan-out of which items are left that may not begin, and no item runs or waits; otherwise
    None. It counts as running, so the run could not end without this.
    """
    node, items = state.nodes[name], state.nodes[name].items
    if items is None or node.status != "running" or items.running or node.parked:
        return None
    if items.failed:
        item = min(items.failed)
        return FailItems(name, item, items.failed[item])
    left = [*items.again, *range(items.begun, len(items.values))]
    return FailItems(name, min(left), failure) if left else None


def _is_in_scope(state: RunState, name: str) -> bool:
    return state.scope is None or name in state.scope


def _limit(name: str, most: int) -> Failure:
    return Failure(
        "partial",
        "IterationLimit",
        f"node {name!r} was reached {most} times, which is its limit",
        advice="If that is right, raise the limit with compile(max_iterations=…), or remove it with "
        "compile(max_iterations=None), and resume.",
    )


def _end(state: RunState, ready: Readiness, wakes: list[float], lapses: list[float]) -> list[AnyCommand]:
    """Return the commands for a run in which nothing runs and nothing can start: end the run or the layer, or wait."""
    if state.failed:
        name = next(iter(state.failed))
        failure = state.nodes[name].failure
        assert failure is not None
        return [FailRun(failure, name)]
    if state.paused and (state.open or state.arrivals or state.held):
        return []
    if state.scope is not None and ready.due and not state.open and not state.questions:
        return [
            PauseRun("scope")
        ]  # the nodes that are due are not in scope; a layer is complete only with them
    if state.held and not state.open and not state.questions:
        return [CompleteLayer(state.layer + 1, tuple(sorted(state.held, key=ready.index.__getitem__)))]
    if wakes or lapses:
        return _later(state, [], wakes, lapses)
    if state.open or state.questions:
        return []  # waits for an answer, a signal or an operator
    if state.arrivals:
        raise IllegalEvent(
            f"run {state.run_id!r} is stuck: {list(state.arrivals)} were reached and cannot start. "
            "This is a defect in Holdfast; please report it with the graph."
        )
    if ready.undecided():
        raise IllegalEvent(
            f"run {state.run_id!r} is stuck: {ready.undecided()} were neither executed nor skipped. "
            "This is a defect in Holdfast; please report it with the plan."
        )
    return [CompleteRun()]


def _later(
    state: RunState, wanted: list[AnyCommand], wakes: list[float], lapses: list[float]
) -> list[AnyCommand]:
    """Return the command that says when to call `decide` again, if any. The engine need not hold the run until then if nothing
    runs and only an answer or a signal could come earlier, or if the run is paused.
    """
    runs = state.running or any(isinstance(command, (StartNode, StartItem)) for command in wanted)
    if runs or (wakes and not state.paused):
        return [WakeAt(min(wakes + lapses))]
    return [] if state.paused else [DueAt(min(lapses))]
