"""The scope of a run: the only nodes of its flow that may run. `decide` starts no other node, and pauses the run when nothing in
scope is left to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.core.definition import Definition
from holdfast.errors import SettingError, name_known

EVERY = "*"
"""Given in place of names when a scope is widened: every node may run."""


def check_scope(flow: Definition, scope: Any) -> list[str]:
    """Return the names of the nodes that may run, in the order of the flow. Raises `SettingError`."""
    listed = list(scope) if isinstance(scope, Collection) and not isinstance(scope, (str, Mapping)) else None
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise SettingError(f"scope={scope!r} is not valid: give a list of the names of nodes")
    if not listed:
        raise SettingError(
            f"scope=[] names no node of flow {flow.name!r}, so nothing would run. Name the nodes that may run, or leave scope "
            "out."
        )
    for name in listed:
        if name not in flow.nodes:
            near = name_known(name, flow.nodes)
            raise SettingError(f"scope names {name!r}, but flow {flow.name!r} has no such node{near}")
    return [name for name in flow.nodes if name in set(listed)]
