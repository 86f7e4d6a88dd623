"""Check and evaluate expressions in CEL: guards, rules of policies and verification, idempotency keys.

The only module that imports `cel_expr_python` (the extra `plans`), and only when an expression is first used. It keeps two
invariants. An expression that `check` accepts ends within 100 ms and 50 MB whatever it reads: its text, the values that it
reads and the work that it can cause are bounded (the library's own bounds are not enough). And no message quotes data: the
library's messages do, so each of them is replaced by a message of our own, which names only paths and characters of the
expression.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.errors import SettingError, did_you_mean
from holdfast.plan import syntax
from holdfast.plan.syntax import ITEMS_MAX, READ_BYTES_MAX, Path, Tree

TEXT_MAX = 500
UNITS_MAX = 5_000_000
"""How much work an expression may cause: about 50 ms."""
ROOTS = ("context", "policy", "goal", "outputs", "error", "input", "output", "now")
BOOLEAN = ("BOOL", "DYN")
TEXT = ("STRING", "DYN")
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_NAMES = {
    "BOOL": "true or false",
    "STRING": "a text",
    "INT": "an integer",
    "UINT": "an integer",
    "DOUBLE": "a number",
}
_FAULTS = (
    ("divide by zero", "it divides by zero"),
    ("modulus by zero", "it divides by zero"),
    ("overflow", "a number or time in it goes beyond its range (integers have 64 bits)"),
    ("out of range", "a number or time in it goes beyond its range (integers have 64 bits)"),
    ("Key not found", "it reads a key that does not exist; ask first: has(…)"),
    ("index", "it reads an item of a list that is not there"),
    ("No matching overloads", "an operator or a function in it does not accept values of these types"),
    ("SELECT to non-message", "it reads a field of a value that has no fields"),
    ("regular expression", "its regular expression is not valid"),
    ("regex", "its regular expression is not valid"),
)
"""A part of a message of the library -> what we say instead, because its messages quote data."""
_MISSING: Any = msgspec.UNSET


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """An expression that was checked. `problem` is empty if it can be evaluated."""

    text: str
    problem: str = ""
    type: str = "DYN"
    paths: tuple[Path, ...] = ()
    tree: Tree = ("const", None)
    program: Any = None


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """The value of an expression, and the values that it was based on. `problem` is empty if there is a value."""

    value: Any = None
    reads: dict[str, Any] = {}
    problem: str = ""


def check(text: str, *, roots: Collection[str] = ROOTS, wants: Collection[str] = BOOLEAN) -> Expression:
    """Return an expression with its type and the paths that it reads. `problem` says what is wrong with it: the text, a
    bound, a root that may not be read here, or a type that is not wanted.
    """
    found = _compiled(text)
    problem = found.problem or _misfit(found, roots, wants)
    return msgspec.structs.replace(found, problem=problem) if problem else found


def evaluate(text: str, roots: Mapping[str, Any]) -> Evaluated:
    """Evaluate an expression over plain data. Only the values at the paths that it names are looked at, and handed to CEL.

    `outputs` among the roots only needs `get`; `now` is an instant in seconds.
    """
    expression = _compiled(text)
    if expression.problem:
        return Evaluated(problem=expression.problem)
    data: dict[str, Any] = {}
    reads: dict[str, Any] = {}
    missing: list[Path] = []
    left = READ_BYTES_MAX
    for path in expression.paths:
        value = _at(path, roots, data)
        if path.tested:
            reads[str(path)] = value is not _MISSING
            continue
        if value is _MISSING:
            missing.append(path)
            continue
        size, problem = _weigh(value, left)
        if problem:
            return Evaluated(problem=f"{path} {problem}", reads=reads)
        left -= size
        reads[str(path)] = value
    return _run(expression, data, reads, missing)


def _run(
    expression: Expression, data: dict[str, Any], reads: dict[str, Any], missing: list[Path]
) -> Evaluated:
    if "now" in data:
        data["now"] = dt.datetime.fromtimestamp(data["now"], dt.UTC)
    for root in {path.root for path in expression.paths}:
        data.setdefault(root, {})
    try:
        result = expression.program.eval(data=data)
        kind, value = result.type().name(), result.plain_value()
    except Exception as fault:  # noqa: BLE001 - the library documents no exceptions; whatever it raises may quote data
        kind, value = "ERROR", str(fault)
    if kind in ("ERROR", "*error*") or kind.startswith("UNKNOWN"):
        return Evaluated(problem=_fault(str(value), missing), reads=reads)
    return Evaluated(value=value, reads=reads)


def _fault(told: str, missing: list[Path]) -> str:
    if missing and ("not found" in told or "SELECT" in told or "No value" in told):
        place = missing[0]
        return f"it reads {place}, which does not exist; ask first: {msgspec.structs.replace(place, tested=True)}"
    lower = told.lower()
    return next((ours for part, ours in _FAULTS if part.lower() in lower), "it cannot be evaluated")


# --- what is handed to CEL --------------------------------------------------------------------------------


def _at(path: Path, roots: Mapping[str, Any], data: dict[str, Any]) -> Any:
    """Return the value at a path, and put it into the data that CEL is given, at the same place. What is only tested for is put
    there as null.
    """
    value = roots.get(path.root, _MISSING)
    if value is _MISSING:
        return _MISSING
    if not path.keys:
        data[path.root] = value
        return value
    inside = data.setdefault(path.root, {})
    last = len(path.keys) - 1
    for depth, key in enumerate(path.keys):
        value = value.get(key, _MISSING) if hasattr(value, "get") else _MISSING
        if value is _MISSING:
            return _MISSING
        if depth == last:
            if not path.tested:
                inside[key] = value
            else:
                inside.setdefault(key, None)
        elif hasattr(value, "get"):
            inside = _inside(inside, key)
    return value


def _inside(outer: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the dict below a key; one that only stands for a value that is tested for is replaced."""
    found = outer.get(key)
    if not isinstance(found, dict):
        found = outer[key] = {}
    return found


