"""`Situation`: the facts that explain the status of a run, few enough to be kept in its row.

`reading/diagnosis` makes the reason and the remedies of a run from it, so that a list of runs says the same about a run as its
log. It is made from the state of the run and from what the last event said (`Said`), and from nothing that is not in the log.

- A situation for a row is bounded: it names the first few nodes, questions and waits, and counts the others. If that is not
  enough for a diagnosis, `cut` says so, and the log must be read.
- A run that only executes nodes is *plain* (`RunState.is_plain`): the nodes are the active ones of its row, and its situation
  does not change with a step. So a step computes nothing. While nodes run, the work for a row does not grow with the run either.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import msgspec

from holdfast.core.budget import explain, raised
from holdfast.core.events import Event, Failure, NodeName
from holdfast.core.kinds import FROM_OUTSIDE, MOVES
from holdfast.core.run_state import FEW, GOING, LIVE, VISIT_STUCK, NodeState, Question, RunState, Status, Wait
from holdfast.errors import StoreCorrupt

T = TypeVar("T")

QUESTIONS_FEW = 3
LINE_MAX = 400
"""How many characters of the first line of a failure or a question are shown, at most."""
_CROWD = 64
"""While nodes run, a row says nothing about more open nodes, waits and questions than this: going through them would make every
step slower."""
_ROW_BYTES_MAX = 4000
RUN_BASE_WANTED = "receipts"
"""Name of the option, in the log of a run, that is true if the run was created with a run base, so that its receipts are to be
written.
"""
FLOW_FILE = "flow_file"
"""Name of the option, in the log of a run that the command line created, that has the path of the flow's file, for suggested
commands.
"""
OPTIONS = frozenset({FLOW_FILE, RUN_BASE_WANTED})
"""The options of a run that its situation says. Without them, the situation of a plain run is empty."""
LAST_WORDS: dict[Status, str] = {
    "cancelled": "RunCancelled",
    "paused": "RunPaused",
    "interrupted": "RunInterrupted",
}
"""Status -> the kind of the event that says who stopped the run, and why."""
SAYS = FROM_OUTSIDE & MOVES | set(LAST_WORDS.values())
"""The kinds of events of which `Said` is made."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an event says about a run: the event that stopped it, or its last one, if that came from outside."""

    kind: str
    by: str | None = None
    reason: str | None = None
    name: str | None = None
    """The name of a signal, or the id of a child run that has ended."""

    def describe_arrival(self) -> str:
        """Say what has come to a run that no process executes: an answer, a signal, or the end of a child."""
        by = f" by {self.by}" if self.by else ""
        if self.kind == "SignalReceived":
            return f"the signal {self.name!r} was sent{by}"
        return f"the child run {self.name} has ended" if self.kind == "ChildEnded" else f"answered{by}"


class Situation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts that explain the status of a run."""

    running: tuple[NodeName, ...] | None = None
    """The nodes that run; None: the active nodes of the row."""
    running_count: int = 0
    in_memory: int = 0
    """How many of the running nodes wait, and have not been unwound yet."""
    interrupted: tuple[NodeName, ...] = ()
    """Open nodes that were interrupted, and about which no question is open."""
    in_doubt: tuple[NodeName, ...] = ()
    """Nodes of both that have begun a step with `idempotent=False`, which has no outcome: a resume asks about them."""
    failed: tuple[NodeName, ...] = ()
    """Open nodes that failed for good after they had begun."""
    returned: tuple[NodeName, ...] = ()
    """The nodes that have returned: what they returned is kept, and a resume judges it again without calling them."""
    refused: tuple[NodeName, ...] = ()
    """Nodes whose approval was refused."""
    asks: int = 0
    questions: tuple[Question, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_count: int = 0
    labels: dict[NodeName, dict[int, str]] = {}
    """Node -> item -> label, for the items of the questions and waits that have one."""
    is_timed: bool = False
    """True if a timer is set."""
    needs_signal: bool = False
    """True if a node waits for a signal, and for as long as it takes."""
    retries: dict[NodeName, float] = {}
    """Node -> when it is retried."""
    retries_count: int = 0
    failure: Failure | None = None
    failure_node: NodeName | None = None
    is_stuck: bool = False
    """True if the node with which the run failed may be skipped."""
    said: Said | None = None
    is_answered: bool = False
    """True if the run can continue with an answer or a signal that has come last."""
    higher_budget: str | None = None
    """A budget with which the run would continue, as it is typed, if its budget is spent."""
    beyond: tuple[NodeName, ...] = ()
    """Nodes that are due and not in the scope of the run, if it is paused."""
    flow_file: str | None = None
    wants_base: bool = False
    cut: bool = False
    """True if something that a diagnosis needs is left out."""
    cut_paused: bool = False
    """True if the run was paused and `cut` leaves out what `said` says about it. Only then: other rows stay as they were, for
    older versions that compare them with the log."""

    @property
    def is_paused(self) -> bool:
        """True if the run is paused, or will be as soon as its running nodes have ended."""
        return self.cut_paused or (self.said is not None and self.said.kind == LAST_WORDS["paused"])


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Situation).decode


def typed_file(state: RunState) -> str:
    """Return the file of a run's flow as it is typed in a command, or a placeholder if it is not recorded."""
    return shlex.quote(state.options.get(FLOW_FILE) or "FILE.py")


