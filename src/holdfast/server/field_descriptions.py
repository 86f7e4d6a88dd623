"""Adds to the schemas of structs what the source says about their fields: the docstrings below them.

Python keeps no docstrings of fields, so they are read from the source, once per file. Where there is no source, the schemas stay
as they are.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect as shapes


def describe_fields(types: Iterable[Any], components: dict[str, Any]) -> None:
    """Add descriptions to the properties of the component schemas that `msgspec.json.schema_components` made of these types."""
    for cls in _structs(types):
        properties = components.get(cls.__name__, {}).get("properties", {})
        for field in msgspec.structs.fields(cls):
            said = _docstring(cls, field.name)
            if said and field.encode_name in properties:
                properties[field.encode_name].setdefault("description", said)


def _structs(types: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield every struct that these types consist of, once."""
    todo: list[Any] = list(shapes.multi_type_info(list(types)))
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(part)
        elif isinstance(part, (shapes.Type, shapes.Field)) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, shapes.StructType):
                yield part.cls
            todo.extend(getattr(part, name) for name in part.__struct_fields__)


def _docstring(cls: type, field: str) -> str | None:
    for owner in cls.__mro__:
        said = _docstrings(owner.__module__).get((owner.__name__, field))
        if said is not None:
            return said
    return None


@functools.cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of all fields in a module of Holdfast: (class, field) -> text."""
    if not module.startswith("holdfast."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, KeyError, SyntaxError):
        return {}
    found: dict[tuple[str, str], str] = {}
    for cls in tree.body:
        if not isinstance(cls, ast.ClassDef):
            continue
        for field, after in zip(cls.body, cls.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[cls.name, field.target.id] = inspect.cleandoc(after.value.value).replace("\n", " ")
    return found
