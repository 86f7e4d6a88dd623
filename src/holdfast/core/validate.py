"""Find everything that is wrong with a graph. All problems are reported at once, each in one sentence: the fault, the node, the
remedy.

This module checks definitions only: plain data, no functions. It keeps three rules:

- One mistake is reported as one problem. A misspelt name does not also make its neighbours unreachable: a name that is similar to
  a known name is treated as that name, any other as START or END. If several nodes are unreachable for the same reason, the
  first is named and the others are listed with it.
- Problems come in a stable order: the flow, its edges and branches, its loops, unreachable nodes; each in the order of
  declaration.
- The work is linear in the size of the graph, and nothing recurses.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from holdfast.core.budget import Budget
from holdfast.core.definition import (
    BUILT_IN_EXECUTORS,
    END,
    START,
    Definition,
    Edge,
    ExecutorTraits,
    NodeOptions,
    QuestionOptions,
)
from holdfast.errors import did_you_mean

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NODE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
FLOW_NAME = NODE_ID
_TRACE_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACE_PARENT = re.compile(rf"00{_TRACE_IDS}|(?!00|ff)[0-9a-f]{{2}}{_TRACE_IDS}(?:-[\x21-\x7e]{{0,200}})?")
"""The header `traceparent` (W3C Trace Context). A later version of it may have more parts."""

ITERATIONS_MAX = 1_000_000
PRIORITY_MAX = 1_000_000
_SCHEDULES: tuple[str, ...] = get_args(get_type_hints(Definition)["schedule"])
_JOINS: tuple[str, ...] = get_args(get_type_hints(NodeOptions)["join"])
_INTERRUPTS: tuple[str, ...] = get_args(get_type_hints(NodeOptions)["on_interrupt"])
_NAME_RULE = "1 to 128 letters, digits, '.', '_' or '-', and neither '.' nor '-' first"
_LASTING = ". If its runs live for ever and wait in a loop, use compile(max_iterations=None)"
_ENDLESS = ". Without END, a node of the loop must be able to wait: a question, a child run, or a function that takes ctx"
_COMPARISONS_MAX = (
    20_000  # a search for a similar name compares it with every node; after this many, no name is suggested
)
_LISTED_MAX = 5


def problems(definition: Definition, *, waiting: Collection[str] = ()) -> list[str]:
    """Return everything that is wrong with a graph as a whole. `node_problems` checks a single node. `waiting` are the nodes
    whose function can wait for something; a definition shows only questions and calls of other flows.
    """
    found = [*_flow_problems(definition)]
    nodes = [name for name in definition.nodes if name not in (START, END)]
    if not nodes:
        return [*found, "the graph has no nodes; add one with @graph.node and an edge from START to it"]
    names = _Names(nodes)
    lasting = _lasting(definition, waiting)
    edges = [*_sound_edges(definition, names, found)]
    arrows = [*edges, *_sound_branches(definition, names, found)]
    ways = definition.arrows()
    if not any(names.is_start(way.source) and way.target not in (START, END) for way in ways):
        found.append(f"nothing leads from START into the graph; add .edge(START, {nodes[0]!r})")
    found += [
        f"node {edge.source!r} leads to itself by a plain edge and would never end; use a branch: "
        f".branch({edge.source!r}, router, to=[{edge.source!r}, …])"
        for edge in edges
        if edge.source == edge.target and edge.source not in lasting
    ]
    others = (edge for edge in edges if edge.source != edge.target and edge.source not in lasting)
    loops = _plain_loops(nodes, _successors(nodes, others))
    found += [
        f"the loop {' -> '.join(_shorten([*loop, loop[0]]))} is made of plain edges only and can never end; "
        f"let one of its nodes leave by a branch instead of an edge"
        for loop in loops
    ]
    endless = {edge.source for edge in edges if edge.source == edge.target}.union(*loops)
    return [*found, *_reach_problems(nodes, arrows, endless, lasting, definition.max_iterations)]


def _lasting(definition: Definition, waiting: Collection[str]) -> frozenset[str]:
    """Return the nodes through which a run may pass for ever: those that can wait, in a flow without a limit on iterations. Any
    other loop without a way out would only burn processor time.
    """
    if definition.max_iterations is not None:
        return frozenset()
    return frozenset(
        name
        for name, node in definition.nodes.items()
        if name in waiting or node.approve is not None or node.question is not None or node.calls is not None
    )


def node_problems(name: str, options: NodeOptions, *, taken: bool) -> list[str]:
    """Return everything that is wrong with one node when it is added to a graph. `taken` is True if the graph already has a node
    of this name.
    """
    return [*_name_problems(name, taken=taken), *_option_problems(name, options)]


def child_problems(
    name: str, queue: Any, priority: Any, labels: Any, run_timeout: Any, budget: Any
) -> Iterator[str]:
    """Yield everything that is wrong with the options of the child runs that a node starts."""
    if queue is not None and not (isinstance(queue, str) and RUN_ID.fullmatch(queue)):
        yield f"node {name!r}: queue={queue!r} cannot name a queue; use up to 128 letters, digits, '.', '_' and '-'"
    if not _is_whole(priority) or abs(priority) > PRIORITY_MAX:
        yield (
            f"node {name!r}: priority={priority!r} is not a priority; use a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    is_dict = isinstance(labels, Mapping)
    if labels is not None and not (
        is_dict and all(isinstance(one, str) for pair in labels.items() for one in pair)
    ):
        yield f"node {name!r}: labels={labels!r} are not labels; give a dict of strings"
    if run_timeout is not None and not (_is_number(run_timeout) and 0 < run_timeout < math.inf):
        yield f"node {name!r}: run_timeout={run_timeout!r} is not a time limit; use seconds above 0"
    if budget is not None and not isinstance(budget, Budget):
        yield f"node {name!r}: budget={budget!r} is not a budget; use hf.Budget(usd=…, tokens=…, active_s=…)"


def upgrade_problems(version: int, upgrades: Mapping[int, Any]) -> list[str]:
    """Return everything that is wrong with a state's version and the functions that upgrade older states to it."""
    if not _is_whole(version) or version < 1:
        return [f"version={version!r} of the state is not a whole number from 1 up; the first version is 1"]
    found = []
    for old, upgrade in upgrades.items():
        if not _is_whole(old) or old < 1:
            found.append(
                f"upgrades[{old!r}] does not start at a version; versions are whole numbers from 1 up"
            )
        elif old >= version:
            found.append(
                f"upgrades[{old}] starts at version {old}, but the state is at version {version}; "
                f"raise version= to {old + 1} or remove the upgrade"
            )
        if not callable(upgrade):
            found.append(
                f"upgrades[{old!r}] is not a function; give one that takes the old values and returns the new ones"
            )
    steps = sorted(old for old in upgrades if _is_whole(old) and 1 <= old < version)
    for old, following in pairwise([*steps, version] if steps else []):
        if following > old + 1:
            span = f"{old + 1}" if following == old + 2 else f"{old + 1} to {following - 1}"
            found.append(
                f"a state of version {old + 1} cannot be upgraded to version {version}; add upgrades for {span}"
            )
    return found


