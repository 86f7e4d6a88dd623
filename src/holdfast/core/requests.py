"""What callers may ask of a run: one record for each verb, with its options, their limits and a sentence about each.

A record is the only place that lists the options of a verb. The stored form in an inbox, the signatures and the help of the
public functions, the bodies of HTTP requests, the options of commands and what a preview is about follow from the fields of the
record (`core.verb_options`). The `TypedDict` beside a record has the same options for type checkers; it is written out because
they cannot derive it, and a test compares the two.

The limits of an option hold for what comes from outside, over HTTP. An engine compares an option with the run instead, and can
say more about what is wrong.
"""

# Annotations are read at import: no `from __future__ import annotations`.

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, Meta

from holdfast.core.budget import Budget
from holdfast.core.events import Failure
from holdfast.core.run_state import ACTIVE, FINAL, HALTED, OPEN, Status
from holdfast.core.validate import NODE_ID, PRIORITY_MAX, RUN_ID
from holdfast.core.verb_options import Option
from holdfast.errors import SettingError

Node = Annotated[str, Meta(pattern=f"^{NODE_ID.pattern}$")]
Confirmed = Annotated[str, Meta(pattern=f"^({RUN_ID.pattern}/)?{NODE_ID.pattern}$")]
"""A node, or `RUN/node` for a node of a child run."""
Seq = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=10_000)]
Key = Annotated[str, Meta(min_length=1, max_length=1000)]
Fields = dict[str, Any]
"""Field of the state -> its new value."""
Scope = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(min_length=1, max_length=10_000)
]
"""Names of nodes."""
Labels = Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=100)]
NewRunId = Annotated[str, Meta(pattern=f"^{RUN_ID.pattern}$")]
OnChange: TypeAlias = Literal["refuse", "compatible"]
Repeat: TypeAlias = Literal["ask", "run", "skip"]
"""What a fork does with visits of a node that its parent has begun and that is not idempotent."""
OnExists: TypeAlias = Literal["refuse", "use"]
"""What `start` does if a run of that id and flow exists with another input."""
Schedule: TypeAlias = Literal["eager", "layered"]
Role: TypeAlias = Literal["read", "start", "operate", "admin"]


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of every request of one verb."""

    asked: str
    """The participle of the verb, for the message of a refusal: "run 'r' cannot be …"."""
    executes: bool = False
    """True if the verb resumes a run that no engine executes; False if the request is then only recorded, which needs no flow."""
    parks: bool = False
    """True if nodes that are waiting unwind at once."""
    accepts: frozenset[Status] = OPEN
    """The statuses of a run that allow the verb; none for `start`, which is not asked of a run. What it needs besides (a failed
    node, an open question) is decided with the state of the run.
    """
    awaited: bool = True
    """True if a caller waits until the engine that executes the run has carried the request out or refused it."""
    previewed: bool = False
    """True if a caller can ask what the verb would do."""
    cancels_because: str | None = None
    """The reason for cancelling the run, if the request itself gives none."""
    of_many: frozenset[Status] = frozenset()
    """The statuses of the runs that a request to many runs means, if its caller names none; empty if the verb cannot be asked of
    many runs at once.
    """
    done: str = ""
    """What is true of a run for which the request was carried out."""
    id_mark: str = "request:"
    """What the stored id of a request begins with if its caller has given the id: two requests of a run with the same stored id
    are the same request. A second one changes nothing, and its caller gets the outcome of the first, if the verb is awaited.
    """
    makes_run: bool = False
    """True if the verb makes another run. It then leaves no request in an inbox."""
    role: Role | None = "operate"
    """The role that a token needs over HTTP; None if only engines ask for it."""


BY = Option("Who asks. It is recorded in the log.", "NAME", is_header=True)
REASON = Option("Why the caller asks for this. It is recorded in the log.", "TEXT", limit=Text | None)
NEW_RUN_ID = Option(
    "The id of the new run. Default: a random one or, over HTTP, one that follows from the key of the request.",
    "ID",
    limit=NewRunId | None,
)
EXPECTS = Option(
    "The digest of a preview that the caller acts on: the request is refused if it would now do something else.",
    "DIGEST",
    is_header=True,
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every request: its id, the run, who asks and why."""

    verb: ClassVar[str]
    traits: ClassVar[Traits]
    left_out: ClassVar[tuple[str, ...]] = ()
    """The fields that are stored only if they have another value than their default, because they were added later."""
    not_ignored: ClassVar[tuple[str, ...]] = ()
    """The fields that older versions must not ignore: they are stored inside the field `on_change`, so that an older version
    cannot read the request, and refuses it.
    """
    id: str = ""
    """The id of the request: sending a request again with the same id has no effect. If it is empty, the request gets an id
    when it is carried out.
    """
    run_id: str = ""
    at: float = 0.0
    """When the request was put into the inbox; 0 if it was not."""
    by: Annotated[str | None, BY] = None
    reason: Annotated[str | None, REASON] = None


