"""Finds the flow of a run among those that a process knows.

An engine knows flows by name. All runs of plans over the same capabilities have the name of these capabilities as their flow, and
the plan of each is in the stored definition: such a flow is made from that definition (`FlowSource`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from holdfast.core.difference import fingerprint
from holdfast.core.graph import Flow, FlowSource
from holdfast.errors import CapabilityMissing, FlowNotFound, StoreCorrupt
from holdfast.storage import definitions
from holdfast.storage.contract import Store

Flows: TypeAlias = Mapping[str, Flow[Any] | FlowSource]


class OfFlow(Protocol):
    """A row or a state of a run: its flow, and the fingerprint of its definition."""

    @property
    def flow(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


def find_loaded(name: str) -> dict[str, Flow[Any]]:
    """Return the flows of this name that modules have at module level, each with the name of the first such module. Only modules
    that are imported already are looked at, and only what is in their dictionaries: nothing is imported for it, and neither a
    lazy module nor a lazy object at module level is made to load.
    """
    found: dict[int, tuple[str, Flow[Any]]] = {}
    for module_name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType):
            continue
        for value in list(object.__getattribute__(module, "__dict__").values()):
            if issubclass(type(value), Flow) and value.name == name:
                found.setdefault(id(value.source or value), (module_name, value))
    return dict(found.values())


def find_flow(store: Store, flows: Flows | None, run: OfFlow) -> Flow[Any] | None:
    """Return the flow of a run; None if this process does not know it, or lacks a capability that its plan needs."""
    return find_flow_or_lacks(store, flows, run)[0]


def find_flow_or_lacks(
    store: Store, flows: Flows | None, run: OfFlow, run_id: str | None = None
) -> tuple[Flow[Any] | None, tuple[str, ...]]:
    """Return the flow of a run, if this process knows it, and the capabilities that its plan needs and this process lacks."""
    try:
        return require_flow(store, flows or {}, run, run_id), ()
    except CapabilityMissing as missing:
        return None, missing.missing
    except FlowNotFound:
        return None, ()


def require_flow(store: Store, flows: Flows, run: OfFlow, run_id: str | None = None) -> Flow[Any]:
    """Return the flow of a run. Raises `FlowNotFound`, or `CapabilityMissing` if its plan needs a capability that this process
    does not have. Raises `StoreCorrupt` if the stored definition of its plan is missing, or was altered.
    """
    known = flows.get(run.flow)
    if known is None:
        raise FlowNotFound(run.flow, flows, run_id=run_id)
    if isinstance(known, Flow):
        return known
    made = known.made(run.fingerprint)
    if made is not None:
        return made
    stored = store.definition(run.fingerprint)
    if stored is None:
        raise StoreCorrupt(
            f"the definition of the flow of {f'run {run_id!r}' if run_id else 'a run'} ({run.fingerprint[:12]}) is not in the "
            "store. Restore the store from a backup."
        )
    definition = definitions.decode(stored)
    if (
        fingerprint(definition) != run.fingerprint
    ):  # never execute a plan that is not the one that was checked and stored
        raise StoreCorrupt(
            f"the plan of {f'run {run_id!r}' if run_id else 'a run'} ({run.fingerprint[:12]}) is not what was written: its "
            "definition in the store was altered. Restore the store from a backup."
        )
    try:
        return known.flow(definition, run.fingerprint)
    except CapabilityMissing as missing:
        raise CapabilityMissing(known.name, missing.missing, missing.known, run_id=run_id) from None