# --- the flow ----------------------------------------------------------------------------------------


def _flow_problems(definition: Definition) -> Iterator[str]:
    name = definition.name
    if not isinstance(name, str) or not FLOW_NAME.fullmatch(name):
        yield f"{name!r} cannot name a flow; use {_NAME_RULE}"
    if definition.schedule not in _SCHEDULES:
        yield f"schedule={definition.schedule!r} does not exist; use {_either(_SCHEDULES)}"
    iterations = definition.max_iterations
    if iterations is not None and not (_is_whole(iterations) and 1 <= iterations <= ITERATIONS_MAX):
        yield (
            f"max_iterations={iterations!r} is not a limit; use a whole number from 1 to {ITERATIONS_MAX:_}, or None for no limit"
        )
    if not _is_whole(definition.max_parallel) or definition.max_parallel < 1:
        yield f"max_parallel={definition.max_parallel!r} lets no node run; use a whole number from 1 up"


# --- one node ----------------------------------------------------------------------------------------


def _name_problems(name: str, *, taken: bool) -> Iterator[str]:
    if not name:
        yield "a node has no name, because its function has none; add it with name='…'"
    elif name == "<lambda>":
        yield "a lambda has no name of its own; add the node with name='…'"
    elif name in (START, END):
        yield f"{name!r} is the name of an end of the graph; give the node another name with name='…'"
    elif not isinstance(name, str) or not NODE_ID.fullmatch(name):
        yield f"{name!r} cannot name a node; use {_NAME_RULE}"
    elif taken:
        yield f"two nodes are named {name!r}; give one of them another name with name='…'"


