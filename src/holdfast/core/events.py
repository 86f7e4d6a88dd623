"""The events that a run's log consists of, as a closed union.

Rules of this module
- An event is a frozen record in the past tense. It contains everything the fold needs: times, random values, ids, decisions and
  results of user code, so that folding it again a year later gives the same state.
- An event that is about to be stored is an `Event`; an event in a log is a `Stored` (seq, at, event).
- A kind is stored by its class name, so a class is never renamed. When its fields change, `VERSION` grows and an upcaster in
  `event_encoding` upgrades older bodies, if they must be changed. An event is stored with the lowest version that can read it
  (`lowest_version`): a field that older versions must not ignore raises it only in the events that use the field. A log with a
  kind or a version that this Holdfast does not know is refused, and the run is left untouched.
- The header of an event is its kind and, if it belongs to a node, `node`, `iteration`, `execution` and `attempt`: they are
  columns of the store. The body is the JSON of all other fields that differ from their defaults.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from holdfast.core.budget import Budget
from holdfast.errors import describe_failure

NodeName: TypeAlias = str
Seq: TypeAlias = int
Values: TypeAlias = dict[str, Any]
"""The state of a run as plain data that JSON can represent, with one entry per field."""


def require_all_fields(cls: type[msgspec.Struct], *known: str) -> None:
    """Raise `TypeError` unless code that lists the fields of a class by hand knows all of them, and no other. Called at import:
    a field that is added to the class can then not be missing from what is stored.
    """
    if set(cls.__struct_fields__) != set(known):
        differ = ", ".join(sorted(set(cls.__struct_fields__) ^ set(known)))
        raise TypeError(f"the fields of {cls.__name__} are listed by hand, and the list differs in: {differ}")


class Changes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a node changed in the state, by field. The fold applies every part except `reduce` without calling user code."""

    set: dict[str, Any] = {}
    """Fields that have a new value."""
    append: dict[str, list[Any]] = {}
    """Elements that are added to the end of a list field."""
    merge: dict[str, dict[str, Any]] = {}
    """Entries that are added to a mapping field or replaced in it."""
    add: dict[str, Any] = {}
    """Amounts that are added to a number field."""
    reduce: dict[str, Any] = {}
    """Values for custom reducers, kept until the engine has computed their result (in items and layers)."""
    unset: list[str] = []
    """Names of fields that were removed: keys of a state without declared fields, or fields that are `NotRequired`."""


VALUE_PARTS = tuple(part for part in Changes.__struct_fields__ if part != "unset")
"""The parts of `Changes` that have a value for each field."""
FailureClass: TypeAlias = Literal["recoverable", "partial", "fatal"]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a node, an item or a run failed. `kind` decides whether it may be retried: see `runtime/failures.py`."""

    kind: FailureClass
    type: str
    message: str
    traceback: str = ""
    child: str = ""
    """The child runs whose ends the failure is (`ChildFailed`), separated by spaces; empty for any other failure."""
    advice: str = ""
    """What Holdfast says about the failure besides the message of the exception: what to do, with commands. In logs of older
    versions the message ends with it."""
    step: str = ""
    """The step of which the failure is the kept outcome: every attempt of the execution gets it again without a call. Empty for
    any other failure, and in logs of older versions."""
    item: int | None = None
    """The item for which a fan-out failed; None for any other failure. In logs of older versions the message begins with it."""
    label: str = ""
    """The label of that item, if it has one."""

    def describe(self) -> str:
        """Return type and message in a line, with the item for which a fan-out failed."""
        return describe_failure(self.type, self.message, self.item, self.label)


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact about a run. Events are plain data without cycles, so the garbage collector does not track them."""

    VERSION: ClassVar[int] = 1

    def lowest_version(self) -> int:
        """Return the lowest version of this kind that can read the event without missing something."""
        return self.VERSION


class NodeEvent(Event, frozen=True, kw_only=True):
    """A fact about one visit of a node. Iteration, execution and attempt count from 1."""

    node: NodeName
    iteration: int
    execution: int = 1
    attempt: int = 1


# --- the run -----------------------------------------------------------------------------------------


