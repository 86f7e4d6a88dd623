"""What happened: the closed union of facts that a run's log is made of.

Rules of this file
- An event is a frozen record in the past tense. It holds everything the fold needs: time, luck, ids,
  decisions and results of user code are inside it, so that folding it again a year later gives the same
  state.
- An event that is about to be stored is an `Event`; one that has its place in a log is `Stored` (seq, at,
  event).
- A kind is stored by its class name, so a class is never renamed. When its fields change, `VERSION` grows and
  an upcaster in `UPCASTERS` upgrades older bodies. A kind this version does not know is refused: the run is left
  untouched.
- Where an event belongs to a node (`node iteration execution attempt`) these four, with the kind, are the
  header: they are columns of the store. The body is the JSON of all other fields that differ from their
  defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.errors import SchemaTooNew, StoreCorrupt

T = TypeVar("T")
NodeName: TypeAlias = str
Seq: TypeAlias = int
Values: TypeAlias = dict[str, Any]
"""The state of a run as plain data: what JSON can hold, one entry a field."""


class Changes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a node changed, by field. The fold applies every part but `reduce` without calling user code."""

    set: dict[str, Any] = {}
    """Fields that have a new value."""
    append: dict[str, list[Any]] = {}
    """Items that are added to the end of a list field."""
    merge: dict[str, dict[str, Any]] = {}
    """Keys that a mapping field gets or replaces."""
    add: dict[str, Any] = {}
    """What is added to a number."""
    reduce: dict[str, Any] = {}
    """Operands of custom reducers, kept until the engine has computed their result (items, layers)."""
    unset: list[str] = []
    """Keys that went away (states without declared fields only)."""


FailureClass: TypeAlias = Literal["recoverable", "partial", "fatal"]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why something failed. The class decides what may follow: see `runtime/failures.py`."""

    kind: FailureClass
    type: str
    message: str
    traceback: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact about a run. Plain data has no cycles, so the garbage collector need not look at it."""

    VERSION: ClassVar[int] = 1


class NodeEvent(Event, frozen=True, kw_only=True):
    """A fact about one visit of a node. Iteration, execution and attempt count from 1."""

    node: NodeName
    iteration: int
    execution: int = 1
    attempt: int = 1


# --- the run -----------------------------------------------------------------------------------------


class RunCreated(Event, frozen=True, kw_only=True):
    """Checkpoint 0: everything a first node needs, recorded before anything runs."""

    flow: str
    fingerprint: str
    state_version: int
    input: Values
    starts: list[NodeName]
    """Where START leads."""
    schedule: Literal["eager", "layered"] = "eager"
    options: dict[str, Any] = {}
    labels: dict[str, str] = {}
    by: str | None = None
    trace_parent: str | None = None


class RunForked(Event, frozen=True, kw_only=True):
    """The first event of a fork. What came before is its base: the fold of `parent` at `to`."""

    parent: str
    to: Seq
    base_digest: str
    """sha256 of the base as stored, so that an altered base is found like an altered event."""
    labels: dict[str, str] | None = None
    by: str | None = None
    reason: str | None = None


class RunClaimed(Event, frozen=True, kw_only=True):
    """An engine claimed the run without a resume. What was running has been interrupted."""

    holder: str
    outlived: bool = False
    """The last holder lives and had to give the run up: what was interrupted has crashed no process."""


class RunResumed(Event, frozen=True, kw_only=True):
    """A caller resumed the run. What was running has been interrupted; what failed is due again."""

    holder: str = ""
    nodes: list[NodeName] | None = None
    """Failed or held nodes to try again; None: all of them."""
    fresh: bool = False
    force: bool = False
    outlived: bool = False
    """The last holder lives and had to give the run up: what was interrupted has crashed no process."""
    by: str | None = None
    reason: str | None = None


class RunRewound(Event, frozen=True, kw_only=True):
    """The run continues from an earlier place. Folded onto the fold of the log up to `to`; holds what is never undone."""

    to: Seq
    executions: dict[NodeName, dict[int, int]] = {}
    """How often the visits that are repeated were executed already."""
    crashes: dict[NodeName, int] = {}
    active_s: float = 0.0
    usd: float = 0.0
    tokens: int = 0
    fresh: dict[NodeName, dict[int, int]] = {}
    """How often the visits that are repeated had been asked to be, with new idempotency keys."""
    signals: dict[str, list[Any]] = {}
    """Signals that no visit has taken any more, oldest first, where the rewind changes that: they came, and are there for
    the next visit that waits for them.
    """
    by: str | None = None
    reason: str | None = None


class RunPaused(Event, frozen=True, kw_only=True):
    """Nothing new starts until the run is resumed; running nodes end."""

    by: str | None = None
    reason: str | None = None