def _option_problems(name: str, options: NodeOptions) -> Iterator[str]:
    timeout = options.timeout_s
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        yield (
            f"node {name!r}: timeout={timeout!r} is not a time limit; use seconds above 0, or leave it out for "
            "no limit"
        )
    if not _is_whole(options.limit) or options.limit < 1:
        yield f"node {name!r}: limit={options.limit!r} lets no item run; use a whole number from 1 up"
    if options.label and not options.each:
        yield f"node {name!r}: label= names the items of a fan-out; add each=, or leave it out"
    if options.join not in _JOINS:
        yield f"node {name!r}: join={options.join!r} does not exist; use {_either(_JOINS)}"
    if options.on_interrupt not in _INTERRUPTS:
        yield f"node {name!r}: on_interrupt={options.on_interrupt!r} does not exist; use {_either(_INTERRUPTS)}"
    if not options.idempotent and options.on_interrupt == "rerun":
        yield (
            f"node {name!r}: idempotent=False forbids what on_interrupt='rerun' asks for; "
            "use on_interrupt='ask' or 'skip', or leave one of the two out"
        )
    if not _is_whole(options.crash_limit) or options.crash_limit < 1:
        yield f"node {name!r}: crash_limit={options.crash_limit!r} never lets the node run; use a whole number from 1 up"
    yield from executor_problems(name, options, BUILT_IN_EXECUTORS.get(str(options.executor)))
    if options.approve is not None and not (isinstance(options.approve, str) and options.approve.strip()):
        yield f"node {name!r}: approve={options.approve!r} asks nothing; give the question, such as approve='Publish?'"
    if not isinstance(options.agent, str) or not NODE_ID.fullmatch(options.agent):
        yield f"node {name!r}: agent={options.agent!r} cannot name an agent; use {_NAME_RULE}"
    if options.question is not None:
        yield from _question_problems(name, options.question)


def executor_problems(name: str, options: NodeOptions, traits: ExecutorTraits | None) -> Iterator[str]:
    """Yield everything that is wrong with the options of a node's executor. `traits` is None for an executor that only an engine
    knows.
    """
    if not isinstance(options.executor, str) or not NODE_ID.fullmatch(options.executor):
        yield f"node {name!r}: executor={options.executor!r} cannot name an executor; use {_NAME_RULE}"
    limit = options.memory_limit
    if limit is not None and not (_is_whole(limit) and limit > 0):
        yield f"node {name!r}: memory_limit={limit!r} is not an amount of memory; give bytes, such as 512 * 2**20"
    elif limit is not None and traits is not None and traits.here:
        yield f"node {name!r}: memory_limit={limit!r} needs a process of its own; add executor='process'"


def _question_problems(name: str, question: QuestionOptions) -> Iterator[str]:
    options = question.options
    if any(not isinstance(option, str) or not option for option in options) or len(set(options)) < len(
        options
    ):
        yield f"question {name!r}: options={options!r} must be different texts that are not empty"
    if len(options) == 1:
        yield f"question {name!r}: with {options[0]!r} as the only option there is nothing to decide; give another option"
    if not options and question.into is None:
        yield f"question {name!r}: its answer is not used; name a field with into='…', or give options"
    timeout = question.timeout_s
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        yield f"question {name!r}: timeout={timeout!r} is not a time limit; use seconds above 0"
    if question.on_timeout == "fail":
        return
    if question.on_timeout not in options:
        yield f"question {name!r}: on_timeout={question.on_timeout!r} is not one of its options; use one, or 'fail'"
    elif question.into is None and question.on_timeout == options[0]:
        yield (
            f"question {name!r}: on_timeout={question.on_timeout!r} would continue without an approval; use "
            "another option, or 'fail'"
        )


# --- edges and branches ------------------------------------------------------------------------------


