"""The JSON Schema of the plans over a set of capabilities: an agent can be constrained to it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.codec import is_pydantic
from holdfast.plan import document
from holdfast.plan.registry import Capability, Registry

_REFERENCE = {
    "type": "object",
    "description": "A value that is known only when the task begins.",
    "properties": {
        "$ref": {"type": "string", "pattern": r"^(context|policy|goal|outputs|error)(\..+)?$"},
        "default": {"description": "The value if there is none at that place."},
    },
    "required": ["$ref"],
    "additionalProperties": False,
}


def describe(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema of plans whose tasks use these capabilities, with the schema of the input of each."""
    schema = document.json_schema()
    defs = schema["$defs"]
    defs["Reference"] = _REFERENCE
    task = defs.pop("Task")
    kinds = []
    for known in registry.capabilities.values():
        name = f"Task:{known.name}"
        defs[name] = _task(task, known, defs)
        kinds.append({"$ref": f"#/$defs/{name}"})
    if kinds:
        schema["properties"]["tasks"]["items"] = {"anyOf": kinds}
    else:
        defs["Task"] = task
    schema["properties"]["tasks"] |= {"minItems": 1, "maxItems": document.TASKS_MAX}
    return schema


def _task(task: dict[str, Any], known: Capability, defs: dict[str, Any]) -> dict[str, Any]:
    described = msgspec.json.decode(msgspec.json.encode(task))
    described["title"] = known.name
    if known.description:
        described["description"] = known.description
    described["properties"]["capability"] = {"const": known.name}
    described["properties"]["input"] = _input(known, defs)
    return dict(described)


def _input(known: Capability, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an input: each field may also be a reference."""
    given, parts = _schema_of(known.input.type)
    defs.update({name: part for name, part in parts.items() if name not in defs})
    name = given.get("$ref", "").rpartition("/")[2]
    whole: dict[str, Any] = dict(parts.get(name, given))
    if whole.get("type") == "object" and "properties" in whole:
        whole["properties"] = {key: _or_reference(part) for key, part in whole["properties"].items()}
        whole["additionalProperties"] = False
    return {"anyOf": [whole, {"$ref": "#/$defs/Reference"}]}


def _or_reference(part: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [part, {"$ref": "#/$defs/Reference"}]}


def _schema_of(declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schema of a type, and the parts that it refers to. A type without a schema may be anything."""
    try:
        if is_pydantic(declared):
            whole = declared.model_json_schema(ref_template="#/$defs/{model}")
            parts = whole.pop("$defs", {})
        else:
            (whole,), parts = msgspec.json.schema_components([declared], ref_template="#/$defs/{name}")
        plain: tuple[dict[str, Any], dict[str, Any]] = msgspec.json.decode(
            msgspec.json.encode([whole, parts]), type=tuple[dict[str, Any], dict[str, Any]]
        )
    except (TypeError, ValueError):
        return {}, {}
    return plain