class RunInterrupted(Event, frozen=True, kw_only=True):
    """The process was asked to stop, recorded where the run was, and released it."""

    reason: str | None = None


class RunCompleted(Event, frozen=True, kw_only=True):
    """Every branch reached its end. Final."""


class RunFailed(Event, frozen=True, kw_only=True):
    """A node failed for good, and what ran beside it has ended. Only a recorded resume may follow."""

    failure: Failure
    node: NodeName | None = None


class RunCancelled(Event, frozen=True, kw_only=True):
    """The run was cancelled. Final."""

    by: str | None = None
    reason: str | None = None


class ResumeRefused(Event, frozen=True, kw_only=True):
    """A validation refused a resume. Nothing ran."""

    reason: str
    by: str | None = None


# --- its state and its flow --------------------------------------------------------------------------


class StateEdited(Event, frozen=True, kw_only=True):
    """A caller changed the state. It also changes the inputs of visits that have not ended."""

    changes: Changes
    by: str | None = None
    reason: str | None = None


class StateUpgraded(Event, frozen=True, kw_only=True):
    """The state was upgraded to a newer version of its type, with the inputs of visits that have not ended."""

    state_version: int
    values: Values
    inputs: dict[NodeName, Values] = {}


class FlowChanged(Event, frozen=True, kw_only=True):
    """The run continues with a changed flow."""

    fingerprint: str
    rename: dict[NodeName, NodeName] = {}
    by: str | None = None


# --- nodes -------------------------------------------------------------------------------------------


class NodeScheduled(NodeEvent, frozen=True, kw_only=True):
    """A node is due and does not start in the same append; or a caller asked to retry a visit that has not ended."""

    why: str
    fresh: bool = False
    """As a new execution, which keeps nothing of the one before."""
    by: str | None = None
    reason: str | None = None


class NodeStarted(NodeEvent, frozen=True, kw_only=True):
    """An attempt begins. The state at the first one of an execution is the input of all its attempts."""

    took: int = 1
    """How many arrivals this visit begins for; 0 for a later attempt or execution."""
    woken: bool = False
    """The same attempt continues after a wait: from its top, with what it kept."""


class NodeCompleted(NodeEvent, frozen=True, kw_only=True):
    """The node is done and never runs again unless a caller asks for it. Its route is decided here, once."""

    changes: Changes = Changes()
    routes: list[NodeName] | None = None
    """Where the run goes from here; None: not decided yet (a router raised, or the layer decides)."""
    items: bool = False
    """The changes of the node's items come first, in item order."""
    artifacts: dict[str, Any] = {}
    """File name -> its sha256 and size, for what the node wrote into its folder."""


class NodeFailed(NodeEvent, frozen=True, kw_only=True):
    """An attempt failed. With `retry_at` it is tried again then, otherwise it failed for good."""

    failure: Failure
    retry_at: float | None = None


class NodeInterrupted(NodeEvent, frozen=True, kw_only=True):
    """An attempt was stopped from outside, before it ended."""

    reason: str = ""
    lost: bool = False
    """It ended with its process, at an unknown time: the time until now is not its own."""


class NodeSkipped(NodeEvent, frozen=True, kw_only=True):
    """A caller, or the node's own `on_interrupt="skip"`, put this in place of a completion."""

    changes: Changes = Changes()
    routes: list[NodeName] | None = None
    took: int = 0
    """How many arrivals this uses up, where the visit had not begun."""
    warning: Failure | None = None
    """Why a node that is `safe_to_fail` has no result."""
    by: str | None = None
    reason: str | None = None


class NodeRouted(NodeEvent, frozen=True, kw_only=True):
    """The route of a completed node whose router had raised."""

    routes: list[NodeName]


class RoutingFailed(NodeEvent, frozen=True, kw_only=True):
    """The node completed; its router raised. A resume evaluates only the router."""

    failure: Failure


class NodeWaiting(NodeEvent, frozen=True, kw_only=True):
    """An attempt has unwound and holds nothing any more. It continues when something that it waits for has come."""

    on: list[str]
    """The slots it waits for."""
    item: int | None = None


class NodeCheckpointed(NodeEvent, frozen=True, kw_only=True):
    """How far a long node has come, in its own words. The next attempt finds it."""

    value: Any
    item: int | None = None


class NodeStreamed(NodeEvent, frozen=True, kw_only=True):
    """What an attempt streamed, in one piece: written when it ended, or when it was found interrupted."""

    chunks: list[Any]
    item: int | None = None


class StepCompleted(NodeEvent, frozen=True, kw_only=True):
    """A piece of work inside a node is done; no attempt of this execution does it again."""

    step: str
    value: Any = None
    item: int | None = None


