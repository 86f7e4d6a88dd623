"""A slot identifies one result that an execution of a node keeps, or one thing that it waits for.

Events, snapshots and the keys of waits store a slot as text. That text is written and parsed here, and nowhere else:

    step:charge  step:charge:EUR    the result of a step: its name, and its key if it has one
    raised:charge                   the exception that is the outcome of a step: its name, and its key if it has one
    begun:charge                    a step that must not be called twice was about to be called
    try:charge:2                    a timer: the wait before a try of a step, and which try it is, counted from 1
    checkpoint                      how far the node has come
    sleep:1  sleep:before-retry     a timer: which `ctx.sleep` of the execution it is, counted from 1, or its key
    signal:paid:1                   a signal: its name, and which wait for that name it is, or its key
    ask:Publish?                    a question: its key, which is its text unless the node gives another
    child:pay:1                     a child run: its key, and which wait for its end it is, counted from 1

A `Slot` contains the stored text and derives name and key from it. So every text that a log may contain, including one from an
earlier version, can be parsed and is written back as the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias, assert_never, get_args

import msgspec

SlotKind: TypeAlias = Literal[
    "step", "raised", "begun", "try", "checkpoint", "sleep", "signal", "ask", "child"
]

CHECKPOINT = "checkpoint"
"""The text of the checkpoint slot; an execution has only one."""
_STEP = "step:"
TRY = "try:"
"""How the text of the wait before a try of a step begins."""
_STEP_NAME = re.compile(r"(?:[^:]|::)*")
_LABELLED: dict[str, SlotKind] = {kind: kind for kind in get_args(SlotKind) if kind != CHECKPOINT}


class Slot(msgspec.Struct, frozen=True, gc=False):
    """The kind, name and key of something that an execution keeps or waits for. `text` is the stored form."""

    kind: SlotKind
    label: str = ""
    """The part of the text after the kind: `charge:EUR`, `1`, `paid:1`, `Publish?`."""

    @classmethod
    def step(cls, name: str, key: Any = None) -> Slot:
        """Return the slot of a step. Colons in the name are doubled, to distinguish them from the colon before the key."""
        name = name.replace(":", "::")
        return cls("step", name if key is None else f"{name}:{key}")

    @classmethod
    def sleep(cls, key: Any) -> Slot:
        """Return the slot of a timer."""
        return cls("sleep", f"{key}")

    @classmethod
    def signal(cls, name: str, key: Any) -> Slot:
        """Return the slot of a wait for a signal."""
        return cls("signal", f"{name}:{key}")

    @classmethod
    def ask(cls, key: Any) -> Slot:
        """Return the slot of a question."""
        return cls("ask", f"{key}")

    @classmethod
    def child(cls, key: str, number: int) -> Slot:
        """Return the slot of a wait for the end of a child run."""
        return cls("child", f"{key}:{number}")

    @property
    def text(self) -> str:
        """The slot as it is stored."""
        return CHECKPOINT if self.kind == "checkpoint" else f"{self.kind}:{self.label}"

    @property
    def name(self) -> str:
        """The name of the step or of the signal, or the key of the child run; empty for other kinds. The key of a step is not
        part of its name.
        """
        return self._parts()[0]

    @property
    def key(self) -> str | None:
        """The key that distinguishes slots of the same kind and name; None for a step without a key and for the checkpoint."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str | None]:
        match self.kind:
            case "step" | "raised" | "begun":
                doubled = _STEP_NAME.match(self.label)
                assert doubled is not None  # the pattern also matches the empty text
                key = self.label[doubled.end() :]
                return doubled[0].replace("::", ":"), key[1:] if key else None
            case "signal" | "child":
                name, _, number = self.label.rpartition(":")
                return name, number
            case "try":
                step, _, number = self.label.rpartition(":")
                return Slot("step", step).name, number
            case "sleep" | "ask":
                return "", self.label
            case "checkpoint":
                return "", None
            case unknown:
                assert_never(unknown)


def parse(text: str) -> Slot | None:
    """Parse the stored text of a slot. Returns None if it is not a slot: the gate of a node, for example, stores ''."""
    if text == CHECKPOINT:
        return Slot("checkpoint")
    before, colon, label = text.partition(":")
    kind = _LABELLED.get(before)
    return Slot(kind, label) if kind is not None and colon else None


def step_text(step: str) -> str:
    """Return the text of a step's slot from `StepCompleted.step`. It is fast, because the fold calls it for every step."""
    return _STEP + step


def raised_text(step: str) -> str:
    """Return the text of the slot for the exception that is the outcome of a step."""
    return f"raised:{step}"


def begun_text(step: str) -> str:
    """Return the text of the slot that says that a step was about to be called."""
    return f"begun:{step}"


def try_text(step: str, number: int) -> str:
    """Return the text of the slot for the wait before a try of a step, counted from 1; the first try waits for nothing."""
    return f"{TRY}{step}:{number}"


def begun_steps(kept: Collection[str]) -> list[str]:
    """Return the steps that were about to be called and have no outcome, from the slots that an execution has kept."""
    begun = labels("begun", kept)
    return [step for step in begun if step_text(step) not in kept and raised_text(step) not in kept]


def result_schema(kept: Mapping[str, Any], step: str) -> dict[str, Any]:
    """Return the JSON Schema of the result of a step that was about to be called; empty if any result fits."""
    begun = kept.get(begun_text(step))
    schema: dict[str, Any] = begun["result"] if isinstance(begun, dict) else {}
    return schema


def labels(kind: SlotKind, texts: Iterable[str]) -> list[str]:
    """Return the labels (the part after the kind) of all texts that are slots of this kind, in their order."""
    mark = f"{kind}:"
    return [text[len(mark) :] for text in texts if text.startswith(mark)]
