"""A slot: the place of one thing that an execution keeps or waits for.

Events, snapshots and the keys of waits store a slot as text. That text is written and parsed here, and nowhere else:

    step:charge  step:charge:EUR    the result of a step: its name, and its key where it has one
    checkpoint                      how far the node has come
    sleep:1  sleep:before-retry     a timer: which `ctx.sleep` of the execution it is, counted from 1, or its key
    signal:paid:1                   a signal: its name, and which wait for that name it is, or its key
    ask:Publish?                    a question: its key, which is its text unless the node gives another

A slot holds what is stored, and reads name and key from it. So every text that a log may hold, also one of an earlier
version, parses and comes back as the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, assert_never, get_args

import msgspec

SlotKind: TypeAlias = Literal["step", "checkpoint", "sleep", "signal", "ask"]

CHECKPOINT = "checkpoint"
"""The text of the one slot of its kind."""
_STEP = "step:"
_STEP_NAME = re.compile(r"(?:[^:]|::)*")
_LABELLED: dict[str, SlotKind] = {kind: kind for kind in get_args(SlotKind) if kind != CHECKPOINT}


class Slot(msgspec.Struct, frozen=True, gc=False):
    """Kind, name and key of what is kept or waited for. `text` is its stored form."""

    kind: SlotKind
    label: str = ""
    """What follows the kind in the text: `charge:EUR`, `1`, `paid:1`, `Publish?`."""

    @classmethod
    def step(cls, name: str, key: Any = None) -> Slot:
        """The slot of a step. Colons of the name are doubled, so that they are not taken for the one before the key."""
        name = name.replace(":", "::")
        return cls("step", name if key is None else f"{name}:{key}")

    @classmethod
    def sleep(cls, key: Any) -> Slot:
        """The slot of a timer."""
        return cls("sleep", f"{key}")

    @classmethod
    def signal(cls, name: str, key: Any) -> Slot:
        """The slot of a wait for a signal."""
        return cls("signal", f"{name}:{key}")

    @classmethod
    def ask(cls, key: Any) -> Slot:
        """The slot of a question."""
        return cls("ask", f"{key}")

    @property
    def text(self) -> str:
        """The slot as it is stored."""
        return CHECKPOINT if self.kind == "checkpoint" else f"{self.kind}:{self.label}"

    @property
    def name(self) -> str:
        """The name of the step or of the signal; empty for other kinds."""
        return self._parts()[0]

    @property
    def key(self) -> str | None:
        """What distinguishes the slot from others of its kind and name; None for a step without one and for the checkpoint."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str | None]:
        match self.kind:
            case "step":
                doubled = _STEP_NAME.match(self.label)
                assert doubled is not None  # it matches the empty text, too
                key = self.label[doubled.end() :]
                return doubled[0].replace("::", ":"), key[1:] if key else None
            case "signal":
                name, _, number = self.label.rpartition(":")
                return name, number
            case "sleep" | "ask":
                return "", self.label
            case "checkpoint":
                return "", None
            case unknown:
                assert_never(unknown)


def parse(text: str) -> Slot | None:
    """The slot in this text; None where it is not a slot: the gate of a node has none, and stores ''."""
    if text == CHECKPOINT:
        return Slot("checkpoint")
    before, colon, label = text.partition(":")
    kind = _LABELLED.get(before)
    return Slot(kind, label) if kind is not None and colon else None


def step_text(step: str) -> str:
    """The text of the slot of a step, from what `StepCompleted.step` stores. For the fold, which is called for each one."""
    return _STEP + step


def labels(kind: SlotKind, texts: Iterable[str]) -> list[str]:
    """The labels of those of these slots that are of this kind, in their order."""
    mark = f"{kind}:"
    return [text[len(mark) :] for text in texts if text.startswith(mark)]