class CostIncurred(NodeEvent, frozen=True, kw_only=True):
    """What a node spent. Never undone."""

    usd: float = 0.0
    tokens: int = 0


class ItemsListed(NodeEvent, frozen=True, kw_only=True):
    """What a node with `each` fans out over. Listed once an execution."""

    items: list[Any]


class ItemStarted(NodeEvent, frozen=True, kw_only=True):
    """An attempt at one item begins (`attempt` is the item's)."""

    item: int


class ItemCompleted(NodeEvent, frozen=True, kw_only=True):
    """One item is done and never runs again unless a caller asks for it."""

    item: int
    changes: Changes = Changes()
    artifacts: dict[str, Any] = {}
    """File name -> its sha256 and size, for what the item wrote into its folder."""


class ItemFailed(NodeEvent, frozen=True, kw_only=True):
    """An attempt at one item failed."""

    item: int
    failure: Failure
    retry_at: float | None = None


class LayerCompleted(Event, frozen=True, kw_only=True):
    """All nodes of a layer are done: their changes are applied in node order, and the routes decided."""

    layer: int
    nodes: list[NodeName]
    changes: Changes = Changes()
    """Results of custom reducers."""
    routes: dict[NodeName, list[NodeName]] = {}


# --- questions ---------------------------------------------------------------------------------------


class QuestionAsked(NodeEvent, frozen=True, kw_only=True):
    """The run needs a decision before this node can continue."""

    key: str
    text: str
    options: list[str] = []
    about: Literal["interrupt", "gate", "ask"] = "interrupt"
    """What the answer decides: about an interrupted visit, whether a visit may begin, or what a running one has asked for."""
    answer_schema: dict[str, Any] = {}
    approving: list[str] = []
    """The answers that let a visit begin; any other refuses. Empty: every answer does."""
    slot: str = ""
    item: int | None = None
    until: float | None = None
    on_timeout: str = "fail"
    """`fail`, or the option that is taken when no answer comes in time."""
    partial: dict[str, Any] = {}
    """What is known of the visit that was interrupted."""


class QuestionAnswered(NodeEvent, frozen=True, kw_only=True):
    """What was decided."""

    key: str
    answer: Any
    refused: bool = False
    """The answer keeps the run from continuing."""
    confidence: float | None = None
    by: str | None = None
    reason: str | None = None


# --- timers and signals ------------------------------------------------------------------------------


class TimerSet(NodeEvent, frozen=True, kw_only=True):
    """A node waits until a time."""

    slot: str
    until: float
    item: int | None = None


class TimerFired(NodeEvent, frozen=True, kw_only=True):
    """The time has come: of a timer, or of a signal or an answer that did not come."""

    slot: str
    item: int | None = None


class SignalAwaited(NodeEvent, frozen=True, kw_only=True):
    """A node waits for a signal. One that came before is taken at once."""

    slot: str
    name: str
    until: float | None = None
    item: int | None = None
    payload_schema: dict[str, Any] = {}
    """The JSON Schema of the payload that the node wants; empty: it takes any. A type that a schema cannot express has only
    its title here.
    """
    takes: int | None = None
    """The position, from 0, of the set-aside signal that it takes. None: it takes the oldest signal that was not set aside."""


class SignalReceived(Event, frozen=True, kw_only=True):
    """A signal was sent to the run. The visit that has waited longest for it takes it; otherwise it is kept for the next one."""

    name: str
    payload: Any = None
    by: str | None = None
    reason: str | None = None


class SignalSetAside(NodeEvent, frozen=True, kw_only=True):
    """A node could not use the signal that it received: the signal is kept for a later wait that it fits, and the node waits
    for the next one.
    """

    slot: str
    name: str
    reason: str
    item: int | None = None


AnyEvent: TypeAlias = (
    RunCreated | RunForked | RunClaimed | RunResumed | RunRewound | RunPaused | RunInterrupted | RunCompleted | RunFailed
    | RunCancelled | ResumeRefused | StateEdited | StateUpgraded | FlowChanged | NodeScheduled | NodeStarted | NodeCompleted
    | NodeFailed | NodeInterrupted | NodeSkipped | NodeRouted | RoutingFailed | ItemsListed | ItemStarted | ItemCompleted
    | ItemFailed | LayerCompleted | QuestionAsked | QuestionAnswered | NodeWaiting | NodeCheckpointed | NodeStreamed
    | StepCompleted | CostIncurred | TimerSet | TimerFired | SignalAwaited | SignalReceived
    | SignalSetAside
)  # fmt: skip
"""The closed union. What is known about each of these is a row of `core/kinds`."""

KINDS: dict[str, type[Event]] = {cls.__name__: cls for cls in AnyEvent.__args__}

