"""The plan document: its fields, how it is read from JSON or YAML, and its JSON Schema.

A document is read in two steps. `read` turns a file or a text into plain data, and refuses what must not even be looked at
(`plan/texts`). `parse` turns plain data into a `Document`, and reports every problem of its
structure at once, each with its path; whether the parts fit together is checked by `plan/checking`. The invariant: what
`parse` returns without problems has only fields that are declared here, and only plain data.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from holdfast.core.codec import key_path, plain_problem
from holdfast.errors import PlanError, Problem, did_you_mean
from holdfast.plan.texts import BYTES_MAX, FORMAT, TOO_LARGE, read_text, size_problem

TASKS_MAX = 10_000
_PARTS_MAX = {"tasks": TASKS_MAX, "edges": 10 * TASKS_MAX, "policies": 200}
SUGGESTED_MAX = 50
"""Similar names are looked for until there are this many problems: a search compares with every known name."""
Source: TypeAlias = "str | bytes | os.PathLike[str] | Mapping[str, Any]"
T = TypeVar("T", bound=msgspec.Struct)

_LATER = {
    "compensation": "undoing tasks is not part of the document yet; remove it",
    "on_failure": "undoing tasks is not part of the document yet; remove it",
    "decide": "decisions about failures and layers are not part of the document yet; remove it",
    "replans": "re-planning is not part of the document yet; remove it",
    "limits": "limits are not part of the document yet; write the limits of its cost as budget: usd, tokens, active_s",
}


class _Part(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a document. A field that has its default value is not stored."""


class BudgetRule(_Part, frozen=True):
    """What the run may cost. Over budget, nothing new begins."""

    usd: float | None = None
    tokens: int | None = None
    active_s: float | None = None


class RetryRule(_Part, frozen=True):
    """How often and when a failed attempt is retried. `on` names failure classes (recoverable, partial, fatal) or exception
    types; without it, recoverable failures are retried.
    """

    attempts: int | None = None
    backoff: float | None = None
    factor: float | None = None
    max_delay: float | None = None
    jitter: float | None = None
    on: list[str] = []


class VerificationRule(_Part, frozen=True):
    """An expression that must be true of `output`, or the output is not accepted."""

    id: str
    rule: str
    reason: str = ""


class Task(_Part, frozen=True):
    """One call of a capability."""

    id: str
    capability: str
    title: str = ""
    input: Any = {}
    join: Literal["every", "some"] = "every"
    retry: RetryRule | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    verification: list[VerificationRule] = []


class PlanEdge(_Part, frozen=True, rename={"source": "from", "target": "to"}):
    """An edge from one task to another. With `on_error`, it is taken if the source fails for good: `true` for every failure
    but a denial, or a list of failure classes and exception types.
    """

    source: str
    target: str
    guard: str | None = None
    on_error: bool | list[str] = False

    @property
    def catches(self) -> tuple[str, ...]:
        """The failures that the edge takes; empty for an ordinary edge."""
        if isinstance(self.on_error, bool):
            return ("*",) if self.on_error else ()
        return tuple(self.on_error)


class PolicyRule(_Part, frozen=True):
    """An expression that must be true before a task begins (`pre`) or before its output is used (`post`)."""

    id: str
    rule: str
    stage: Literal["pre", "post"] = "pre"
    capability: str = "*"
    otherwise: Literal["deny", "ask"] = "deny"
    reason: str = ""


class Document(_Part, frozen=True):
    """A plan: what is to be achieved, with which data, by which tasks in which order, under which rules."""

    holdfast: Literal["plan/1"]
    tasks: list[Task]
    edges: list[PlanEdge] = []
    policies: list[PolicyRule] = []
    title: str = ""
    rationale: str = ""
    alternatives: list[Any] = []
    goal: Any = None
    context: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    budget: BudgetRule | None = None


# --- reading ----------------------------------------------------------------------------------------------


