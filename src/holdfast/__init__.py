"""Holdfast: workflows in Python that can be killed at any instruction and resumed."""

import importlib as _importlib
import typing as _typing

try:
    import fcntl
except ImportError:
    raise ImportError(
        "Holdfast needs a POSIX system: Linux, macOS or a BSD. On Windows, use it inside WSL (Windows Subsystem for Linux)."
    ) from None
else:
    del fcntl

from holdfast.core import VERSION as _VERSION
from holdfast.core.budget import Budget
from holdfast.core.graph import END, START, Flow, Graph, Retry
from holdfast.core.rules import Policy
from holdfast.core.state import add, append, merge
from holdfast.errors import (
    AnswerRefused,
    BudgetExceeded,
    CapabilityMissing,
    ChildFailed,
    CodecError,
    ContextError,
    Fatal,
    FlowNotFound,
    GraphError,
    GuardError,
    HoldfastError,
    PlanError,
    PolicyDenied,
    PolicyError,
    PreviewStale,
    ProcessEnded,
    Recoverable,
    RequestExists,
    RequestSuperseded,
    ResumeRefused,
    RunCancelled,
    RunExists,
    RunFailed,
    RunHeld,
    RunNotFound,
    RunOver,
    SettingError,
    SignalRefused,
    StateError,
    StoreError,
    VerificationFailed,
    WaitTimeout,
)

if _typing.TYPE_CHECKING:
    from holdfast.core.step import Step
    from holdfast.documents.assets import Asset, NotDurable
    from holdfast.reading.chunks import Chunk
    from holdfast.reading.ledger import Ledger
    from holdfast.reading.previews import Preview
    from holdfast.reading.views import RequestView, Run, RunSummary
    from holdfast.runtime.blocking import (
        Connection,
        Options,
        answer,
        cancel,
        checkpoints,
        connect,
        delete,
        edit,
        events,
        fork,
        get,
        ledger,
        pause,
        preview,
        prune,
        questions,
        requests,
        resume,
        retry,
        run,
        runs,
        signal,
        skip,
        start,
        state,
        wait,
    )
    from holdfast.runtime.calls.child_runs import ChildRun
    from holdfast.runtime.calls.context import BlockingContext, Context, current
    from holdfast.runtime.engine import Engine
    from holdfast.runtime.followers import Following
    from holdfast.runtime.listeners import Listener, NodeCall
    from holdfast.server.asgi import asgi
    from holdfast.server.blocking_client import BlockingClient
    from holdfast.server.client import Client

__version__ = _VERSION

__all__ = [
    "END",
    "START",
    "AnswerRefused",
    "Asset",
    "BlockingClient",
    "BlockingContext",
    "Budget",
    "BudgetExceeded",
    "CapabilityMissing",
    "ChildFailed",
    "ChildRun",
    "Chunk",
    "Client",
    "CodecError",
    "Connection",
    "Context",
    "ContextError",
    "Engine",
    "Fatal",
    "Flow",
    "FlowNotFound",
    "Following",
    "Graph",
    "GraphError",
    "GuardError",
    "HoldfastError",
    "Ledger",
    "Listener",
    "NodeCall",
    "NotDurable",
    "Options",
    "PlanError",
    "Policy",
    "PolicyDenied",
    "PolicyError",
    "Preview",
    "PreviewStale",
    "ProcessEnded",
    "Recoverable",
    "RequestExists",
    "RequestSuperseded",
    "RequestView",
    "ResumeRefused",
    "Retry",
    "Run",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunHeld",
    "RunNotFound",
    "RunOver",
    "RunSummary",
    "SettingError",
    "SignalRefused",
    "StateError",
    "Step",
    "StoreError",
    "VerificationFailed",
    "WaitTimeout",
    "add",
    "answer",
    "append",
    "asgi",
    "cancel",
    "checkpoints",
    "connect",
    "current",
    "delete",
    "edit",
    "events",
    "fork",
    "get",
    "ledger",
    "merge",
    "pause",
    "preview",
    "prune",
    "questions",
    "requests",
    "resume",
    "retry",
    "run",
    "runs",
    "signal",
    "skip",
    "start",
    "state",
    "wait",
]

_LATER = {
    "Step": "core.step",
    "Asset": "documents.assets",
    "NotDurable": "documents.assets",
    "Connection": "runtime.blocking",
    "Options": "runtime.blocking",
    "answer": "runtime.blocking",
    "cancel": "runtime.blocking",
    "checkpoints": "runtime.blocking",
    "connect": "runtime.blocking",
    "delete": "runtime.blocking",
    "edit": "runtime.blocking",
    "events": "runtime.blocking",
    "fork": "runtime.blocking",
    "get": "runtime.blocking",
    "ledger": "runtime.blocking",
    "pause": "runtime.blocking",
    "preview": "runtime.blocking",
    "prune": "runtime.blocking",
    "questions": "runtime.blocking",
    "requests": "runtime.blocking",
    "resume": "runtime.blocking",
    "retry": "runtime.blocking",
    "run": "runtime.blocking",
    "runs": "runtime.blocking",
    "signal": "runtime.blocking",
    "skip": "runtime.blocking",
    "start": "runtime.blocking",
    "state": "runtime.blocking",
    "wait": "runtime.blocking",
    "BlockingContext": "runtime.calls.context",
    "ChildRun": "runtime.calls.child_runs",
    "Context": "runtime.calls.context",
    "current": "runtime.calls.context",
    "Engine": "runtime.engine",
    "Following": "runtime.followers",
    "Listener": "runtime.listeners",
    "NodeCall": "runtime.listeners",
    "Chunk": "reading.chunks",
    "Ledger": "reading.ledger",
    "Preview": "reading.previews",
    "RequestView": "reading.views",
    "Run": "reading.views",
    "RunSummary": "reading.views",
    "asgi": "server.asgi",
    "BlockingClient": "server.blocking_client",
    "Client": "server.client",
}
"""Public names that need the engine -> the modules that define them. They are imported at their first use, so that a program
that only defines flows does not wait for the engine.
"""


def __getattr__(name: str) -> _typing.Any:
    where = _LATER.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_importlib.import_module(f"{__name__}.{where}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
