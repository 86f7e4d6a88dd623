"""Writes docs/events.schema.json, the JSON Schema of every kind of event, and docs/plan.schema.json, that of plans. Both are
made from the code: `python docs/schema.py`
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import msgspec

from holdfast.core.events import KINDS
from holdfast.plan.document import json_schema

FILE = Path(__file__).with_name("events.schema.json")
PLAN_FILE = Path(__file__).with_name("plan.schema.json")


def schema() -> str:
    """Every kind by its name. Node, iteration, execution and attempt are columns of the store, the others its body."""
    kinds, definitions = msgspec.json.schema_components(list(KINDS.values()), ref_template="#/$defs/{name}")
    for definition in definitions.values():  # from Python 3.13 on, docstrings come without their indentation
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of a Holdfast run",
        "oneOf": list(kinds),
        "$defs": definitions,
    }
    return json.dumps(document, indent=2) + "\n"


def plan_schema() -> str:
    """The fields of a plan. `holdfast plan schema FILE.py` writes the one for the capabilities of a file, with their inputs."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema(), "utf-8")
    PLAN_FILE.write_text(plan_schema(), "utf-8")
