"""Tools for testing flows and stores, shipped to users. `conformance` is the suite that every store must pass.

The names that `docs/testing.md` describes can be imported from here. Each is loaded on first use, because the pytest plugin
imports this package in every pytest run.
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
