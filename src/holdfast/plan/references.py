"""References in the input of a task: `{"$ref": "outputs.charge.id", "default": null}`.

A template is the input as the plan has it. `parse_template` finds its references once; `fill` makes the input of a visit, and
reads nothing of the run but the places that the template names. A value of the run never appears in a message.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core.codec import key_path
from holdfast.core.events import Failure
from holdfast.core.rules import RuleFacts
from holdfast.errors import StateError
from holdfast.plan import expressions
from holdfast.plan.expressions import Evaluated
from holdfast.plan.syntax import Path

ROOTS = ("context", "policy", "goal", "outputs", "error")
NOTHING: Any = msgspec.UNSET
"""Where a reference has no default, and where nothing is at its place."""
_ALLOWED = frozenset({"$ref", "default"})


class Reference(msgspec.Struct, frozen=True):
    """A place of the run that an input takes a value from."""

    where: str
    """The path of the reference within the input of its task: `input.order`."""
    place: Path
    default: Any = NOTHING


def is_reference(part: Any) -> bool:
    """Return whether a part of an input is a reference."""
    return isinstance(part, dict) and "$ref" in part


def parse_path(text: str) -> Path | None:
    """Return the place that a text names: `outputs.charge.id`; None if it names none."""
    root, *keys = text.split(".")
    if root not in ROOTS or not all(keys) or (root == "outputs" and not keys):
        return None
    return Path(root, tuple(keys))


def misuse(part: dict[str, Any]) -> str | None:
    """Return what is wrong with the form of a reference, or None."""
    extra = sorted(part.keys() - _ALLOWED)
    if extra:
        return f"beside $ref, only default is allowed, not {extra[0]!r}"
    text = part["$ref"]
    if not isinstance(text, str) or parse_path(text) is None:
        return f"it is not a path; write $ref as outputs.TASK.field, or begin with {', '.join(ROOTS)}"
    return None


def find_references(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every reference in an input, with its path in the document."""
    if is_reference(part):
        yield path, part
    elif isinstance(part, dict):
        for key, inner in part.items():
            yield from find_references(inner, key_path(path, key))
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from find_references(inner, f"{path}[{index}]")


# --- filling in -------------------------------------------------------------------------------------------


class _Object(msgspec.Struct, frozen=True):
    parts: dict[str, Any]


class _Array(msgspec.Struct, frozen=True):
    parts: list[Any]


def parse_template(part: Any, path: str = "input") -> Any:
    """Return an input whose references are found: parts without references stay as they are."""
    if is_reference(part):
        place = parse_path(part["$ref"])
        assert place is not None, "the plan was checked"
        return Reference(path, place, part.get("default", NOTHING))
    if isinstance(part, dict):
        inner = {key: parse_template(value, key_path(path, key)) for key, value in part.items()}
        return _Object(inner) if any(map(_is_open, inner.values())) else part
    if isinstance(part, list):
        items = [parse_template(value, f"{path}[{index}]") for index, value in enumerate(part)]
        return _Array(items) if any(map(_is_open, items)) else part
    return part


def _is_open(part: Any) -> bool:
    return isinstance(part, (Reference, _Object, _Array))


def fill(template: Any, facts: RuleFacts) -> Any:
    """Return the input of a visit as plain data. Raises `StateError` if the place of a reference without default does not
    exist.
    """
    if isinstance(template, _Object):
        return {key: fill(part, facts) for key, part in template.parts.items()}
    if isinstance(template, _Array):
        return [fill(part, facts) for part in template.parts]
    if not isinstance(template, Reference):
        return template
    value = find(template.place, facts)
    if value is not NOTHING:
        return value
    if template.default is not NOTHING:
        return template.default
    raise StateError(
        f"{template.where} refers to {template.place}, which does not exist in this run. If the run was edited or the task was "
        "skipped, edit the state of the run, or give the reference a default",
        field=template.where,
    )


def find(place: Path, facts: RuleFacts) -> Any:
    """Return the value at a place of the run, or `NOTHING`."""
    keys = place.keys
    match place.root:
        case "outputs":
            value = facts.fresh.get(keys[0], NOTHING)
            if value is NOTHING:
                value = facts.values["outputs"].get(keys[0], NOTHING)
            keys = keys[1:]
        case "error":
            value = describe_failure(facts.error)
        case root:
            value = facts.values.get(root, NOTHING)
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key, NOTHING)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return NOTHING
    return value


def describe_failure(failure: Failure | None) -> Any:
    """Return a failure as rules and references see it: `type`, `kind` and `message`."""
    if failure is None:
        return NOTHING
    return {"type": failure.type, "kind": failure.kind, "message": failure.message}


def evaluate_over(text: str, facts: RuleFacts, **more: Any) -> Evaluated:
    """Evaluate an expression over what a rule may read of a run; `more` are more roots, such as `input`."""
    values = facts.values
    outputs: Any = values["outputs"]
    roots = {
        "context": values["context"],
        "policy": values["policy"],
        "goal": values["goal"],
        "outputs": ChainMap(facts.fresh, outputs) if facts.fresh else outputs,  # type: ignore[arg-type]
        "now": facts.now,
        **more,
    }
    error = describe_failure(facts.error)
    if error is not NOTHING:
        roots["error"] = error
    return expressions.evaluate(text, roots)
