"""The bodies of the routes that ask for something: one type for each verb, with the options of its record (`core.requests`).

A body that has a field which is not listed here is refused; nothing is ignored. Who asks is never in a body: it is the name of
the token. The id of a request is in the header `Idempotency-Key`, and the digest of its preview in `If-Match`.
"""

from __future__ import annotations

from typing import Annotated, Any, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.requests import MAKING, RECORDS, Start
from holdfast.core.verb_options import Given, options_of
from holdfast.server.runs import Name, RunId


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body whose fields are the options of a record."""


class _VerbBody(_Body, frozen=True, kw_only=True):
    """What the body of every verb may say."""

    run_id: RunId | UnsetType = UNSET
    """The id of the run in the path, once more. Another id is refused."""


class _StartBody(_Body, frozen=True, kw_only=True):
    """What to execute."""

    flow: Name
    input: Any = None
    plan: dict[str, Any] | None = None
    """The plan to execute, if `flow` names capabilities. It brings its own input."""


def body_of(record: type[msgspec.Struct], base: type[msgspec.Struct] = _VerbBody) -> type[msgspec.Struct]:
    """Return the type of the body with which a verb is asked for: the options of its record, with their limits."""
    fields = [body_field(given) for given in options_of(record).values() if not given.option.is_header]
    return msgspec.defstruct(
        f"{record.__name__}Input",
        fields,
        bases=(base,),
        namespace={"__doc__": record.__doc__},
        frozen=True,
        kw_only=True,
    )


def body_field(given: Given, more: str = "") -> tuple[str, Any, Any]:
    """Return the name, the type and the default of the field of a body for an option. `more` is said after its sentence."""
    limit = given.type if given.option.limit is None else given.option.limit
    described = Annotated[limit, Meta(description=f"{given.option.says}{more}")]  # type: ignore[valid-type]
    return given.body_name, described, _default(given, limit)


def _default(given: Given, limit: Any) -> Any:
    """Return the default of a field of a body, which is of the type of the field."""
    if given.default is None and dict in (limit, get_origin(limit)):
        return msgspec.field(default_factory=dict)
    return given.default


BODIES: dict[str, type[msgspec.Struct]] = {
    **{verb: body_of(record) for verb, record in RECORDS.items() if record.traits.role is not None},
    **{verb: body_of(record, _StartBody if record is Start else _Body) for verb, record in MAKING.items()},
}
"""Verb -> the type of the body with which it is asked for."""
