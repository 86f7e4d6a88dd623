"""Shipped to users: what tests of flows and stores are made of. `conformance` is the suite that every store passes.

The names of `docs/testing.md` are found here and loaded when they are asked for: the pytest plugin comes by here in every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.checker import Violation, check
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crashing import Report, crash_everywhere
    from holdfast.testing.fakes import Receiver, Signal, rehearse
    from holdfast.testing.simulator import simulate
    from holdfast.testing.witness import Witness

__all__ = [
    "ManualClock",
    "Receiver",
    "Report",
    "Signal",
    "Violation",
    "Witness",
    "check",
    "crash_everywhere",
    "rehearse",
    "simulate",
]

_LATER = {
    "ManualClock": "clock",
    "Receiver": "fakes",
    "Report": "crashing",
    "Signal": "fakes",
    "Violation": "checker",
    "Witness": "witness",
    "check": "checker",
    "crash_everywhere": "crashing",
    "rehearse": "fakes",
    "simulate": "simulator",
}


def __getattr__(name: str) -> Any:
    where = _LATER.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{where}"), name)
    globals()[name] = found
    return found