def explain_budget(state: RunState) -> str:
    """Say which limits of a run's budget are reached, and how it continues."""
    assert state.budget is not None
    return explain(state.run_id, state.budget, state.spent(), typed_file(state))


def said_by(event: Event) -> Said:
    """Return what an event says, for one of the kinds `SAYS`."""
    kind = type(event).__name__
    by, reason = getattr(event, "by", None), getattr(event, "reason", None)
    told = {"SignalReceived": "name", "ChildEnded": "run"}.get(kind)
    return Said(kind, by, reason, getattr(event, told) if told is not None else None)


def telling_kind(state: RunState, last: str | None) -> str | None:
    """Return the kind of the latest event that says why a run is where it is, if there is one: the event that stopped it, or its
    last event that may have moved it, which is of kind `last`, if that came from outside and no node runs.
    """
    kind = stopping_kind(state)
    if kind is None and last in FROM_OUTSIDE and state.status in GOING and not state.running:
        return last
    return kind


def stopping_kind(state: RunState) -> str | None:
    """Return the kind of the event that stopped a run, or stops it as soon as its running nodes have ended."""
    return "RunPaused" if state.paused and state.status in LIVE else LAST_WORDS.get(state.status)


def is_pausing(status: str, known: Situation) -> bool:
    """Return whether a run was paused, and nodes of it still run: it is paused as soon as they have ended. A node that waits in
    memory counts: it is unwound at once, unless one of its steps runs beside the wait, which is not in the log. If their process
    has died, nothing runs; that is not in the log either, so the caller has to know it from the lease.
    """
    return status == "running" and known.is_paused


def plain_of(state: RunState) -> Situation:
    """Return the situation of a run that is plain."""
    options = state.options
    return Situation(flow_file=options.get(FLOW_FILE), wants_base=bool(options.get(RUN_BASE_WANTED)))


def situate(state: RunState, said: Said | None, *, for_row: bool = False) -> Situation:
    """Return the situation of a run. `said` is what the latest event of the `telling_kind` says. With `for_row`, the situation is
    bounded.
    """
    asks = len(state.questions)
    crowd = len(state.open) + len(state.waits) + asks
    if for_row and state.running and crowd > _CROWD:
        if state.running < len(state.open) or asks or state.waits or state.failed or state.paused:
            return _cut(asks, is_paused=stopping_kind(state) == LAST_WORDS["paused"])
        return msgspec.structs.replace(plain_of(state), running_count=state.running)
    few, nodes = FEW if for_row else None, state.nodes
    opened = [(name, nodes[name]) for name in state.open]
    running = [name for name, node in opened if node.status == "running"]
    interrupted = [name for name, node in opened if node.status == "interrupted" and not node.question]
    in_doubt = [name for name in (*running, *interrupted) if nodes[name].is_in_doubt]
    failed = [
        name
        for name in state.failed
        if name in state.open and nodes[name].attempt and not state.is_misrouted(name)
    ]
    retries = dict(_retries(opened))
    stuck = nodes.get(state.failure_node or "")
    asked = tuple(islice(state.questions.values(), QUESTIONS_FEW if for_row else None))
    waits = tuple(islice(state.waits.values(), few))
    return Situation(
        running=tuple(running[:few]),
        running_count=state.running,
        in_memory=len(state.waiting_in_memory()) if asks or state.waits else 0,
        interrupted=tuple(interrupted[:few]),
        in_doubt=tuple(in_doubt[:few]),
        failed=tuple(failed[:few]),
        returned=tuple(name for name in failed[:few] if nodes[name].returned is not None),
        refused=tuple(name for name in islice(state.failed, few) if _is_refused(nodes[name])),
        asks=asks,
        questions=tuple(_short(one) for one in asked) if for_row else asked,
        waits=waits,
        waits_count=len(state.waits),
        labels=_labels(state, (*asked, *waits)) if asked or waits else {},
        is_timed=any(wait.kind == "timer" for wait in state.waits.values()),
        needs_signal=any(wait.kind == "signal" and wait.until is None for wait in state.waits.values()),
        retries=dict(islice(retries.items(), few)),
        retries_count=len(retries),
        failure=_without_details(state.failure),
        failure_node=state.failure_node,
        is_stuck=stuck is not None and stuck.status in VISIT_STUCK,
        said=said,
        is_answered=_is_answered(state, said),
        higher_budget=str(raised(state.budget, state.spent()))
        if state.budget is not None and state.is_over_budget
        else None,
        beyond=tuple(islice(_beyond_scope(state), few)) if state.paused and state.scope is not None else (),
        flow_file=state.options.get(FLOW_FILE),
        wants_base=bool(state.options.get(RUN_BASE_WANTED)),
        cut=for_row
        and (
            max(len(interrupted), len(failed), len(in_doubt)) > FEW
            or (said is None and bool(stopping_kind(state)))
        ),
    )


