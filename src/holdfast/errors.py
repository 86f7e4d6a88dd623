"""Every exception of Holdfast, in one tree, split by whose fault it is.

    HoldfastError
    ├── the caller's: the request cannot be carried out
    │   ├── GraphError          the graph has problems; all of them are listed
    │   ├── PlanError           the plan has problems; all of them are listed, with their paths
    │   ├── StateError          a value does not fit the declared state
    │   │   ├── CodecError      a value cannot be stored exactly as JSON
    │   │   └── LogLimit        a run wrote more between two checkpoints than `log_limit` allows
    │   ├── RouterError         a router raised, or named a node that is not among its targets
    │   │   └── GuardError      a guard of a plan could not be evaluated
    │   ├── SettingError        an option, environment variable or URL is wrong
    │   ├── FlowNotFound        this engine was not given the flow that a run belongs to
    │   │   └── CapabilityMissing  the plan of a run needs a capability that this engine was not given
    │   ├── RunNotFound         the store has no run (or checkpoint) with that id
    │   ├── RunExists           the run id belongs to a run with another input or flow
    │   ├── RequestExists       a request with that id asked for something else
    │   ├── ResumeRefused       the run may not continue as requested; `reason` says why
    │   │   ├── RunOver         the run is completed or cancelled
    │   │   └── PreviewStale    the verb would now do something else than its preview said
    │   ├── AnswerRefused       there is no such question, or the answer does not fit it
    │   ├── SignalRefused       the payload does not fit what the node waits for
    │   └── ContextError        a node used its context in a way that would not survive a crash
    ├── the workflow's: it was executed and did not complete
    │   ├── RunFailed           the run failed; `run` is the run
    │   ├── PolicyError         a policy or a verifier could not decide, so that the visit does not continue
    │   ├── VerificationFailed  the result of a node did not pass its verification
    │   └── RunCancelled        the run was cancelled; `run` is the run
    ├── the world's: the store or another process
    │   ├── RunHeld             another live process executes the run
    │   ├── ProcessEnded        the process of a node died while the node was running
    │   └── StoreError
    │       ├── StoreBusy       another process has locked the database for too long; try again
    │       ├── StoreFull       no space left on the disk
    │       ├── StoreUnusable   the file cannot be opened or written
    │       │   └── StoreReadOnly the server accepts no writes: a replica, or one that is becoming the primary
    │       ├── StoreCorrupt    stored bytes differ from what was written
    │       │   ├── BlobMissing a blob that a log refers to is missing
    │       │   └── BlobCorrupt a blob that a log refers to is damaged
    │       ├── StorePoisoned   a sync to disk failed: this process writes nothing more
    │       ├── SchemaTooNew    the store was written by a newer Holdfast
    │       ├── FenceLost       another process took over the run; this process may not write to it
    │       └── SeqConflict     the log does not end where the writer expected
    ├── ours: a defect in Holdfast
    │   └── IllegalEvent        an event that the current state of the run does not allow
    ├── raised inside nodes
    │   ├── WaitTimeout         a signal, an answer or the end of a child run did not come in time
    │   ├── ChildFailed         a child run failed or was cancelled; `id` and `failure` say which and why
    │   └── BudgetExceeded      the run has spent its budget, so nothing more begins in it
    └── raised by nodes, to choose the class of a failure
        ├── Recoverable         the node is retried as its `Retry` says
        └── Fatal               the node is not retried; only a forced resume runs it again
            └── PolicyDenied    a policy denied a visit, or its result; raised by the engine

The exception with which the engine stops the function of a node (`Stopped`) is a `BaseException`, so that
`except Exception` in a node cannot swallow it.
"""

from __future__ import annotations

import difflib
import itertools
import signal
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

_NAMED_MAX = 10


class HoldfastError(Exception):
    """The base class of every exception that Holdfast raises on purpose."""


# --- the caller's ------------------------------------------------------------------------------------


class GraphError(HoldfastError):
    """A graph cannot be compiled. Lists all its problems, each with the node and the remedy."""

    def __init__(self, graph: str, problems: Sequence[str]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"graph {graph!r} has {count}:" + "".join(f"\n  - {p}" for p in self.problems))