class _Names:
    """The names of a graph's nodes, and the nodes that were probably meant by misspelt names."""

    def __init__(self, nodes: Collection[str]) -> None:
        self.nodes = frozenset(nodes)
        self._ordered = list(nodes)
        self._guesses: dict[str, str | None] = {}
        self._comparisons_left = _COMPARISONS_MAX

    def resolve(self, name: str, *, end: str, where: str, found: list[str]) -> str:
        """Return the node that `name` means. An unknown name is reported in `found` once. If it is not similar to any known name,
        it is treated as `end`.
        """
        if name in self.nodes:
            return name
        if name not in self._guesses:
            guess = self._guesses[name] = self._near(name, end)
            way_out = did_you_mean(guess, [guess]) if guess else "; add that node, or remove the name"
            if name == "<lambda>":
                way_out = "; use the name='…' with which the lambda's node was added"
            found.append(f"no node is named {name!r} ({where}){way_out}")
        return self._guesses[name] or end

    def is_start(self, name: str) -> bool:
        """Return whether the name is START, or was recognised by `resolve` as a misspelt START."""
        return name == START or self._guesses.get(name) == START

    def _near(self, name: str, end: str) -> str | None:
        if name.strip("_").upper() == end:  # other libraries spell the ends "__start__" and "end"
            return end
        if self._comparisons_left <= 0:
            return None
        self._comparisons_left -= len(self._ordered)
        near = difflib.get_close_matches(name, self._ordered, n=1, cutoff=0.6)
        return near[0] if near else None


def _sound_edges(definition: Definition, names: _Names, found: list[str]) -> Iterator[Edge]:
    """Yield the valid edges; problems with the others are added to `found`."""
    for edge in definition.edges:
        source, target = edge.source, edge.target
        where = f"edge from {source!r} to {target!r}"
        if target == START:
            found.append(f"the {where} leads into START, where only runs begin; lead it to the first node")
        elif source == END:
            found.append(f"the {where} leads out of END, where runs end; let it begin at another node")
        elif (source, target) == (START, END):
            found.append(f"the {where} bypasses every node; remove it")
        else:
            begin = START if source == START else names.resolve(source, end=START, where=where, found=found)
            yield Edge(
                begin, END if target == END else names.resolve(target, end=END, where=where, found=found)
            )


def _sound_branches(definition: Definition, names: _Names, found: list[str]) -> Iterator[Edge]:
    """Yield the valid edges of branches; problems with the others are added to `found`."""
    for source, targets in definition.branches.items():
        where = f"branch from {source!r}"
        if source == END:
            found.append("a branch cannot begin at END, where runs end; let it begin at another node")
            continue
        begin = START if source == START else names.resolve(source, end=START, where=where, found=found)
        if not targets:
            found.append(f"the {where} has no targets; list every node it may choose: to=['…', END]")
            yield Edge(begin, END)
            continue
        whole = "".join(targets)
        if whole in names.nodes and len(whole) == len(targets) > 1:  # to="publish" instead of to=["publish"]
            found.append(f"the {where} has the letters of {whole!r} as its targets; write to=[{whole!r}]")
            yield Edge(begin, whole)
            continue
        for target, count in Counter(targets).items():
            if count > 1:
                found.append(f"the {where} lists {target!r} more than once; remove the repetition")
            if target == START:
                found.append(
                    f"the {where} leads into START, where only runs begin; lead it to the first node"
                )
            else:
                yield Edge(
                    begin, END if target == END else names.resolve(target, end=END, where=where, found=found)
                )


# --- loops and reach ---------------------------------------------------------------------------------


def _successors(nodes: Iterable[str], arrows: Iterable[Edge]) -> dict[str, list[str]]:
    """Return the targets of these edges by source, without edges from START or to END."""
    successors: dict[str, list[str]] = {name: [] for name in nodes}
    for arrow in arrows:
        if arrow.source in successors and arrow.target in successors:
            successors[arrow.source].append(arrow.target)
    return successors


def _plain_loops(nodes: Iterable[str], successors: Mapping[str, list[str]]) -> list[list[str]]:
    """Return loops that consist of these edges and share no node. The walk visits every node once, so it is linear."""
    loops: list[list[str]] = []
    done: set[str] = set()
    for first in nodes:
        if first in done:
            continue
        path, place, ways = [first], {first: 0}, [iter(successors[first])]
        while path:
            step = next(ways[-1], None)
            if step in done:
                continue
            if step is not None and step not in place:
                place[step] = len(path)
                path.append(step)
                ways.append(iter(successors[step]))
                continue
            keep = len(path) - 1 if step is None else place[step]
            if step is not None:
                loops.append(path[keep:])
            for name in path[keep:]:
                done.add(name)
                del place[name]
            del path[keep:], ways[keep:]
    return loops