def read(source: Source) -> dict[str, Any]:
    """Read a plan from a file (a path), from text or bytes in JSON or YAML, or from a dict. Raises `PlanError`.

    A str is the path of a file, unless it has several lines or begins with `{`.
    """
    if isinstance(source, Mapping):
        return _read_mapping(source)
    if isinstance(source, str) and not source.lstrip().startswith("{") and "\n" not in source:
        source = Path(source)
    if isinstance(source, os.PathLike):
        return _read_file(Path(source))
    return _read_bytes(source.encode() if isinstance(source, str) else source, "the plan")


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(BYTES_MAX + 1)
    except (OSError, ValueError) as fault:  # a path with a NUL character is a ValueError
        why = fault.strerror if isinstance(fault, OSError) else "it is not a path"
        told = f"the file {file!s:.200} cannot be read ({why}); give the path of a plan, as in order.json"
        raise PlanError("the plan", [Problem("", told)]) from fault
    return _read_bytes(data, str(file))


def _read_bytes(data: bytes, name: str) -> dict[str, Any]:
    plain = read_text(data, name)
    _name_on(plain)
    return plain


def _name_on(plain: dict[str, Any]) -> None:
    """Give the field `on` of a retry its name back: YAML 1.1 reads the word as `true`."""
    tasks = plain.get("tasks")
    for part in tasks if isinstance(tasks, list) else ():
        retry = part.get("retry") if isinstance(part, dict) else None
        if isinstance(retry, dict) and True in retry and "on" not in retry:
            retry["on"] = retry.pop(True)


def _read_mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(given)
    told = size_problem(plain)
    if told is not None:
        raise PlanError("the plan", [Problem("", told)])
    try:
        size = len(msgspec.json.encode(plain))
    except (TypeError, ValueError, RecursionError):
        return plain  # `parse` names the part that is not plain data
    if size > BYTES_MAX:
        raise PlanError("the plan", [Problem("", TOO_LARGE)])
    return plain


# --- parsing ----------------------------------------------------------------------------------------------


def parse(plain: Mapping[str, Any], problems: list[Problem]) -> Document:
    """Turn plain data into a document, and add every problem of its structure to `problems`. Parts that have problems are
    repaired where that is possible (a field is left out), so that the parts can still be checked against each other.
    """
    given = dict(plain)
    problems += _text_problems(plain)
    if given.get("holdfast") != FORMAT:
        problems.append(Problem("holdfast", f"it must be {FORMAT!r}, the format of this document"))
    given["holdfast"] = FORMAT
    if isinstance(given.get("limits"), Mapping) and "replans" in given["limits"]:
        problems.append(Problem("limits.replans", _LATER["replans"]))
        given["limits"] = {key: value for key, value in given["limits"].items() if key != "replans"}
        if not given["limits"]:
            del given["limits"]
    lists: dict[str, list[Any]] = {
        "tasks": _parse_list(given, "tasks", Task, problems),
        "edges": _parse_list(given, "edges", PlanEdge, problems),
        "policies": _parse_list(given, "policies", PolicyRule, problems),
    }
    whole = _parse_part({**given, "tasks": []}, Document, "", problems)
    assert whole is not None
    for name in ("goal", "context", "policy", "alternatives"):
        found = plain_problem(getattr(whole, name), name)
        if found:
            problems.append(Problem(*found))
            whole = msgspec.structs.replace(whole, **{name: _EMPTY[name]})
    return msgspec.structs.replace(whole, **lists)