def row_text(state: RunState, said: Said | None) -> str | None:
    """Return the situation of a run as its row has it."""
    return dump(plain_of(state) if state.is_plain else situate(state, said, for_row=True))


def left_to_log(state: RunState) -> str | None:
    """Return the situation of a run for its row if it cannot be computed without the log."""
    return dump(_cut(len(state.questions), is_paused=stopping_kind(state) == LAST_WORDS["paused"]))


def dump(situation: Situation) -> str | None:
    """Encode a situation for a row; None if it is empty. If it is long, only what is always needed is kept."""
    body = _encode(situation)
    if len(body) > _ROW_BYTES_MAX:
        body = _encode(_cut(situation.asks, is_paused=situation.is_paused))
    return body.decode() if len(body) > 2 else None


def _cut(asks: int, *, is_paused: bool) -> Situation:
    """Return what a row says if the log has to tell the rest."""
    return Situation(asks=asks, cut=True, cut_paused=is_paused)


def load(stored: str | None, active: Iterable[NodeName]) -> Situation:
    """Decode the situation of a row, which has these active nodes. Raises `StoreCorrupt`."""
    try:
        found = _decode(stored) if stored is not None else Situation()
    except msgspec.MsgspecError as fault:
        raise StoreCorrupt(f"the situation in the row of a run cannot be read ({fault})") from fault
    if found.running is not None or found.cut:
        return found
    names = tuple(active)
    return msgspec.structs.replace(found, running=names, running_count=max(found.running_count, len(names)))


def first_line(text: str) -> str:
    """Return the first line of a text that is not blank, or as much of it as is ever shown."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[: LINE_MAX + 1]


def _retries(opened: Iterable[tuple[NodeName, NodeState]]) -> Iterable[tuple[NodeName, float]]:
    for name, node in opened:
        if node.retry_at is not None:
            yield name, node.retry_at
        elif node.items is not None and node.status == "waiting":
            again = [at for at in node.items.again.values() if at]
            if again:
                yield name, min(again)


def _beyond_scope(state: RunState) -> Iterable[NodeName]:
    return (name for name in state.arrivals if name not in (state.scope or ()))


def _is_refused(node: NodeState) -> bool:
    return node.failure is not None and node.failure.type == "QuestionRefused"


def _is_answered(state: RunState, said: Said | None) -> bool:
    """Return whether the last event is an answer or a signal with which the run can continue."""
    if said is None or said.kind not in FROM_OUTSIDE:
        return False
    return state.status != "waiting" or any(
        node.status == "pending" or (node.items is not None and 0.0 in node.items.again.values())
        for node in state.nodes.values()
    )


def _without_details(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    return msgspec.structs.replace(failure, message=first_line(failure.message), traceback="")


def _labels(state: RunState, waiting: Iterable[Question | Wait]) -> dict[NodeName, dict[int, str]]:
    found: dict[NodeName, dict[int, str]] = {}
    for one in waiting:
        items = state.nodes[one.node].items if one.item is not None and one.node in state.nodes else None
        if items is not None and items.labels and one.item is not None:
            found.setdefault(one.node, {})[one.item] = items.labels[one.item]
    return found


def _short(question: Question) -> Question:
    return msgspec.structs.replace(question, text=first_line(question.text), partial={})
