"""Upgrades the plain values of a state to the version of the code that reads them, with the functions that its flow declares."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from holdfast.core.events import Values
from holdfast.core.graph import Flow


def upgrade(flow: Flow[Any], values: Values, version: int) -> Values:
    """Return the values, which have this version, as those of the version of the flow. Raises `LookupError` if the flow declares
    no upgrade from one of the versions between, and whatever its functions raise.
    """
    upgraded = deepcopy(values)
    for known in range(version, flow.definition.state_version):
        if known not in flow.upgrades:
            raise LookupError(
                f"there is no upgrade from version {known}; give Graph(…, upgrades={{{known}: …}})"
            )
        upgraded = flow.upgrades[known](upgraded)
    return flow.state.dump(flow.state.load(upgraded))
