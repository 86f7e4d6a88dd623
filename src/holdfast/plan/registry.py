"""What was registered for plans: capabilities, and the policies and verifiers in Python. Checking and compiling look it up
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.graph import Node
from holdfast.core.rules import Policy, Verifier
from holdfast.errors import CapabilityMissing


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """A function that plans may call, under a name and a version."""

    name: str
    node: Node
    """The function and its options, as a node that no plan has configured yet."""
    input: Codec[Any]
    output: Codec[Any]
    description: str = ""

    @property
    def may_end_without_output(self) -> bool:
        """True if the run may continue after a task with this capability although it has no output."""
        options = self.node.options
        return options.safe_to_fail or options.on_interrupt == "skip"


class Ruled(msgspec.Struct, frozen=True):
    """A policy or a verifier in Python, and the capabilities that it applies to: a name, or a pattern with `*` and `?`."""

    capability: str
    rule: Any


class Registry:
    """The capabilities of one source, and the rules in Python that apply to every plan over them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.capabilities: dict[str, Capability] = {}
        self.policies: dict[str, Ruled] = {}
        self.verifiers: dict[str, Ruled] = {}

    def require(self, names: Iterable[str]) -> None:
        """Raise `CapabilityMissing`, which names all of these capabilities that are not registered."""
        missing = sorted(set(names) - self.capabilities.keys())
        if missing:
            raise CapabilityMissing(self.name, missing, self.capabilities)

    def policies_for(self, capability: str) -> list[Policy]:
        """Return the policies in Python that apply to a capability."""
        return [one.rule for one in self.policies.values() if fnmatchcase(capability, one.capability)]

    def verifiers_for(self, capability: str) -> list[Verifier]:
        """Return the verifiers in Python that apply to a capability."""
        return [one.rule for one in self.verifiers.values() if fnmatchcase(capability, one.capability)]