UPCASTERS: dict[tuple[str, int], Any] = {}
"""(kind, version) -> a function that upgrades the body of that version, a dict, by one version."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An event in its place in a log. `at` is the store's time; it never goes back within a run."""

    seq: Seq
    at: float
    event: Any  # AnyEvent; `Any` keeps type checkers quick in the hot path

    @property
    def kind(self) -> str:
        return type(self.event).__name__


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event as a store keeps it: the header as columns, the rest as JSON (empty where nothing is left to say)."""

    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    body: bytes


_HEADER = ("node", "iteration", "execution", "attempt")
_json_encode = msgspec.json.Encoder().encode
_UNCHANGED = Changes()


def _body_fields(cls: type[Event]) -> tuple[tuple[str, Any], ...]:
    fields = []
    for field in msgspec.structs.fields(cls):
        if field.name not in _HEADER or not issubclass(cls, NodeEvent):
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            fields.append((field.name, default))
    return tuple(fields)


class _Header(msgspec.Struct):
    node: str | None
    iteration: int
    execution: int
    attempt: int


class _Made(dict[type[Event], T]):
    """What is made of a kind when it is first wanted: of all of them, it would take a fifth of `import holdfast`."""

    def __init__(self, make: Callable[[type[Event]], T]) -> None:
        self._make = make

    def __missing__(self, cls: type[Event]) -> T:
        made = self[cls] = self._make(cls)
        return made


_DECODERS = _Made(lambda cls: msgspec.json.Decoder(cls).decode)
_BODY_FIELDS = _Made(_body_fields)


def _completion(event: NodeCompleted) -> dict[str, Any]:
    """What a completion says beyond its defaults, written out."""
    body: dict[str, Any] = {}
    changes = event.changes
    if changes.set or changes != _UNCHANGED:
        body["changes"] = changes
    if event.routes is not None:
        body["routes"] = event.routes
    if event.items:
        body["items"] = True
    if event.artifacts:
        body["artifacts"] = event.artifacts
    return body


def encode(event: Event) -> Encoded:
    """Turn an event into what is stored. Done before the event is folded: the fold may grow a list it still holds."""
    cls = type(event)
    if cls is NodeStarted and event.took == 1 and not event.woken:  # type: ignore[attr-defined]  # half of all events: nothing is left to say
        return Encoded("NodeStarted", event.node, event.iteration, event.execution, event.attempt, b"")  # type: ignore[attr-defined]
    if cls is NodeCompleted:  # and half of what is left
        body = _completion(event)  # type: ignore[arg-type]
    else:
        body = {
            name: value for name, default in _BODY_FIELDS[cls] if (value := getattr(event, name)) != default
        }
    if cls.VERSION > 1:
        body["v"] = cls.VERSION
    encoded = _json_encode(body) if body else b""
    if isinstance(event, NodeEvent):
        return Encoded(cls.__name__, event.node, event.iteration, event.execution, event.attempt, encoded)
    return Encoded(cls.__name__, None, 0, 0, 0, encoded)


def _current(cls: type[Event], body: bytes) -> bytes:
    """A body as this version writes it. One that says no version is of version 1."""
    fields: dict[str, Any] = msgspec.json.decode(body)
    version = fields.pop("v", 1)
    if version > cls.VERSION:
        raise SchemaTooNew(
            f"the log holds version {version} of {cls.__name__!r}; this Holdfast knows {cls.VERSION}."
        )
    while version < cls.VERSION:
        fields = UPCASTERS[cls.__name__, version](fields)
        version += 1
    return _json_encode(fields)


def decode(encoded: Encoded) -> Event:
    """Turn what is stored back into an event."""
    cls = KINDS.get(encoded.kind)
    if cls is None:
        raise SchemaTooNew(
            f"the log holds an event of kind {encoded.kind!r}, which this version of Holdfast does not know. "
            "Use the version that wrote it, or a newer one."
        )
    if cls is NodeStarted and not encoded.body and encoded.node:  # as it was written: see `encode`
        return NodeStarted(
            node=encoded.node,
            iteration=encoded.iteration,
            execution=encoded.execution,
            attempt=encoded.attempt,
        )
    try:
        body = encoded.body or b"{}"
        if cls.VERSION != 1 or b'"v":' in body:
            body = _current(cls, body)
        if issubclass(cls, NodeEvent):
            header = _json_encode(
                _Header(encoded.node, encoded.iteration, encoded.execution, encoded.attempt)
            )
            body = header[:-1] + (b"}" if body == b"{}" else b"," + body[1:])
        return _DECODERS[cls](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, TypeError, KeyError) as fault:
        raise StoreCorrupt(f"an event of kind {encoded.kind!r} cannot be read: {fault}") from fault
