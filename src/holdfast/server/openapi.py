"""Makes the OpenAPI 3.1 document of the server from its table of routes and the types of their inputs and outputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import VERSION
from holdfast.server.calls import EVENTS, JSON, ApiRoute
from holdfast.server.field_descriptions import describe_fields
from holdfast.server.problems import MEDIA_TYPE, Problem
from holdfast.server.table import VALUES
from holdfast.server.verb_headers import SCHEMAS

_REF = "#/components/schemas/{name}"
_SCHEME = "token"


@functools.lru_cache(maxsize=4)
def document(routes: tuple[ApiRoute, ...], servers: tuple[str, ...] = ()) -> bytes:
    """Return the document as JSON. `servers` are the public URLs of the server."""
    types = list(dict.fromkeys(_types(routes)))
    found, components = msgspec.json.schema_components(types, ref_template=_REF)
    describe_fields(types, components)
    schemas = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    used = {name: schema for name, schema in components.items() if name not in _query_names(routes)}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Holdfast", "version": VERSION},
            "servers": [{"url": url} for url in servers] or [{"url": "/"}],
            "paths": paths,
            "components": {
                "schemas": used,
                "securitySchemes": {_SCHEME: {"type": "http", "scheme": "bearer"}},
            },
            "security": [{_SCHEME: []}],
        }
    )


def _types(routes: Iterable[ApiRoute]) -> Iterable[Any]:
    yield Problem
    for route in routes:
        kinds = (route.query, route.body, route.output, route.preview)
        yield from (kind for kind in kinds if kind is not None)


def _query_names(routes: Iterable[ApiRoute]) -> set[str]:
    return {route.query.__name__ for route in routes}


def _operation(route: ApiRoute, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "x-role": route.role,
        "parameters": [
            *_path_parameters(route.path),
            *_query_parameters(route, components),
            *({"name": name, "in": "header", "schema": SCHEMAS[name]} for name in route.headers),
        ],
        "responses": _responses(route, schemas),
    }
    if route.role is None:
        operation["security"] = []
    if route.body is not None:
        is_struct = isinstance(route.body, type) and issubclass(route.body, msgspec.Struct)
        needed = not is_struct or any(field.required for field in msgspec.structs.fields(route.body))
        operation["requestBody"] = {"required": needed, "content": {JSON: {"schema": schemas[route.body]}}}
    return operation


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        schema = {"type": "string", "pattern": f"^{VALUES[name].pattern}$"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(route: ApiRoute, components: dict[str, Any]) -> Iterable[dict[str, Any]]:
    declared = components[route.query.__name__]
    for name, schema in declared["properties"].items():
        schema.pop("default", None) if schema.get("type") == "array" else None
        is_required = name in declared.get("required", ())
        yield {"name": name, "in": "query", "required": is_required, "schema": schema}


def _responses(route: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.media_type == JSON:
        content = {JSON: {"schema": schemas[route.output]}}
    elif route.media_type == EVENTS:
        content = {EVENTS: {"schema": _EVENT}}
    elif route.media_type.startswith("text/"):
        content = {route.media_type: {"schema": {"type": "string"}}}
    else:
        content = {route.media_type: {"schema": {}}}
    found: dict[str, Any] = {}
    for status in route.statuses:
        found[str(status)] = {"description": _DESCRIPTIONS[status]}
        if status == 200 and route.preview is not None:
            either = {"anyOf": [schemas[route.output], schemas[route.preview]]}
            found["200"]["content"] = {JSON: {"schema": either}}
        elif status != 304:
            found[str(status)]["content"] = content
    problem = {MEDIA_TYPE: {"schema": schemas[Problem]}}
    found["default"] = {"description": "A problem, with what to do about it", "content": problem}
    return found


_EVENT = {
    "description": "A server-sent event; its data is a JSON document.",
    "type": "object",
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
}
_DESCRIPTIONS = {
    200: "Success",
    201: "Created",
    202: "The request was recorded",
    304: "Nothing has changed since the given ETag",
    503: "The server cannot answer now",
}