def _reach_problems(
    nodes: list[str],
    arrows: list[Edge],
    endless: Collection[str],
    lasting: Collection[str],
    iterations: int | None,
) -> Iterator[str]:
    """Report nodes that no run can reach, and nodes from which no run can end. Loops in `endless` are reported already, and a run
    that reaches a node in `lasting` need not end.
    """
    onward = _successors(nodes, arrows)
    back = _successors(nodes, (Edge(arrow.target, arrow.source) for arrow in arrows))
    entries = dict.fromkeys(arrow.target for arrow in arrows if arrow.source == START and arrow.target != END)
    if entries:
        for group in _cut_off(nodes, onward, back, entries):
            yield (
                f"{_group(group)} cannot be reached from START; add an edge or a branch that leads to {group[0]!r}, "
                f"or remove {'it' if len(group) == 1 else 'them'}"
            )
    exits = dict.fromkeys(arrow.source for arrow in arrows if arrow.target == END and arrow.source != START)
    sources = {arrow.source for arrow in arrows}
    staying = [name for name in nodes if name in lasting and name in sources]
    for group in _cut_off(nodes, back, onward, [*exits, *endless, *staying]):
        if group[0] not in sources:
            yield f"no edge or branch leaves {_group(group)}; add .edge({group[0]!r}, END)"
        else:
            yield (
                f"no path from {_group(group)} leads to END; {_way_out(group[0], onward)}"
                f"{_ENDLESS if iterations is None else _LASTING}"
            )


def _way_out(name: str, onward: Mapping[str, list[str]]) -> str:
    """Say how a loop ends: by a branch. An edge to END beside the edge that continues the loop would end nothing."""
    targets = ", ".join([*map(repr, dict.fromkeys(onward[name])), "END"])
    return f"in place of what leaves {name!r} now, add a branch that may end it: .branch({name!r}, router, to=[{targets}])"


def _cut_off(
    nodes: list[str], onward: Mapping[str, list[str]], back: Mapping[str, list[str]], starts: Iterable[str]
) -> Iterator[list[str]]:
    """Yield the nodes that cannot be reached from `starts`, in groups: connecting the first node of a group connects the others
    too.
    """
    reached = _reach(starts, onward, set())
    lost = [name for name in nodes if name not in reached]
    sources_first = sorted(lost, key=lambda name: bool([before for before in back[name] if before != name]))
    for name in sources_first:
        if name not in reached:
            group = _reach([name], onward, reached)
            reached |= group
            yield [name, *(other for other in group if other != name)]


def _reach(starts: Iterable[str], onward: Mapping[str, list[str]], known: Collection[str]) -> dict[str, None]:
    """Return `starts` and all nodes that can be reached from them, without the nodes in `known`, in the order in which they are
    found.
    """
    met = dict.fromkeys(starts)
    waiting = list(met)
    for name in waiting:  # the list grows during the loop
        for target in onward[name]:
            if target not in met and target not in known:
                met[target] = None
                waiting.append(target)
    return met


# --- words -------------------------------------------------------------------------------------------


def _group(names: list[str]) -> str:
    others = _shorten([repr(name) for name in names[1:]])
    return f"node {names[0]!r}" + (f" (and with it {', '.join(others)})" if others else "")


def _shorten(names: list[str]) -> list[str]:
    """Return the names. If there are many, those in the middle are replaced by their number: "7 more"."""
    if len(names) <= _LISTED_MAX + 2:
        return names
    return [*names[:_LISTED_MAX], f"{len(names) - _LISTED_MAX - 1} more", names[-1]]


def _either(choices: Iterable[str]) -> str:
    return " or ".join(map(repr, choices))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


OF_OTHERS = {
    "add_node": "decorate the function: @graph.node, or call graph.node(fn), graph.node(name='…')(fn)",
    "add_edge": "use graph.edge(source, target), or graph.chain(START, first, second, END)",
    "add_conditional_edges": "use graph.branch(source, router, to=[…]), whose router returns the name of the next node",
    "set_entry_point": "use graph.edge(START, node)",
    "set_finish_point": "use graph.edge(node, END)",
}
"""Name of a graph method in another library -> what to write with Holdfast instead."""
