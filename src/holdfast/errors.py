"""Every exception of Holdfast, in one tree, split by whose fault it is.

    HoldfastError
    ├── the caller's: what was asked cannot be done
    │   ├── GraphError          the graph has problems; all of them are listed
    │   ├── StateError          a value does not fit the declared state
    │   │   ├── CodecError      a value cannot be stored exactly as JSON
    │   │   └── LogBudget       a run writes more between two checkpoints than it may
    │   ├── SettingError        an option, environment variable or URL is wrong
    │   ├── FlowNotFound        this engine was not given the flow that a run belongs to
    │   ├── RunNotFound         no run (or checkpoint) of that id in this store
    │   ├── RunExists           the run id is taken by another input or flow
    │   ├── ResumeRefused       the run may not go on as asked; the reason says why
    │   │   └── RunOver         the run is completed or cancelled
    │   ├── AnswerRefused       no such question, or an answer that does not fit it
    │   ├── SignalRefused       a payload that does not fit what the node waits for
    │   └── ContextError        a node uses its context in a way that cannot be kept
    ├── the workflow's: it ran, and ended badly
    │   ├── RunFailed           carries the run
    │   └── RunCancelled        carries the run
    ├── the world's: the store or another process
    │   ├── RunHeld             another live process executes the run
    │   ├── ProcessEnded        the process of a node died in the middle of its work
    │   └── StoreError
    │       ├── StoreBusy       another process locks the database for too long; try again
    │       ├── StoreFull       no space left on the disk
    │       ├── StoreUnusable   the file cannot be opened or written
    │       │   └── StoreReadOnly the server accepts no writes: a replica, or one that is becoming the primary
    │       ├── StoreCorrupt    stored bytes are not what was written
    │       │   ├── BlobMissing a value that a log refers to is not where it was put
    │       │   └── BlobCorrupt a value that a log refers to is not what was put there
    │       ├── StorePoisoned   a sync failed: nothing more is written by this process
    │       ├── SchemaTooNew    the store was written by a newer Holdfast
    │       ├── FenceLost       another process took the run over; this one may not write
    │       └── SeqConflict     the log is longer than the writer believed
    ├── ours: a defect in Holdfast
    │   └── IllegalEvent        an event that the state it meets does not allow
    ├── raised inside nodes: WaitTimeout   a signal or an answer did not come in time
    └── raised by nodes, to choose the class of a failure
        ├── Recoverable         try again by the node's `Retry`
        └── Fatal               never try again unless forced

The signal with which the engine stops a body (`Stopped`) is a `BaseException`, so that `except Exception`
in a node cannot eat it.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Sequence
from typing import Any


class HoldfastError(Exception):
    """Everything Holdfast raises on purpose."""


# --- the caller's ------------------------------------------------------------------------------------


class GraphError(HoldfastError):
    """A graph with problems. All of them, each naming the node and the remedy."""

    def __init__(self, graph: str, problems: Sequence[str]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"graph {graph!r} has {count}:" + "".join(f"\n  - {p}" for p in self.problems))


class StateError(HoldfastError):
    """A value that does not fit the declared state."""

    def __init__(self, message: str, *, node: str | None = None, field: str | None = None) -> None:
        self.node = node
        self.field = field
        super().__init__(f"node {node!r}: {message}" if node else message)


class CodecError(StateError):
    """A value that JSON cannot keep exactly. `path` leads to it, as in `state.pages[3].when`."""

    def __init__(self, message: str, *, path: str, node: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {message}", node=node)


class LogBudget(StateError):
    """A run writes more into its log between two checkpoints than its budget allows."""


class SettingError(HoldfastError):
    """An option, environment variable or store URL that makes no sense."""


class FlowNotFound(HoldfastError):
    """The engine was not given the flow that a run belongs to."""

    def __init__(self, flow: str, known: Iterable[str], *, run_id: str | None = None) -> None:
        self.flow = flow
        self.run_id = run_id
        self.known = tuple(known)
        whose = f"run {run_id!r} belongs to flow {flow!r}, which" if run_id else f"flow {flow!r}"
        have = (
            f"this engine knows {', '.join(map(repr, self.known))}"
            if self.known
            else "this engine knows no flow"
        )
        super().__init__(
            ended(f"{whose} was not given to this engine ({have}){did_you_mean(flow, self.known)}")
            + " Pass flows=[…], name the file that defines it, or list it in [tool.holdfast] flows."
        )


class RunNotFound(HoldfastError):
    """No run, or no checkpoint, of that id in this store."""

    def __init__(self, run_id: str, where: str = "", hint: str = "") -> None:
        self.run_id = run_id
        super().__init__(
            f"no run {run_id!r}{f' in {where}' if where else ''}. "
            + (hint or "`holdfast runs` lists the runs of a store; check that this is the right one.")
        )


class RunExists(HoldfastError):
    """The run id is taken by a run with another input or flow."""

    def __init__(self, run_id: str, difference: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} exists already with another {difference}. Choose another run id, or resume the "
            "existing run."
        )


class ResumeRefused(HoldfastError):
    """The run may not go on as asked. Nothing ran; `reason` says why and what would be allowed."""

    def __init__(self, run_id: str, reason: str, *, asked: str = "resumed") -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(f"run {run_id!r} was not {asked}: {reason}")


class RunOver(ResumeRefused):
    """The run is completed or cancelled, so nothing can be asked of it or sent to it any more."""


class AnswerRefused(HoldfastError):
    """An answer to a question that was not asked or is closed, or one that does not fit it. Nothing was recorded."""

    def __init__(self, run_id: str, key: str, reason: str) -> None:
        self.run_id = run_id
        self.key = key
        self.reason = reason
        super().__init__(f"the answer to {key!r} of run {run_id!r} was not accepted: {reason}")


class SignalRefused(HoldfastError):
    """A signal whose payload does not fit the wait that would receive it. Nothing was recorded, and its id is not used up."""

    def __init__(self, run_id: str, name: str, reason: str) -> None:
        self.run_id = run_id
        self.name = name
        self.reason = reason
        super().__init__(f"the signal {name!r} to run {run_id!r} was not accepted: {reason}")


class ContextError(HoldfastError):
    """A node uses its context in a way that could not be kept through a crash."""


# --- the workflow's ----------------------------------------------------------------------------------


class RunFailed(HoldfastError):
    """A run that ended as failed. `.run` holds it as far as it came."""

    def __init__(self, run: Any, message: str) -> None:
        self.run = run
        super().__init__(message)


class RunCancelled(HoldfastError):
    """A run that was cancelled. `.run` holds it as far as it came."""

    def __init__(self, run: Any, message: str) -> None:
        self.run = run
        super().__init__(message)


# --- the world's -------------------------------------------------------------------------------------


class RunHeld(HoldfastError):
    """Another live process executes the run."""

    def __init__(self, run_id: str, holder: str) -> None:
        self.run_id = run_id
        self.holder = holder
        super().__init__(
            f"run {run_id!r} is being executed by {holder}. Wait for it, or stop that process; a run whose "
            "process has died can be resumed at once."
        )


class ProcessEnded(HoldfastError):
    """The process of a node (`executor="process"`) died in the middle of its work. How far it came is unknown.

    `code` is its exit code, or, where a signal ended it, the number of the signal with a minus. `trace` is where it was, if it
    could still say so.
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
                " A machine that runs out of memory kills processes this way; memory_limit=… shows which node "
                "needs too much."
            )
        super().__init__(f"the process of node {node!r} {how} in the middle of its work.{why}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class StoreError(HoldfastError):
    """The store did not do what it was asked. Nothing is half-written."""


class StoreBusy(StoreError):
    """Another process locks the database for too long. The same call may succeed later."""


class StoreFull(StoreError):
    """No space left. What was acknowledged is kept; free some space and resume."""


class StoreUnusable(StoreError):
    """The store cannot be opened or written: wrong path, permission, file system or process."""


class StoreReadOnly(StoreUnusable):
    """The server accepts no writes now: it is a replica, or was made read-only. After a failover it may be the primary soon."""


class StoreCorrupt(StoreError):
    """Stored bytes are not what was written."""


class BlobMissing(StoreCorrupt):
    """A blob that a log refers to is not there."""

    def __init__(self, digest: str, where: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(
            f"blob {digest} is missing from {where}. Put it back from a copy of that place, or fork the run "
            "from before the event that refers to it."
        )


class BlobCorrupt(StoreCorrupt):
    """A blob is there, and its content is not what its name says."""

    def __init__(self, digest: str, where: str) -> None:
        self.digest = digest
        self.where = where
        super().__init__(
            f"blob {digest} in {where} is damaged: its content is not what was written. Put it back from a copy, "
            "or fork the run from before the event that refers to it."
        )


class StorePoisoned(StoreError):
    """A sync to disk failed. The outcome is unknown, so this process writes nothing more; start it again."""


class SchemaTooNew(StoreError):
    """The store was written by a newer Holdfast."""


class FenceLost(StoreError):
    """Another process took the run over; a write of this one was refused."""


class SeqConflict(StoreError):
    """The log does not end where the writer believed it did."""


# --- ours --------------------------------------------------------------------------------------------


class IllegalEvent(HoldfastError):
    """An event that the state it meets does not allow. It was refused, never folded."""


# --- raised inside nodes -----------------------------------------------------------------------------


class WaitTimeout(HoldfastError, TimeoutError):
    """What a node waited for (a signal, an answer) has not come in time."""


# --- raised by nodes ---------------------------------------------------------------------------------


class Recoverable(HoldfastError):
    """Raise it in a node: the failure may pass, try again by the node's `Retry`."""


class Fatal(HoldfastError):
    """Raise it in a node: trying again is pointless; the run fails and resumes only with `force`."""


def named(kind: str, message: str) -> str:
    """A fault as it is told: `"ValueError: no luck"`, or its type alone where it has nothing to say."""
    return f"{kind}: {message}" if message and message != kind else kind


def ended(text: str) -> str:
    """The text as a whole sentence, to be followed by another."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