class AskOptions(TypedDict, total=False):
    """The options of every verb that asks something of a run."""

    by: str | None
    id: Annotated[
        str | None,
        Option(
            "The id of the request: a request with an id can be made twice, and the second time changes nothing."
        ),
    ]


class ReasonOption(TypedDict, total=False):
    """The option of the verbs that take no reason by position."""

    reason: str | None


class ExpectsOption(TypedDict, total=False):
    """The option of the verbs that have a preview."""

    expects: str | None


class ExecuteOption(TypedDict, total=False):
    """The option of the verbs of an engine that execute a run."""

    execute: Annotated[
        bool,
        Option("If false, this process executes nothing: the request is left for a worker.", default=True),
    ]


class WaitOption(TypedDict, total=False):
    """The option of the verbs that may leave the execution to another process: those of a client, and `answer`."""

    wait: Annotated[
        float | None,
        Option(
            "Wait until the run has stopped or asks something, for at most this many seconds. Default: do not wait."
        ),
    ]


class PauseHere(AskOptions, total=False):
    """The options with which an engine pauses a run."""


class PauseThere(AskOptions, WaitOption, total=False):
    """The options with which a client asks for a run to be paused."""


class Pause(Asked, frozen=True, kw_only=True):
    """A request to start no more nodes until the run is resumed."""

    verb: ClassVar[str] = "pause"
    traits: ClassVar[Traits] = Traits(asked="paused", accepts=ACTIVE, parks=True)


class Cancel(Asked, frozen=True, kw_only=True):
    """A request to cancel the run for good."""

    verb: ClassVar[str] = "cancel"
    traits: ClassVar[Traits] = Traits(asked="cancelled", previewed=True, of_many=OPEN, done="cancelled")
    left_out: ClassVar[tuple[str, ...]] = ("expects",)
    expects: Annotated[str | None, EXPECTS] = None


class CancelHere(ExpectsOption, AskOptions, total=False):
    """The options with which an engine cancels a run."""


class CancelThere(ExpectsOption, AskOptions, WaitOption, total=False):
    """The options with which a client asks for a run to be cancelled."""


class Stated(msgspec.Struct, frozen=True, omit_defaults=True):
    """The step that has happened, according to an answer, and its result."""

    result: Annotated[
        Any, Option("The result of the step, if the answer is `happened`.", "JSON|@FILE", default=UNSET)
    ]
    step: Annotated[
        str | None,
        Option(
            "The step that has happened (with its key: NAME:KEY), if the answer is `happened` and the question is about several.",
            "STEP",
            limit=Key | None,
        ),
    ] = None
    item: Annotated[
        int | None,
        Option(
            "The item of a fan-out to which the step belongs.", "N", limit=Annotated[int, Meta(ge=0)] | None
        ),
    ] = None


class Answer(Asked, frozen=True, kw_only=True):
    """A request to record the answer to an open question."""

    verb: ClassVar[str] = "answer"
    traits: ClassVar[Traits] = Traits(asked="answered", cancels_because="aborted by the answer")
    left_out: ClassVar[tuple[str, ...]] = ("update", "confidence", "stated")
    key: Annotated[
        str,
        Option(
            "The key of the question, or the name of its node if that asks only one.",
            "QUESTION",
            name="question",
            limit=Key,
        ),
    ]
    value: Annotated[
        Any,
        Option(
            "The answer: one of the choices, or what the schema of the question allows.",
            "VALUE",
            body_name="answer",
            is_required=True,
        ),
    ] = None
    update: Annotated[
        Any,
        Option("The result to record for an interrupted node, if the answer is `skip`.", "JSON|@FILE"),
    ] = None
    confidence: Annotated[
        int | float | None,
        Option(
            "How sure an agent is of its answer, from 0 to 1.",
            "N",
            limit=Annotated[float, Meta(ge=0, le=1)] | None,
        ),
    ] = None
    stated: Stated | None = None
    """The step that has happened, if the answer is `happened`."""