def _weigh(value: Any, left: int) -> tuple[int, str]:
    """Return about how many bytes of JSON a value is, and why it may not be read, if it may not. Stops once it is too large."""
    size = 0
    stack = [value]
    while stack and size <= left:
        part = stack.pop()
        match part:
            case None | bool():
                size += 4
            case int():
                if not _INT_MIN <= part <= _INT_MAX:
                    return size, "holds an integer beyond 64 bits, which an expression cannot read"
                size += len(str(part))
            case str():
                size += 2 + (
                    len(part) if part.isascii() else len(part.encode()) if len(part) <= left else left + 1
                )
            case list() | dict():
                if len(part) > ITEMS_MAX:
                    return (
                        size,
                        f"holds a list or an object of more than {ITEMS_MAX} items; read a part of it",
                    )
                size += 2 + len(part)
                if isinstance(part, dict):
                    size += sum(3 + len(key) for key in part)
                    stack += part.values()
                else:
                    stack += part
            case _:
                size += 16
    if size > left:
        return size, f"makes what the expression reads larger than {READ_BYTES_MAX} bytes; read a part of it"
    return size, ""


# --- checking ---------------------------------------------------------------------------------------------


def _misfit(expression: Expression, roots: Collection[str], wants: Collection[str]) -> str:
    if expression.type not in wants:
        wanted = _NAMES[wants[0] if isinstance(wants, tuple) else next(iter(wants))]
        given = _NAMES.get(expression.type, "a list, an object or another value")
        return f"it gives {given}; write an expression that gives {wanted}"
    for path in expression.paths:
        if path.root not in roots:
            return f"it reads {path.root}, which is not available here; available are {', '.join(roots)}"
        if path.root == "outputs" and not path.keys:
            return "it reads all outputs at once; name the task: outputs.TASK"
    return ""


@functools.lru_cache(maxsize=8192)
def _compiled(text: str) -> Expression:
    """Compile an expression. Cached, because the rules of a plan are evaluated once per run of it."""
    if len(text) > TEXT_MAX:
        return _refused(
            text,
            f"it has {len(text)} characters; at most {TEXT_MAX} are allowed. Compute the value in a task",
        )
    try:
        program = _environment().compile(text)
    except SettingError:
        raise
    except Exception as fault:  # noqa: BLE001 - the library raises RuntimeError, and documents nothing
        return _refused(text, _explain(str(fault), text))
    tree = syntax.read_tree(program.serialize())
    if syntax.has_nested_macros(tree):
        return _refused(
            text,
            "it has a macro inside a macro (all, exists, exists_one, map, filter); compute the value in a task",
        )
    if syntax.has_messages(tree):
        return _refused(text, "it makes a message of protocol buffers, which has no meaning in a plan")
    if syntax.effort(tree).units > UNITS_MAX:
        return _refused(
            text,
            "it could take too long: compare smaller parts, write a pattern of matches(…) as a short literal, or compute the "
            "value in a task",
        )
    return Expression(
        text=text,
        type=program.return_type().name(),
        paths=syntax.read_paths(tree, frozenset(ROOTS)),
        tree=tree,
        program=program,
    )


def _refused(text: str, problem: str) -> Expression:
    return Expression(text=text, problem=problem)


def _explain(told: str, text: str) -> str:
    """Return our own words for a message of the compiler."""
    found = re.search(r"<input>:1:(\d+)", told)
    where = f" at character {found[1]}" if found else ""
    unknown = re.search(r"undeclared reference to '([\w.@]{1,40})'", told)
    if unknown:
        name = unknown[1].partition(".")[0]
        return f"the name {name!r}{where} is unknown; an expression may read {', '.join(ROOTS)}{did_you_mean(name, ROOTS)}"
    if "recursion" in told:
        return "it is nested too deeply; at most 32 levels are allowed"
    if "int literal" in told:
        return f"the integer{where} is beyond 64 bits"
    if "has() argument" in told:
        return f"has(…){where} takes a field, as in has(context.facts.vip)"
    if "matching overload" in told:
        return f"the operator or function{where} does not accept values of these types"
    if not text.strip():
        return "it is empty; write an expression, or leave it out"
    return f"it does not parse{where}; it is written in CEL, as in context.facts.country in policy.countries"


@functools.cache
def _environment() -> Any:
    """Return the environment in which every expression is compiled. The values of all roots have dynamic types."""
    try:
        from cel_expr_python import cel  # type: ignore[import-untyped]
    except ImportError as fault:
        raise SettingError(
            "Plans need the package cel-expr-python, which is not installed. Install it: pip install 'holdfast[plans]'"
        ) from fault
    kinds = {root: cel.Type.TIMESTAMP if root == "now" else cel.Type.DYN for root in ROOTS}
    return cel.NewEnv(variables=kinds)
