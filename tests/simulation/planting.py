"""What planted bugs share: the table `BUGS`, the search for the seed that finds a bug, and ways to change code while it runs.

`BUGS` maps a name to a context manager that activates the bug. `found(name, seeds)` runs the standard simulation with the bug,
and returns the first seed that found it. A bug that is not found shows a gap in the simulator.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps

from holdfast.runtime import unheld_runs
from holdfast.testing.simulator import schedule
from holdfast.testing.simulator_deploys import deploy_schedule
from holdfast.testing.simulator_families import family_schedule
from holdfast.testing.simulator_plans import plan_schedule

BUGS: dict[str, Callable] = {}
OF_FAMILIES: set[str] = set()
OF_PLANS: set[str] = set()
OF_DEPLOYS: set[str] = set()
SHARP_FAMILIES = (3, 6, 12, 26, 71, 114, 116, 246)
"""Seeds of families that have found many of these bugs."""


def bug(plant):
    """Register a bug: a generator that plants it, yields, and removes it again."""
    BUGS[plant.__name__] = contextmanager(plant)
    return plant


def family_bug(plant):
    """Register a bug about child runs, which is searched for with simulated families."""
    OF_FAMILIES.add(plant.__name__)
    return bug(plant)


def deploy_bug(plant):
    """Register a bug about workers that refuse runs, which is searched for with simulated deploys."""
    OF_DEPLOYS.add(plant.__name__)
    return bug(plant)


def plan_bug(plant):
    """Register a bug about plans and policies, which is searched for with simulated plans."""
    OF_PLANS.add(plant.__name__)
    return bug(plant)


def found(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the first seed that finds the bug, and the violation that it reports; None if no seed does."""
    make = schedule
    if name in OF_FAMILIES:
        make, seeds = family_schedule, itertools.chain(SHARP_FAMILIES, seeds)
    elif name in OF_PLANS:
        make = plan_schedule
    elif name in OF_DEPLOYS:
        make = deploy_schedule
    with BUGS[name]():
        for seed in seeds:
            try:
                violations = make(seed).run().violations
            except Exception as raised:
                violations = [f"{type(raised).__name__}: {raised}"]
            if violations:
                return seed, violations[0]
    return None


@contextmanager
def patched(*changes) -> Iterator[None]:
    """Set these attributes, given as (object, name, value), while the block runs."""
    with ExitStack() as stack:
        for place, name, value in changes:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


@contextmanager
def on_take_up(spoil: Callable) -> Iterator[None]:
    """Call `spoil` on the state of every run that is resumed or claimed."""
    real = unheld_runs.prepare

    @wraps(real)
    def prepare(*args, **named):
        prepared = real(*args, **named)
        spoil(prepared)  # which nodes are due is computed from the state after this
        return prepared

    with patched((unheld_runs, "prepare", prepare)):
        yield


def after(place: type, name: str, then: Callable) -> tuple:
    """Return a change for `patched`: the method calls the real one, and returns `then(result, self, *args)`."""
    real = getattr(place, name)

    @wraps(real)
    def method(self, *args, **named):
        return then(real(self, *args, **named), self, *args)

    return place, name, method


def rewritten(place: type, name: str, *parts: str) -> tuple:
    """Return a change for `patched`: the method with parts of its source replaced (old, new, old, new), for a small mistake in a
    long method.
    """
    source = textwrap.dedent(inspect.getsource(getattr(place, name)))
    for old, new in zip(parts[::2], parts[1::2], strict=True):
        assert source.count(old) == 1, (
            f"the source of {place.__name__}.{name} does not contain {old!r} any more: adapt this planted bug"
        )
        source = source.replace(old, new)
    made: dict = {}
    exec(source, vars(sys.modules[place.__module__]), made)
    return place, name, made[name]