class AnswerOptions(TypedDict, total=False):
    """The options of `answer` that only it has."""

    update: Any
    confidence: float | None
    step: str | None
    item: int | None
    result: Any


class AnswerHere(AnswerOptions, AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which an engine answers a question."""


class AnswerThere(AnswerOptions, AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client answers a question."""


class Signal(Asked, frozen=True, kw_only=True):
    """A request to deliver a signal to the node that waits for it, or to the next one that will."""

    verb: ClassVar[str] = "signal"
    # No engine refuses a signal, and a sender may have thousands: the sender does not wait.
    traits: ClassVar[Traits] = Traits(asked="sent a signal", awaited=False, id_mark="signal:", role="start")
    name: Annotated[
        str, Option("The name of the signal, as the node passes it to `ctx.wait_for`.", "NAME", limit=Key)
    ]
    payload: Annotated[Any, Option("What the node that waits for the signal gets.", "JSON|@FILE")] = None


class SignalHere(AskOptions, ReasonOption, total=False):
    """The options with which an engine sends a signal."""


class SignalThere(AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client sends a signal."""


class Retry(Asked, frozen=True, kw_only=True):
    """A request to retry a node that failed, was interrupted or waits; without a node, all such nodes."""

    verb: ClassVar[str] = "retry"
    traits: ClassVar[Traits] = Traits(
        asked="tried again", executes=True, previewed=True, of_many=HALTED, done="retried"
    )
    left_out: ClassVar[tuple[str, ...]] = ("confirm", "expects")
    node: Annotated[
        str | None,
        Option(
            "The node to retry. Default: every node that failed, crashed or waits.", "NODE", limit=Node | None
        ),
    ] = None
    fresh: Annotated[
        bool,
        Option("Discard the steps and checkpoints that earlier attempts of the node kept.", of_many=True),
    ] = False
    confirm: Annotated[
        list[str] | None,
        Option(
            "Nodes of child runs, as RUN/NODE, that may run again although they are not idempotent: a preview lists them.",
            "NODE",
            limit=Annotated[tuple[Confirmed, ...], Meta(max_length=10_000)],
            default=(),
        ),
    ] = None
    expects: Annotated[str | None, EXPECTS] = None


class RetryOptions(ExpectsOption, total=False):
    """The options of `retry` that only it has."""

    fresh: bool
    confirm: Collection[str]


class RetryHere(RetryOptions, AskOptions, ReasonOption, ExecuteOption, total=False):
    """The options with which an engine retries nodes."""


class RetryThere(RetryOptions, AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client asks for nodes to be retried."""


class Skip(Asked, frozen=True, kw_only=True):
    """A request to skip a node, and to record `update` as its result."""

    verb: ClassVar[str] = "skip"
    traits: ClassVar[Traits] = Traits(asked="skipped", executes=True, previewed=True)
    left_out: ClassVar[tuple[str, ...]] = ("expects",)
    node: Annotated[str, Option("The node to skip: one that failed, crashed or waits.", "NODE", limit=Node)]
    update: Annotated[
        Any,
        Option(
            "The result to record for the skipped node: fields of the state or, for a task of a plan, its output.",
            "JSON|@FILE",
            limit=Fields | None,
        ),
    ] = None
    expects: Annotated[str | None, EXPECTS] = None


class SkipHere(ExpectsOption, AskOptions, ReasonOption, ExecuteOption, total=False):
    """The options with which an engine skips a node."""


class SkipThere(ExpectsOption, AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client asks for a node to be skipped."""


class EditHere(AskOptions, ReasonOption, total=False):
    """The options with which an engine edits a state."""


class EditThere(AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client asks for a state to be edited."""


class Edit(Asked, frozen=True, kw_only=True):
    """A request to change fields of the state. The run must not be running."""

    verb: ClassVar[str] = "edit"
    traits: ClassVar[Traits] = Traits(asked="edited")
    fields: Annotated[
        dict[str, Any],
        Option(
            "The fields of the state to change, and their new values.",
            "JSON|@FILE",
            name="edit",
            body_name="fields",
            limit=Annotated[Fields, Meta(min_length=1)],
            is_required=True,
        ),
    ] = {}
    changes: dict[str, Any] | None = None
    """What a function of the caller changed, in the stored form of `events.Changes`, in place of `fields`."""
    seen: int | None = None
    """The seq of the last event that the function saw: the request is refused if the run has moved since. None if the caller
    gave fields, which do not depend on the state.
    """


class Resume(Asked, frozen=True, kw_only=True):
    """A request to resume the run, from its end or from an earlier event."""

    verb: ClassVar[str] = "resume"
    traits: ClassVar[Traits] = Traits(
        asked="resumed", executes=True, previewed=True, of_many=HALTED | {"paused"}, done="resumed"
    )
    left_out: ClassVar[tuple[str, ...]] = ("expects", "budget", "scope")
    not_ignored: ClassVar[tuple[str, ...]] = ("budget", "scope")
    checkpoint: Annotated[
        int | None,
        Option("Rewind the run to this checkpoint first; the same as RUN@SEQ.", "SEQ", limit=Seq | None),
    ] = None
    after: Annotated[
        str | None,
        Option(
            "Rewind the run to just after the latest completion of this node.",
            "NODE",
            limit=Node | None,
            of_many=True,
        ),
    ] = None
    restart_at: Annotated[
        str | None,
        Option(
            "Rewind the run and run this node again with the input it had.",
            "NODE",
            limit=Node | None,
            of_many=True,
        ),
    ] = None
    replay: Annotated[
        bool, Option("Run the last completed node again with the input it had.", of_many=True)
    ] = False
    edit: Annotated[
        dict[str, Any] | None,
        Option(
            "Fields of the state to change before the run continues, and their new values.",
            "JSON|@FILE",
            of_many=True,
        ),
    ] = None
    changes: dict[str, Any] | None = None
    seen: int | None = None
    """`changes` and `seen` are what a function of the caller changed, as in `Edit`."""
    force: Annotated[
        bool,
        Option(
            "Resume even after a fatal failure, or if a completed node that is not idempotent would run again.",
            of_many=True,
        ),
    ] = False
    confirm: Annotated[
        list[str],
        Option(
            "Nodes that may run again although they are not idempotent: a preview lists them, those of child runs as RUN/NODE.",
            "NODE",
            limit=Annotated[tuple[Confirmed, ...], Meta(max_length=10_000)],
            default=(),
            of_many=True,
        ),
    ] = []
    on_change: Annotated[
        OnChange,
        Option(
            "What to do if the flow has changed since the run was created: refuse, or resume if the change is compatible.",
            of_many=True,
        ),
    ] = "refuse"
    rename: Annotated[
        dict[str, str],
        Option(
            "The old and the new names of nodes that were renamed.",
            "OLD=NEW",
            limit=dict[Node, Node],
            default=None,
            of_many=True,
        ),
    ] = {}
    budget: Annotated[
        Budget | None,
        Option(
            "The new budget of the run, above what it has spent. Default: the one that it has.",
            "LIMITS",
            of_many=True,
        ),
    ] = None
    scope: Annotated[
        list[str] | None,
        Option(
            "Nodes that may run too, if the run has a scope; '*' for all.",
            "NODE",
            limit=Scope | None,
            of_many=True,
        ),
    ] = None
    expects: Annotated[str | None, EXPECTS] = None

    @property
    def places(self) -> dict[str, Any]:
        """The options that name a place to resume from, with their values. At most one may be given."""
        given = {name: getattr(self, name) for name in ("checkpoint", "after", "restart_at", "replay")}
        return {name: where for name, where in given.items() if where is not None and where is not False}


class ResumeOptions(ExpectsOption, total=False):
    """The options of `resume` that only it has."""

    checkpoint: str | int | None
    after: str | None
    restart_at: str | None
    replay: bool
    force: bool
    confirm: Collection[str]
    on_change: OnChange
    rename: Mapping[str, str] | None
    budget: Budget | None
    scope: Collection[str] | None


class ResumeHere(ResumeOptions, AskOptions, ReasonOption, ExecuteOption, total=False):
    """The options with which an engine resumes a run. What cannot be stored is here and not in the record."""

    edit: Annotated[
        Callable[[Any], Any] | Mapping[str, Any] | None,
        Option(
            "Fields of the state to change before the run continues, and their new values; or a function that is called with the "
            "state, and returns such fields or changes the state."
        ),
    ]
    validate: Annotated[
        Callable[[Any], Any] | None,
        Option(
            "A function that is called with the state first. If it returns a message, the resume is refused with that message."
        ),
    ]


class ResumeThere(ResumeOptions, AskOptions, ReasonOption, WaitOption, total=False):
    """The options with which a client asks for a run to be resumed."""

    edit: Mapping[str, Any] | None


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A new run that shares the history of another up to a checkpoint."""

    verb: ClassVar[str] = "fork"
    traits: ClassVar[Traits] = Traits(asked="forked", accepts=OPEN | FINAL, previewed=True, makes_run=True)
    checkpoint: Annotated[
        int | None, Option("The event to fork from. Default: the latest checkpoint.", "SEQ", limit=Seq | None)
    ] = None
    edit: Annotated[
        dict[str, Any] | None,
        Option("Fields of the state to change in the new run, and their new values.", "JSON|@FILE"),
    ] = None
    repeat: Annotated[
        Repeat | dict[str, Repeat],
        Option(
            "What the fork does with visits of nodes that are not idempotent and that the run has begun: for all nodes, or by "
            "node.",
            "CHOICE|NODE=CHOICE",
            limit=Repeat | dict[Node, Repeat],
        ),
    ] = "ask"
    fresh: Annotated[bool, Option("Use idempotency keys of its own, so that all effects count as new.")] = (
        False
    )
    run_id: Annotated[str | None, NEW_RUN_ID] = None
    labels: Annotated[
        dict[str, str] | None,
        Option(
            "The labels of the new run. Default: those of the run that is forked.",
            "NAME=VALUE",
            limit=Labels | None,
        ),
    ] = None
    by: Annotated[str | None, BY] = None
    reason: Annotated[str | None, REASON] = None
    expects: Annotated[str | None, EXPECTS] = None


class ForkOptions(ExpectsOption, ReasonOption, total=False):
    """The options of `fork`."""

    checkpoint: str | int | None
    run_id: str | None
    repeat: Repeat | Mapping[str, Repeat]
    fresh: bool
    labels: Mapping[str, str] | None
    by: str | None


class ForkHere(ForkOptions, total=False):
    """The options with which an engine forks a run."""

    edit: Annotated[
        Callable[[Any], Any] | Mapping[str, Any] | None,
        Option(
            "Fields of the state to change in the new run, and their new values; or a function that is called with the state, "
            "and returns such fields or changes the state."
        ),
    ]


class ForkThere(ForkOptions, total=False):
    """The options with which a client forks a run."""

    edit: Mapping[str, Any] | None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A run to start."""

    verb: ClassVar[str] = "start"
    traits: ClassVar[Traits] = Traits(asked="started", accepts=frozenset(), makes_run=True, role="start")
    run_id: Annotated[str | None, NEW_RUN_ID] = None
    labels: Annotated[
        dict[str, str] | None,
        Option("Labels of the run, by which runs can be listed.", "NAME=VALUE", limit=Labels | None),
    ] = None
    timeout: Annotated[
        float | None,
        Option(
            "Fail the run if it has not ended this many seconds after it was started.",
            "SECONDS",
            limit=Annotated[float, Meta(gt=0, lt=1e10)] | None,
        ),
    ] = None
    queue: Annotated[
        str | None,
        Option(
            "The queue in which the run waits for a worker. Default: default.", "NAME", limit=NewRunId | None
        ),
    ] = None
    priority: Annotated[
        int,
        Option(
            "The priority of the run: workers claim runs with a higher priority first.",
            "N",
            limit=Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)],
        ),
    ] = 0
    begin_at: Annotated[
        datetime | None,
        Option(
            "The time at which workers may begin: a date and time with a time zone (RFC 3339) or, over HTTP, seconds since the "
            "epoch.",
            "TIME",
            limit=Annotated[float, Meta(ge=0, lt=1e11)] | datetime | None,
        ),
    ] = None
    budget: Annotated[
        Budget | None,
        Option("What the run may cost in total. Once it is spent, nothing more begins in the run.", "LIMITS"),
    ] = None
    schedule: Annotated[
        Schedule | None, Option("The schedule: eager or layered. Default: that of the flow.", "NAME")
    ] = None
    scope: Annotated[
        list[str] | None,
        Option("Run only these nodes, and then pause the run.", "NODE", limit=Scope | None),
    ] = None
    by: Annotated[str | None, BY] = None
    on_exists: Annotated[
        OnExists,
        Option(
            "With `use`, an existing run of this id and flow is used, whatever its input. Otherwise another input is refused."
        ),
    ] = "refuse"
    trace_parent: Annotated[
        str | None,
        Option("The header `traceparent` of the request for which the run is started (W3C).", is_header=True),
    ] = None


class RunOptions(TypedDict, total=False):
    """The options of `run`."""

    run_id: str | None
    labels: Mapping[str, str] | None
    timeout: float | None
    queue: str | None
    priority: int
    budget: Budget | None
    schedule: Schedule | None
    scope: Collection[str] | None
    by: str | None


class StartThere(RunOptions, total=False):
    """The options with which a client starts a run."""

    begin_at: datetime | None
    on_exists: OnExists


class StartHere(StartThere, total=False):
    """The options with which an engine starts a run."""

    trace_parent: str | None


class ChildEnd(Asked, frozen=True, kw_only=True):
    """A request to record that a child run of the run has ended. The engine of the child leaves it, in the append with which the
    child ends.
    """

    verb: ClassVar[str] = "child-ended"
    traits: ClassVar[Traits] = Traits(asked="told of the end of a child", awaited=False, role=None)
    left_out: ClassVar[tuple[str, ...]] = ("state_version",)
    run: str
    seq: int
    status: Literal["completed", "failed", "cancelled"]
    values: dict[str, Any] | None = None
    """The final state of a child that completed; None if it is large: then it is read from the log of the child."""
    failure: Failure | None = None
    usd: float = 0.0
    tokens: int = 0
    state_version: int | None = None
    """The version of the final state of a child that completed; None if an older version of Holdfast has executed the child."""


class Unknown(Asked, frozen=True, kw_only=True):
    """A request that this version of Holdfast cannot read."""

    verb: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits(asked="changed", executes=True, role=None)
    stored_verb: str


AnyRequest: TypeAlias = Pause | Cancel | Answer | Signal | Retry | Skip | Edit | Resume | ChildEnd | Unknown

RECORDS: dict[str, type[AnyRequest]] = {
    kind.verb: kind for kind in (Resume, Retry, Skip, Cancel, Pause, Edit, Answer, Signal, ChildEnd)
}
"""Verb -> its record, for every verb that a request in an inbox may have."""
MAKING: dict[str, type[Fork | Start]] = {kind.verb: kind for kind in (Start, Fork)}
"""Verb -> its record, for every verb that makes a run."""
EXECUTING = frozenset(verb for verb, kind in RECORDS.items() if kind.traits.executes)
"""The verbs that make a run continue which no engine executes."""
SHARED = frozenset(Asked.__struct_fields__)
"""The fields that every request has."""


def stated_of(step: str | None, item: int | None, result: Any) -> Stated | None:
    """Return what an answer states about a step; None if it states nothing. Raises `SettingError` if the result is missing."""
    if result is not UNSET:
        return Stated(result, step, item)
    if step is not None or item is not None:
        raise SettingError(
            "an answer about a step needs the result of the step: give result=… (--result JSON; null for None)"
        )
    return None


def unfold(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request from the body of its stored form, in which `on_change` has those of `not_ignored`."""
    inner = body.get("on_change")
    return {**body, **inner} if isinstance(inner, Mapping) else dict(body)


def own_fields(request: AnyRequest) -> dict[str, Any]:
    """Return the fields of a request that only its verb has, with their values."""
    return {name: getattr(request, name) for name in request.__struct_fields__ if name not in SHARED}