class Problem(NamedTuple):
    """One problem of a plan."""

    path: str
    """Where it is in the document, as in `tasks[2].input.order`; empty for the document as a whole."""
    message: str
    """What is wrong there, and what to do."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class PlanError(HoldfastError):
    """A plan cannot be executed, and nothing of it was recorded. Lists all its problems, each with its path in the document."""

    def __init__(self, plan: str, problems: Sequence[Problem]) -> None:
        self.plan = plan
        self.problems = tuple(problems)
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{plan} has {count}:" + "".join(f"\n  - {problem}" for problem in self.problems))


class StateError(HoldfastError):
    """A value does not fit the declared state."""

    others: tuple[StateError, ...] = ()
    """The errors of other fields that were given together with this one."""

    def __init__(self, message: str, *, node: str | None = None, field: str | None = None) -> None:
        self.node = node
        self.field = field
        super().__init__(f"node {node!r}: {message}" if node else message)


class CodecError(StateError):
    """A value cannot be stored exactly as JSON. `path` says where it is, as in `state.pages[3].when`."""

    def __init__(self, message: str, *, path: str, node: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {message}", node=node)


class LogLimit(StateError):
    """A run wrote more into its log between two checkpoints than the setting `log_limit` allows."""


class RouterError(HoldfastError):
    """A router raised (`__cause__` is what it raised), or named a node that is not among its targets. The router of a node
    makes its run fail; a caller gets this error from the router of START, and then no run was recorded.
    """


class GuardError(RouterError):
    """A guard of a plan could not be evaluated. The message never has values of the run."""


class SettingError(HoldfastError):
    """An option, environment variable or store URL is not valid."""


class FlowNotFound(HoldfastError):
    """The engine was not given the flow that a run belongs to."""

    def __init__(
        self, flow: str, known: Iterable[str], *, run_id: str | None = None, several: Sequence[str] = ()
    ) -> None:
        """`several` are the modules that have different flows of this name."""
        self.flow = flow
        self.run_id = run_id
        self.known = tuple(known)
        whose = f"run {run_id!r} belongs to flow {flow!r}, which" if run_id else f"flow {flow!r}"
        have = (
            f"this engine knows {', '.join(map(repr, self.known))}"
            if self.known
            else "this engine knows no flow"
        )
        near = did_you_mean(flow, self.known)
        if several:
            near = f", and {' and '.join(several)} have different flows of that name"
        super().__init__(
            end_sentence(f"{whose} was not given to this engine ({have}){near}")
            + " Pass flows=[…], name the file that defines it, or list it in [tool.holdfast] flows."
        )


class CapabilityMissing(FlowNotFound):
    """The plan of a run needs capabilities that this engine was not given."""

    def __init__(
        self, flow: str, missing: Sequence[str], known: Iterable[str], *, run_id: str | None = None
    ) -> None:
        self.flow = flow
        self.run_id = run_id
        self.missing = tuple(missing)
        self.known = tuple(known)
        whose = f"run {run_id!r}" if run_id else "the plan"
        names = ", ".join(map(repr, self.missing))
        near = did_you_mean(self.missing[0], self.known) if len(self.missing) == 1 else ""
        told = f"{whose} needs {names}, which {flow!r} does not have in this process{near}"
        HoldfastError.__init__(
            self,
            f"{end_sentence(told)} Register it with @{flow}.capability(…), or deploy the version that has it.",
        )


class RunNotFound(HoldfastError):
    """The store has no run, or no checkpoint, with that id."""

    def __init__(self, run_id: str, where: str = "", hint: str = "") -> None:
        self.run_id = run_id
        super().__init__(
            f"no run {run_id!r}{f' in {where}' if where else ''}. "
            + (hint or "`holdfast runs` lists the runs of a store; check that this is the right store.")
        )


class RunExists(HoldfastError):
    """The run id belongs to a run with another input or flow."""

    def __init__(self, run_id: str, difference: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} already exists with another {difference}. Choose another run id; "
            f"`holdfast show {run_id}` says how to resume the existing run."
        )


class RequestExists(HoldfastError):
    """The run has a request with the same id that asks for something else."""

    def __init__(self, run_id: str, request: str, verb: str) -> None:
        self.run_id = run_id
        self.request = request
        self.verb = verb
        super().__init__(
            f"run {run_id!r} already has a request with the id {request!r} ({verb}), which asks for something else. Give a new "
            "request an id of its own; repeat a request with the same verb and the same values."
        )


class ResumeRefused(HoldfastError):
    """The run may not continue as requested, and nothing was executed. `reason` says why, and what would be allowed."""

    def __init__(self, run_id: str, reason: str, *, asked: str = "resumed") -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(f"run {run_id!r} was not {asked}: {reason}")


class RunOver(ResumeRefused):
    """The run is completed or cancelled, so it accepts no request, answer or signal any more."""


class RequestSuperseded(ResumeRefused):
    """A later request to pause or cancel the run has superseded the request before an engine carried it out. Nothing was done."""


class PreviewStale(ResumeRefused):
    """The verb was asked to do what a preview said (`expects`), and would now do something else. Nothing was done: look at a new
    preview, and ask again with its digest.
    """


class AnswerRefused(HoldfastError):
    """The answer was not recorded: the question was never asked or is closed, or the answer does not fit it."""

    def __init__(self, run_id: str, key: str, reason: str) -> None:
        self.run_id = run_id
        self.key = key
        self.reason = reason
        super().__init__(f"the answer to {key!r} of run {run_id!r} was not accepted: {reason}")


class SignalRefused(HoldfastError):
    """The payload of a signal does not fit the wait that would receive it. Nothing was recorded, and the id of the signal may
    be used again.
    """

    def __init__(self, run_id: str, name: str, reason: str) -> None:
        self.run_id = run_id
        self.name = name
        self.reason = reason
        super().__init__(f"the signal {name!r} to run {run_id!r} was not accepted: {reason}")


def name_refusal(refused: HoldfastError) -> str:
    """Return the name under which `rebuild_refusal` knows this exception: that of its class, or of the nearest base class."""
    known = (
        "RunOver",
        "PreviewStale",
        "RequestSuperseded",
        "ResumeRefused",
        "AnswerRefused",
        "SignalRefused",
        "SettingError",
        "StateError",
        "RunHeld",
    )
    return next((kind.__name__ for kind in type(refused).__mro__ if kind.__name__ in known), "ResumeRefused")


def rebuild_refusal(
    name: str, run_id: str, reason: str, *, about: str | None = None, asked: str = "resumed"
) -> HoldfastError:
    """Return the exception that another process got for a request, from what that process has recorded about it: its name
    (`name_refusal`), its reason, and what the request was about.
    """
    match name:
        case "AnswerRefused":
            return AnswerRefused(run_id, about or "", reason)
        case "SignalRefused":
            return SignalRefused(run_id, about or "", reason)
        case "SettingError":
            return SettingError(reason)
        case "StateError":
            return StateError(reason)
        case "RunHeld":
            return RunHeld(run_id, about or "another process", reason)
        case "RunOver":
            return RunOver(run_id, reason, asked=asked)
        case "PreviewStale":
            return PreviewStale(run_id, reason, asked=asked)
        case "RequestSuperseded":
            return RequestSuperseded(run_id, reason, asked=asked)
        case _:
            return ResumeRefused(run_id, reason, asked=asked)


class ContextError(HoldfastError):
    """A node used its context in a way that would not survive a crash."""


# --- the workflow's ----------------------------------------------------------------------------------


class RunFailed(HoldfastError):
    """The run failed. `run` is the run with everything it had completed."""

    def __init__(self, run: Any, message: str) -> None:
        self.run = run
        super().__init__(message)


class RunCancelled(HoldfastError):
    """The run was cancelled. `run` is the run with everything it had completed."""

    def __init__(self, run: Any, message: str) -> None:
        self.run = run
        super().__init__(message)


class PolicyError(HoldfastError):
    """A policy or a verifier raised, or did not return a verdict. The visit does not continue, as if it were denied."""


class VerificationFailed(HoldfastError):
    """The result of a node did not pass its verification."""


# --- the world's -------------------------------------------------------------------------------------


class RunHeld(HoldfastError):
    """Another live process executes the run; or this process does, so that the call would wait for itself."""

    def __init__(self, run_id: str, holder: str, hint: str = "") -> None:
        self.run_id = run_id
        self.holder = holder
        self.reason = (
            hint
            or "Wait until that process ends, or stop it; a run whose process has died can be resumed at once."
        )
        super().__init__(f"run {run_id!r} is being executed by {holder}. {self.reason}")


class ProcessEnded(HoldfastError):
    """The process of a node (`executor="process"`) died while the node was running. It is unknown how far the node got.

    `code` is the exit code of the process or, if a signal killed it, the negative number of that signal. `trace` is the stack
    of the process when it died, if the process could still report it.
    """

    def __init__(self, node: str, code: int, *, trace: str = "", memory_limit: int | None = None) -> None:
        self.node = node
        self.code = code
        self.trace = trace
        how = f"was killed by signal {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        why = ""
        if code < 0 and memory_limit is not None:
            why = (
                f" It may have reached its memory limit of {memory_limit:,} bytes; raise memory_limit=…, or "
                "give the node less data."
            )
        elif code == -9:
            why = (
                " The system kills processes this way when memory runs out; memory_limit=… on the nodes shows "
                "which of them needs too much."
            )
        super().__init__(f"the process of node {node!r} {how} while the node was running.{why}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class StoreError(HoldfastError):
    """A request to the store failed. Each write was stored completely or not at all."""


class StoreBusy(StoreError):
    """Another process has locked the database for too long. The same call may succeed later."""


class StoreFull(StoreError):
    """The disk of the store has no space left. Acknowledged writes are kept; free some space and resume."""


class StoreUnusable(StoreError):
    """The store cannot be opened or written, e.g. because of its path, its permissions or its file system."""


class StoreReadOnly(StoreUnusable):
    """The server accepts no writes now: it is a replica, or was made read-only. After a failover it may soon be the primary."""


class StoreCorrupt(StoreError):
    """Data in the store is damaged: its bytes differ from what was written."""


class BlobMissing(StoreCorrupt):
    """A blob that a log refers to is missing."""

    def __init__(self, digest: str, where: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(
            f"blob {digest} is missing from {where}. Restore it from a backup, or fork the run from a checkpoint "
            "before the event that refers to it."
        )


class BlobCorrupt(StoreCorrupt):
    """The content of a blob does not match the digest that is its name."""

    def __init__(self, digest: str, where: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(
            f"blob {digest} in {where} is damaged: its content is not what was written. Restore it from a backup, "
            "or fork the run from a checkpoint before the event that refers to it."
        )


class StorePoisoned(StoreError):
    """A sync to disk failed, so it is unknown which writes are durable. This process writes nothing more to the store; restart
    it.
    """


class SchemaTooNew(StoreError):
    """The store was written by a newer Holdfast."""


class FenceLost(StoreError):
    """Another engine has claimed the run, so this engine may neither write nor start anything in it."""


class SeqConflict(StoreError):
    """The log of the run does not end where the writer expected, so the append was refused."""


# --- ours --------------------------------------------------------------------------------------------


class IllegalEvent(HoldfastError):
    """An event is not allowed in the current state of the run. It was refused and did not change that state."""


# --- raised inside nodes -----------------------------------------------------------------------------


class WaitTimeout(HoldfastError, TimeoutError):
    """The signal or answer that a node waited for did not come in time."""


# --- raised by nodes ---------------------------------------------------------------------------------


class ChildFailed(HoldfastError):
    """A child run failed, or was cancelled, so that the node that waits for it has no result. `id` is the id of the child,
    `failure` says why it failed, and `remedy` what an operator can do. `beside` are the children whose failures the node received
    together with this one, as in a `gather`.

    The engine does not retry a node that fails with it: every attempt would get the same end of the child. Retries belong to the
    nodes of the child.
    """

    def __init__(self, id: str, flow: str, failure: Any, remedy: str, message: str) -> None:
        self.id = id
        self.flow = flow
        self.failure = failure
        self.remedy = remedy
        self.beside: list[str] = []
        super().__init__(message)


class BudgetExceeded(HoldfastError):
    """The run has spent its budget: a cost that a node reported reached a limit, or the node would begin a step or a child run
    after that. The engine does not retry a node that fails with it; a resume with a higher budget does.
    """


class Recoverable(HoldfastError):
    """Raise this in a node if the failure may pass: the node is retried as its `Retry` says."""


class Fatal(HoldfastError):
    """Raise this in a node if a retry is pointless: the run fails, and only a resume with `force` runs the node again."""


class PolicyDenied(Fatal):
    """A policy denied that a visit begins, or that its result is used."""


def describe_item(item: int, label: str = "") -> str:
    """Return how an item of a fan-out is named: by its number and, if it has one, its label, as in `item 3 (a.example)`."""
    return f"item {item} ({label})" if label else f"item {item}"


def describe_failure(kind: str, message: str, item: int | None = None, label: str = "") -> str:
    """Return `"ValueError: no luck"` for the type and message of a failure, or the type alone if the message adds nothing. The
    message of a fan-out begins with the item that failed: `"ValueError: item 3: no luck"`.
    """
    if item is not None:
        message = f"{describe_item(item, label)}: {message}"
    return f"{kind}: {message}" if message and message != kind else kind


def end_sentence(text: str) -> str:
    """Add a full stop to a text that does not end a sentence, so that another sentence can follow."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def name_known(name: str, known: Collection[str]) -> str:
    """Return `did_you_mean`, or else the known names, of which a plan may have ten thousand: the first ones."""
    first = ", ".join(itertools.islice(known, _NAMED_MAX))
    more = f" and {len(known) - _NAMED_MAX:,} more" if len(known) > _NAMED_MAX else ""
    return did_you_mean(name, known) or f"; it has {first}{more}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the most similar known name, or an empty text if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