class Caller(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The run that started a child run, and what the child has from it."""

    run: str
    lineage: str
    """The text from which idempotency keys are derived in the child, in place of its id: see `RunForked.lineage`. It is a digest
    of the lineage of the caller and of the place of the child there, so that the children of a fork have the keys that those of
    its parent had."""
    depth: int = 1
    """How many callers the child has: 1, unless its caller is a child too."""


class RunCreated(Event, frozen=True, kw_only=True):
    """The run was created. Recorded before anything runs, with everything that the first nodes need."""

    VERSION: ClassVar[int] = 2

    flow: str
    fingerprint: str
    state_version: int
    input: Values
    starts: list[NodeName]
    """The nodes that START leads to: by its plain edges, and by the choice of its router."""
    schedule: Literal["eager", "layered"] = "eager"
    options: dict[str, Any] = {}
    """How the run is executed. `budget` (the limits of a `Budget`) and `scope` (names of nodes) need version 2."""
    labels: dict[str, str] = {}
    by: str | None = None
    trace_parent: str | None = None
    caller: Caller | None = None
    """The run that started this one; None if it is not a child run."""
    plan: bool = False
    """True if the flow is a plan: its definition has the plan, and a visit gets what the plan refers to, not the state as it was
    when the visit began."""

    def lowest_version(self) -> int:
        return 2 if self.plan or "budget" in self.options or "scope" in self.options else 1


class Begun(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A visit of a node that is not idempotent, or an item of such a visit, that the parent of a fork has begun and that is not
    completed at the event from which the run was forked.
    """

    node: NodeName
    iteration: int
    item: int | None = None
    """The item of a fan-out; None for the visit as a whole."""
    result: Changes | None = None
    """What its latest completed execution changed; None if no execution has completed."""
    kept: bool = False
    """True if the item was completed at that event, within a visit that was not: the fork uses its result without asking."""
    at: float = 0.0
    """When it completed or, if it has no result, when it last began."""
    run: str | None = None
    """The run that did this, if it is not the parent but a run from which the parent descends."""


Choice: TypeAlias = Literal["run", "skip"]
"""What a fork does with a visit that its parent has begun: run it again, or skip it with the result that it had."""


class RunForked(Event, frozen=True, kw_only=True):
    """The run was forked from an event of another run. Its log begins with a base: the state of `parent` at event `to`."""

    parent: str
    to: Seq
    base_digest: str
    """The sha256 of the stored base, so that an altered base is detected like an altered event."""
    lineage: str | None = None
    """The run from whose id idempotency keys are derived: the first ancestor that is not a fork, or that began a lineage of its
    own. None if this fork begins one."""
    fresh: bool = False
    """True if the caller asked for a lineage of its own."""
    visits: list[Begun] = []
    """What the parent has begun and the fork must not repeat without a decision."""
    repeat: dict[NodeName, Choice] = {}
    """Node -> the decision about its visits in `visits`. About the other nodes, the fork asks."""
    renewed: dict[NodeName, dict[int, int]] = {}
    """Node -> iteration -> how often the parent has repeated this visit with new idempotency keys after event `to`."""
    labels: dict[str, str] | None = None
    by: str | None = None
    reason: str | None = None


class RunClaimed(Event, frozen=True, kw_only=True):
    """An engine claimed the run without a resume. Nodes that were running count as interrupted."""

    holder: str
    outlived: bool = False
    """True if the previous holder is alive and had to give up the run, so that the interrupted nodes did not crash a process."""


class RunResumed(Event, frozen=True, kw_only=True):
    """A caller resumed the run. Nodes that were running count as interrupted; nodes that failed are due again."""

    VERSION: ClassVar[int] = 2

    holder: str = ""
    nodes: list[NodeName] | None = None
    """Nodes that are tried again; None means all failed nodes."""
    fresh: bool = False
    force: bool = False
    outlived: bool = False
    """True if the previous holder is alive and had to give up the run, so that the interrupted nodes did not crash a process."""
    by: str | None = None
    reason: str | None = None
    budget: Budget | None = None
    """The budget that the run has from here on; None: the one that it had."""
    scope: list[NodeName] | None = None
    """The nodes that may run from here on, `["*"]` for all of them; None: those that could run before."""

    def lowest_version(self) -> int:
        return 1 if self.budget is None and self.scope is None else 2


class Reported(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a child run has reported to its caller with its latest end, and with the one before, its own children included."""

    seq: Seq = 0
    """The seq of its latest end; 0 if it has not ended."""
    usd: float = 0.0
    tokens: int = 0
    usd_before: float = 0.0
    tokens_before: int = 0


class RunRewound(Event, frozen=True, kw_only=True):
    """The run goes back to event `to` and continues from there. This event is folded onto the state at `to`, and contains what a
    rewind never undoes: counts, costs and signals.
    """

    VERSION: ClassVar[int] = 2

    to: Seq
    executions: dict[NodeName, dict[int, int]] = {}
    """Node -> iteration -> how often this visit, which will be repeated, was executed before."""
    crashes: dict[NodeName, int] = {}
    active_s: float = 0.0
    usd: float = 0.0
    tokens: int = 0
    fresh: dict[NodeName, dict[int, int]] = {}
    """Node -> iteration -> how often this visit, which will be repeated, was repeated with new idempotency keys before."""
    signals: dict[str, list[Any]] = {}
    """Signals that are available again because the rewind undid the visits that had taken them, oldest first. The next visit that
    waits for such a signal gets it.
    """
    confirmed: list[NodeName] = []
    """Nodes that are not idempotent, and that the caller has confirmed may run again."""
    called: bool = False
    """True if the run has child runs. The rewind leaves them alone."""
    children_usd: float = 0.0
    children_tokens: int = 0
    reported: Reported | None = None
    """What the caller of this run knows of its ends."""
    by: str | None = None
    reason: str | None = None
    budget: Budget | None = None
    """The budget that the run has from here on; None: the one that it had at event `to`."""
    scope: list[NodeName] | None = None
    """The nodes that may run from here on, `["*"]` for all of them; None: those that could run at event `to`."""

    def lowest_version(self) -> int:
        return 1 if self.budget is None and self.scope is None else 2


class RunPaused(Event, frozen=True, kw_only=True):
    """The run was paused: no node starts until the run is resumed; running nodes may end."""

    by: str | None = None
    reason: str | None = None


class RunInterrupted(Event, frozen=True, kw_only=True):
    """The process that held the run was asked to stop; it recorded the run's progress and released it."""

    reason: str | None = None


class RunCompleted(Event, frozen=True, kw_only=True):
    """The run is completed: every branch has reached its end. No event can follow."""


class RunFailed(Event, frozen=True, kw_only=True):
    """The run failed: a node failed for good, and the nodes that ran beside it have ended. Only a recorded resume may follow."""

    failure: Failure
    node: NodeName | None = None


class Uncleaned(msgspec.Struct, frozen=True, omit_defaults=True):
    """A visit (or an item of it) that had begun when its run was cancelled, and whose cleaning code did not run, or not to its
    end.
    """

    node: NodeName
    iteration: int
    why: Literal["died", "unwound", "interrupted", "abandoned", "killed"]
    """`died`: its process died while it ran, perhaps while it cleaned up. `unwound`: it waited, and was not in memory.
    `interrupted`: it had been interrupted before. `abandoned`: its code did not end in time, or ran in a thread. `killed`: it
    ran in a process of its own, which the cancel killed."""
    steps: list[str] = []
    """The steps of this execution that are kept."""
    item: int | None = None


class RunCancelled(Event, frozen=True, kw_only=True):
    """The run was cancelled. No event can follow."""

    by: str | None = None
    reason: str | None = None
    uncleaned: list[Uncleaned] = []
    """The visits that had begun and could not clean up."""


class RequestRefused(Event, frozen=True, kw_only=True):
    """A request to the run could not be carried out. It changed nothing."""

    verb: str
    reason: str
    """Why the request was refused, and what would be allowed."""
    request: str = ""
    """The id of the request in the inbox; empty if a caller asked the engine directly."""
    error: str = "ResumeRefused"
    """The name of the exception that a caller of the verb gets."""
    about: str | None = None
    """The key of the question that an answer was for, the name of a signal, or the process that executes the run."""
    asked_at: float | None = None
    """When the request was made, if it was left in the inbox."""
    by: str | None = None
    """Who made the request."""


class ResumeRefused(Event, frozen=True, kw_only=True):
    """A validation refused to resume the run. Nothing was executed. Not recorded any more: `RequestRefused` is."""

    reason: str
    by: str | None = None


# --- its state and its flow --------------------------------------------------------------------------


class StateEdited(Event, frozen=True, kw_only=True):
    """A caller changed the state of the run. The inputs of visits that have not ended change too."""

    changes: Changes
    by: str | None = None
    reason: str | None = None


class StateUpgraded(Event, frozen=True, kw_only=True):
    """The state, and the inputs of visits that have not ended, were upgraded to a newer version of their type."""

    state_version: int
    values: Values
    inputs: dict[NodeName, Values] = {}


class FlowChanged(Event, frozen=True, kw_only=True):
    """From here on, the run is executed with a changed flow."""

    VERSION: ClassVar[int] = 2

    fingerprint: str
    rename: dict[NodeName, NodeName] = {}
    by: str | None = None
    keeps_keys: bool = False
    """True if a renamed node keeps the name from which its keys are made (`RunState.key_name`). False in the logs of older
    versions, which made them from the new name."""

    def lowest_version(self) -> int:
        return 2 if self.keeps_keys else 1


# --- nodes -------------------------------------------------------------------------------------------


class NodeScheduled(NodeEvent, frozen=True, kw_only=True):
    """A node is due and does not start at once; or a caller asked to retry a visit that has not ended."""

    VERSION: ClassVar[int] = 2

    why: str
    fresh: bool = False
    """True if the visit is repeated as a new execution, which keeps no results of the previous one."""
    by: str | None = None
    reason: str | None = None
    anew: list[str] = []
    """The child runs that failed while the attempt waited, and that are resumed with the run: the visit waits for their next
    ends."""

    def lowest_version(self) -> int:
        return 2 if self.anew else 1


class NodeStarted(NodeEvent, frozen=True, kw_only=True):
    """An attempt of a node began. The state at the first attempt of an execution is the input of all its attempts."""

    took: int = 1
    """How many of the run's arrivals at the node this visit uses up (all of them for a join); 0 for a repetition."""
    woken: bool = False
    """True if the same attempt continues after a wait: its function is called again, with the results that it kept."""


class NodeCompleted(NodeEvent, frozen=True, kw_only=True):
    """A visit of a node is complete, and is never repeated unless a caller asks for it. Its route is decided once, with this
    event.
    """

    changes: Changes = Changes()
    routes: list[NodeName] | None = None
    """The nodes that come next; None if that is not decided yet (the router raised, or the layer decides)."""
    items: bool = False
    """True if the node is a fan-out: the changes of its items are applied first, in item order."""
    artifacts: dict[str, Any] = {}
    """Files that the node wrote into its folder: name -> sha256 and size."""


class NodeFailed(NodeEvent, frozen=True, kw_only=True):
    """An attempt of a node failed. It is retried at `retry_at`; without `retry_at`, the node failed for good."""

    failure: Failure
    retry_at: float | None = None


class NodeInterrupted(NodeEvent, frozen=True, kw_only=True):
    """An attempt of a node was stopped from outside before it ended."""

    reason: str = ""
    lost: bool = False
    """True if the attempt's process died at an unknown time, so that the time until this event does not count for the node."""


class NodeSkipped(NodeEvent, frozen=True, kw_only=True):
    """A visit was skipped, by a caller or because of `on_interrupt="skip"` or `safe_to_fail`. `changes` replace its result."""

    changes: Changes = Changes()
    routes: list[NodeName] | None = None
    took: int = 0
    """How many of the run's arrivals at the node the skip uses up, if the visit had not begun."""
    warning: Failure | None = None
    """Why a node that is `safe_to_fail`, or whose failure an edge takes, has no result."""
    caught: bool = False
    """True if an edge takes the failure of the node, so that the run continues along that edge."""
    by: str | None = None
    reason: str | None = None


class NodeRouted(NodeEvent, frozen=True, kw_only=True):
    """The route of a completed node was decided. Its router had raised an exception before."""

    routes: list[NodeName]


class RoutingFailed(NodeEvent, frozen=True, kw_only=True):
    """A node completed, but its router raised an exception. A resume evaluates only the router again."""

    failure: Failure


class GuardEvaluated(NodeEvent, frozen=True, kw_only=True):
    """The guards on the edges out of a node were evaluated, once. The event that has its route follows in the same append."""

    verdicts: dict[NodeName, bool] = {}
    """Target of an edge that has a guard -> whether the guard is true."""
    reads: dict[str, Any] = {}
    """The values that the guards have read, by path."""
    failure: Failure | None = None
    """Why a guard on an edge that could take a failure cannot be evaluated: the node stays failed, for this reason. None if all
    guards were evaluated."""


class NodesSkipped(Event, frozen=True, kw_only=True):
    """Nodes of a plan were skipped, because too few edges to them were taken: none of them can run any more. Follows the event
    that decided this, in the same append.
    """

    nodes: list[NodeName]
    why: dict[NodeName, NodeName] = {}
    """Node -> the source of an edge to it that was not taken."""


Verdict: TypeAlias = Literal["allow", "ask", "deny"]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one policy decided about a visit."""

    policy: str
    verdict: Verdict
    reason: str = ""
    reads: dict[str, Any] = {}
    """The values that its rule has read, by path."""


class PolicyDecided(NodeEvent, frozen=True, kw_only=True):
    """Policies decided whether a visit may begin (`pre`), or whether its result may be used (`post`). All policies that apply
    were asked, and the strictest verdict counts.
    """

    stage: Literal["pre", "post"] = "pre"
    verdict: Verdict = "allow"
    decisions: list[Decision] = []
    failure: Failure | None = None
    """Why the policies could not decide, which is a denial; None if they could."""


class Checked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one rule of a verification found."""

    id: str
    ok: bool
    reason: str = ""
    reads: dict[str, Any] = {}
    """The values that the rule has read, by path."""


class OutputVerified(NodeEvent, frozen=True, kw_only=True):
    """The result of a node was verified, before it is used anywhere."""

    ok: bool = True
    checks: list[Checked] = []


class NodeReturned(NodeEvent, frozen=True, kw_only=True):
    """A node has returned, so its effect has happened, but its result did not pass its verification, or a policy denies it or
    asks about it. The node is not called again for that: what it returned is judged again.
    """

    value: Any = None
    artifacts: dict[str, Any] = {}
    """Files that the node wrote into its folder, as in `NodeCompleted`."""


class NodeWaiting(NodeEvent, frozen=True, kw_only=True):
    """An attempt waits and has unwound, so that it uses no thread or process. It continues when something it waits for has
    come.
    """

    on: list[str]
    """The slots that the attempt waits for."""
    item: int | None = None


class NodeCheckpointed(NodeEvent, frozen=True, kw_only=True):
    """A node saved its progress as a value of its own choice, which its next attempt can read."""

    value: Any
    item: int | None = None


class Span(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Chunks that the same step streamed, one after the other."""

    chunks: int
    """How many they are."""
    step: str = ""
    """The step, as in `StepCompleted`; empty: they were streamed outside of steps."""
    step_try: int = 1
    """Which call of the step in this attempt streamed them, counted from 1: a step that raised may be called again."""


class NodeStreamed(NodeEvent, frozen=True, kw_only=True):
    """The chunks that an attempt has streamed since its last event of this kind: recorded with a step that streamed, and when the
    attempt ended or was found interrupted.
    """

    chunks: list[Any]
    item: int | None = None
    spans: list[Span] = []
    """Which steps streamed the chunks, in order; empty: no step did. If the chunks are large, there is a span even then, so that
    they can be counted without being read."""

    @property
    def count(self) -> int:
        """How many chunks these are, known without them if there are spans."""
        return sum(span.chunks for span in self.spans) if self.spans else len(self.chunks)


class StepCompleted(NodeEvent, frozen=True, kw_only=True):
    """A step inside a node is done; no attempt of this execution calls it again."""

    step: str
    value: Any = None
    item: int | None = None


class StepStarted(NodeEvent, frozen=True, kw_only=True):
    """A step with `idempotent=False` is about to be called. Until its outcome is recorded, its effect may or may not have
    happened.
    """

    step: str
    item: int | None = None
    result_schema: dict[str, Any] = {}
    """The JSON Schema of the result; empty if any result fits. For a type that a schema cannot express, it has only a title. With
    it, a caller who knows that the step has happened can state its result."""


class StepFailed(NodeEvent, frozen=True, kw_only=True):
    """A step inside a node raised an exception. With `retry_at`, this was one failed try of the step, which may be called again
    from that time on. Without it, the exception is the outcome of the step: every later attempt of this execution gets it
    again, and the step is not called.
    """

    step: str
    failure: Failure
    arguments: list[Any] = []
    """The arguments of the exception, with which it is made again."""
    retry_at: float | None = None
    item: int | None = None


class CostIncurred(NodeEvent, frozen=True, kw_only=True):
    """A node reported costs. They are never undone, even by a rewind."""

    usd: float = 0.0
    tokens: int = 0


class ItemsListed(NodeEvent, frozen=True, kw_only=True):
    """The items that a node with `each` fans out over were listed, once per execution."""

    items: list[Any]
    labels: list[str] = []
    """The name of each item in views and lists; empty if the node has no `label`."""


class ItemStarted(NodeEvent, frozen=True, kw_only=True):
    """An attempt of one item of a fan-out began. `attempt` counts the attempts of this item."""

    item: int


class ItemCompleted(NodeEvent, frozen=True, kw_only=True):
    """One item of a fan-out is done, and never runs again unless a caller asks for it."""

    item: int
    changes: Changes = Changes()
    artifacts: dict[str, Any] = {}
    """Files that the item wrote into its folder: name -> sha256 and size."""


class ItemFailed(NodeEvent, frozen=True, kw_only=True):
    """An attempt of one item of a fan-out failed. It is retried at `retry_at`; without `retry_at`, the item failed for good."""

    item: int
    failure: Failure
    retry_at: float | None = None


class LayerCompleted(Event, frozen=True, kw_only=True):
    """All nodes of a layer are done: their changes are applied in node order, and their routes are decided."""

    layer: int
    nodes: list[NodeName]
    changes: Changes = Changes()
    """The results of custom reducers."""
    routes: dict[NodeName, list[NodeName]] = {}


# --- questions ---------------------------------------------------------------------------------------


class QuestionAsked(NodeEvent, frozen=True, kw_only=True):
    """A question was asked: the run needs an answer before this node can begin or continue."""

    key: str
    text: str
    options: list[str] = []
    about: Literal["interrupt", "gate", "ask", "repeat", "result"] = "interrupt"
    """What the answer decides: `interrupt`, what to do with an interrupted visit; `gate`, whether a visit may begin; `ask`, what
    the node asked for with `ctx.ask`; `repeat`, whether a fork repeats a visit that its parent has begun; `result`, whether what
    a node has returned is used."""
    answer_schema: dict[str, Any] = {}
    approving: list[str] = []
    """The answers that let the visit begin; any other answer refuses it. If empty, every answer lets it begin."""
    slot: str = ""
    item: int | None = None
    until: float | None = None
    on_timeout: str = "fail"
    """`fail`, or the option that counts as the answer if none comes in time."""
    partial: dict[str, Any] = {}
    """What is known about the visit that was interrupted, or that the parent of a fork has begun."""


class StatedStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A step that was interrupted, and that has happened according to the caller who answered, with its result."""

    step: str
    result: Any = None
    item: int | None = None


class QuestionAnswered(NodeEvent, frozen=True, kw_only=True):
    """A question was answered."""

    VERSION: ClassVar[int] = 2

    key: str
    answer: Any
    refused: bool = False
    """True if the answer refuses the visit, so that the node fails."""
    confidence: float | None = None
    by: str | None = None
    reason: str | None = None
    stated: StatedStep | None = None
    """The step that has happened, according to this answer: its result is kept, and the step is not called again. If it is
    unknown of other steps whether they have happened, the question stays open."""

    def lowest_version(self) -> int:
        return 1 if self.stated is None else 2


# --- timers and signals ------------------------------------------------------------------------------


class TimerSet(NodeEvent, frozen=True, kw_only=True):
    """A node began to wait until a time."""

    slot: str
    until: float
    item: int | None = None


class TimerFired(NodeEvent, frozen=True, kw_only=True):
    """The time of a wait has come: a timer has ended, or a signal or an answer did not come in time."""

    slot: str
    item: int | None = None


class SignalAwaited(NodeEvent, frozen=True, kw_only=True):
    """A node began to wait for a signal. If the signal came before, the node gets it at once."""

    slot: str
    name: str
    until: float | None = None
    item: int | None = None
    payload_schema: dict[str, Any] = {}
    """The JSON Schema that the payload must fit; empty if any payload fits. For a type that a schema cannot express, it has
    only a title.
    """
    takes: int | None = None
    """The position, from 0, of the signal that the wait receives among those that were set aside; None if the wait receives the
    oldest signal that was not set aside.
    """


class SignalReceived(Event, frozen=True, kw_only=True):
    """A signal was sent to the run. The visit that has waited longest for this signal gets it; if no visit waits, the signal is
    kept.
    """

    name: str
    payload: Any = None
    by: str | None = None
    reason: str | None = None


class SignalSetAside(NodeEvent, frozen=True, kw_only=True):
    """A node could not use a signal that it received. The signal is kept for a later wait that it fits, and the node waits for
    the next signal.
    """

    slot: str
    name: str
    reason: str
    item: int | None = None


class WaitWithdrawn(NodeEvent, frozen=True, kw_only=True):
    """The node's own code has cancelled a wait. No signal, timer or answer ends the wait any more."""

    slot: str
    item: int | None = None
    returned: str | None = None
    """The name of a signal that had ended the wait before the node received it: the signal goes to the next wait. None if there
    was none.
    """


# --- child runs --------------------------------------------------------------------------------------


class ChildStarted(NodeEvent, frozen=True, kw_only=True):
    """A node started a child run, which is created in the append of this event unless an earlier execution has created it."""

    slot: str
    run: str
    """The id of the child."""
    flow: str
    item: int | None = None
    cancels: bool = False
    """True if the child is cancelled with its caller, and when the visit that started it is abandoned."""
    adopted: bool = False
    """True if the child existed already: an earlier execution of the visit has started it, with the same input."""


class ChildAwaited(NodeEvent, frozen=True, kw_only=True):
    """A node began to wait for the end of a child run. If the child has ended before, the node gets that end at once."""

    slot: str
    run: str
    until: float | None = None
    item: int | None = None
    anew: bool = False
    """True if the child continues after the failure that is recorded here: the node waits for its next end."""
    abandons: bool = False
    """True if the child is cancelled when the time of this wait has come."""


class ChildEnded(Event, frozen=True, kw_only=True):
    """A child run ended. A child that failed may be resumed, and then ends again."""

    run: str
    seq: Seq
    """The seq of the event in the log of the child with which it ended."""
    status: Literal["completed", "failed", "cancelled"]
    values: Values | None = None
    """The final state of a child that completed."""
    failure: Failure | None = None
    """Why the child did not complete."""
    usd: float = 0.0
    """The cost of the child and of its own children since its previous end."""
    tokens: int = 0
    state_version: int | None = None
    """The version of `values`; None in logs of older versions, and if the child did not complete."""


AnyEvent: TypeAlias = (
    RunCreated | RunForked | RunClaimed | RunResumed | RunRewound | RunPaused | RunInterrupted | RunCompleted | RunFailed
    | RunCancelled | RequestRefused | ResumeRefused | StateEdited | StateUpgraded | FlowChanged | NodeScheduled | NodeStarted
    | NodeCompleted | NodeFailed | NodeInterrupted | NodeSkipped | NodeRouted | RoutingFailed | ItemsListed | ItemStarted
    | ItemCompleted | ItemFailed | LayerCompleted | QuestionAsked | QuestionAnswered | NodeWaiting | NodeCheckpointed
    | NodeStreamed | StepCompleted | StepStarted | StepFailed | CostIncurred | TimerSet | TimerFired | SignalAwaited
    | SignalReceived | SignalSetAside | WaitWithdrawn | GuardEvaluated | NodesSkipped | PolicyDecided | OutputVerified
    | NodeReturned | ChildStarted | ChildAwaited | ChildEnded
)  # fmt: skip
"""All kinds of events. The properties of each kind are a row of the table in `core/kinds`."""

KINDS: dict[str, type[Event]] = {cls.__name__: cls for cls in AnyEvent.__args__}


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An event in a log, with its number and time. `at` is the store's time, which never goes back within a run."""

    seq: Seq
    at: float
    event: Any  # AnyEvent; `Any` keeps type checkers quick in the hot path

    @property
    def kind(self) -> str:
        return type(self.event).__name__
