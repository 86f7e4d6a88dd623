"""Holdfast: workflows in Python that can be killed at any instruction and carry on."""

from holdfast.core.graph import END, START, Flow, Graph, Retry
from holdfast.core.state import add, append, merge
from holdfast.errors import (
    AnswerRefused,
    CodecError,
    Fatal,
    FlowNotFound,
    GraphError,
    HoldfastError,
    Recoverable,
    ResumeRefused,
    RunCancelled,
    RunExists,
    RunFailed,
    RunHeld,
    RunNotFound,
    SettingError,
    StateError,
    StoreError,
)
from holdfast.runtime.blocking import (
    cancel,
    checkpoints,
    events,
    fork,
    get,
    pause,
    resume,
    retry,
    run,
    runs,
    skip,
    start,
    state,
    wait,
)
from holdfast.runtime.context import Context
from holdfast.runtime.engine import Engine
from holdfast.runtime.views import Run

__version__ = "0.1.0"