def _text_problems(plain: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the first text of a document that no store could keep (a NUL character, half of a surrogate pair)."""
    try:
        is_sound = b"\\u0000" not in msgspec.json.encode(plain)
    except (TypeError, ValueError, RecursionError):
        is_sound = False
    found = None if is_sound else plain_problem(dict(plain), "")
    if found:
        yield Problem(found[0].lstrip("."), found[1])


_EMPTY: dict[str, Any] = {"goal": None, "context": {}, "policy": {}, "alternatives": []}


def _parse_list(given: dict[str, Any], name: str, kind: type[T], problems: list[Problem]) -> list[T | None]:
    """Take a list of parts out of a document. A part that cannot be used at all is None, so that the others keep their
    places.
    """
    parts = given.pop(name, [])
    if not isinstance(parts, list):
        problems.append(Problem(name, "it must be a list"))
        return []
    if name == "tasks" and not parts:
        problems.append(
            Problem(name, "the plan has no tasks; add one: {'id': …, 'capability': 'name@version'}")
        )
    if len(parts) > _PARTS_MAX[name]:
        problems.append(
            Problem(
                name,
                f"there are {len(parts):,} {name}; a plan has at most {_PARTS_MAX[name]:,}. Split it into several plans",
            )
        )
        return []
    return [_parse_part(part, kind, f"{name}[{index}]", problems) for index, part in enumerate(parts)]


def _parse_part(part: Any, kind: type[T], path: str, problems: list[Problem]) -> T | None:
    """Turn plain data into a struct. After a field that does not fit, the others are still looked at."""
    if type(part) is dict:
        try:
            return msgspec.convert(part, kind)
        except msgspec.ValidationError:
            pass  # looked at field by field below
    if not isinstance(part, Mapping):
        problems.append(Problem(path, "it must be an object with fields"))
        return None
    fields = msgspec.structs.fields(kind)
    names = {field.encode_name: field for field in fields}
    values: dict[str, Any] = {}
    for key, value in part.items():
        where = key_path(path, key).lstrip(".")
        if key not in names:
            near = did_you_mean(str(key), names) if len(problems) < SUGGESTED_MAX else ""
            told = _LATER.get(str(key)) or f"there is no such field{near or '; remove it'}"
            problems.append(Problem(where, told))
            continue
        fault = _misfit(value, get_type_hints(kind)[names[key].name], where)
        if fault is None:
            values[str(key)] = value
        else:
            problems.append(fault)
    is_misspelt = len(problems) < SUGGESTED_MAX and any(
        key not in names and did_you_mean(str(key), names) for key in part
    )
    for name, field in names.items():
        if field.required and name not in values:
            if name not in part and not is_misspelt:
                problems.append(Problem(path, f"the field {name!r} is missing; add it"))
            return None
    return msgspec.convert(values, kind)


def _misfit(value: Any, declared: Any, path: str) -> Problem | None:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError as fault:
        if get_origin(declared) is Literal:
            return Problem(path, f"it must be one of {', '.join(map(repr, get_args(declared)))}")
        told, _, where = str(fault).partition(" - at `$")
        found = where.rstrip("`")
        unknown = told.partition("unknown field `")[2].rstrip("`")
        if unknown:
            return Problem(
                f"{path}{found}.{unknown}", _LATER.get(unknown) or "there is no such field; remove it"
            )
        return Problem(path + found, told[:1].lower() + told[1:].replace("`", ""))
    return None


# --- the schema -------------------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan, made from the structs of this module."""
    (_,), parts = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    parts = {name.removeprefix("Plan") if name == "PlanEdge" else name: part for name, part in parts.items()}
    text = msgspec.json.encode(parts).replace(b"#/$defs/PlanEdge", b"#/$defs/Edge")
    defs: dict[str, Any] = msgspec.json.decode(text)
    for part in defs.values():  # from Python 3.13 on, docstrings come without their indentation
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])
    document = defs.pop("Document")
    document["properties"]["context"] |= {
        "properties": {"facts": {"type": "object"}, "sources": {"type": "array"}},
        "description": "What is known: facts, and the sources that they come from. Data of the plan's author.",
    }
    defs["Task"]["properties"]["input"] = {
        "description": "The input of the capability: literals, and {'$ref': 'outputs.TASK.field', 'default': …} for values that "
        "are known only when the task begins."
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **document,
        "title": "A plan for Holdfast",
        "$defs": defs,
    }
