"""Routes for those who run the server: tokens, limits of queues, pruning and deleting. They need the role `admin`."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.errors import SettingError
from holdfast.server import verb_headers
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import refuse
from holdfast.server.verbs import VerbQuery
from holdfast.storage import tokens
from holdfast.storage.queues import Queue
from holdfast.storage.tokens import Kind, Role, Token
from holdfast.upkeep import retention
from holdfast.upkeep.retention import KEEP_LAST, Deleted, Pruned

_ID_DIGITS = 12


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: str
    name: str
    role: Role
    kind: Kind
    created_at: float
    created_by: str | None
    expires_at: float | None
    revoked_at: float | None
    valid: bool


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was made now."""

    token: str
    """The token with its secret. It is shown only here."""


class TokenList(msgspec.Struct, frozen=True):
    """The tokens in the store, oldest first. The token with which the server was started is not among them."""

    tokens: list[TokenView]


class TokenInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    name: Annotated[str, Meta(min_length=1, max_length=tokens.NAME_MAX)]
    role: Role = "read"
    kind: Kind = "person"
    expires_in: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    """For how many seconds the token is valid. Default: until it is revoked."""


class QueueInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limit of a queue."""

    limit: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None
    """How many runs of the queue may be executed at a time; null removes the limit."""


class PruneInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a run to keep."""

    keep_last: Annotated[int, Meta(ge=1, le=2**31 - 1)] = KEEP_LAST
    """How many checkpoints the run keeps."""
    compact: bool = False
    """Also replace the events before the kept checkpoints with one stored state."""


def list_tokens(call: HttpCall[NoQuery, None]) -> TokenList:
    """List the tokens in the store, oldest first, without their secrets."""
    now = call.backend.clock.now()
    return TokenList([TokenView(**_shown(one, now)) for one in call.backend.store.tokens.all()])


def create_token(call: HttpCall[NoQuery, TokenInput]) -> Answer:
    """Make a token. Its secret is shown once."""
    backend, body, key = call.backend, call.body, verb_headers.key_of(call)
    now = backend.clock.now()
    token_id = None
    if key is not None:
        token_id = sha256(f"{call.who.token_id}:{key}".encode()).hexdigest()[:_ID_DIGITS]
        if backend.store.tokens.get(token_id) is not None:
            raise refuse(
                "token-made",
                f"A token was made with this key: {token_id}. Its secret is not shown again.",
            )
    made, text = tokens.new_token(
        body.name,
        body.role,
        kind=body.kind,
        now=now,
        created_by=call.who.by,
        expires_at=None if body.expires_in is None else now + body.expires_in,
        token_id=token_id,
    )
    try:
        backend.store.tokens.add(made)
    except SettingError:  # another request with this key was faster
        raise refuse("token-made", f"A token was made with this key: {made.id}.") from None
    return Answer(status=201, body=encode(NewToken(**_shown(made, now), token=text)))


def revoke_token(call: HttpCall[NoQuery, None]) -> TokenView:
    """Revoke a token for good. It is refused at once here, and by other servers within 10 seconds."""
    backend, token_id = call.backend, call.values["token"]
    backend.store.tokens.revoke(token_id, backend.clock.now())
    found = backend.store.tokens.get(token_id)
    if found is None:
        raise refuse(
            "not-found",
            f"The store has no token {token_id!r}.",
            remedy="GET /api/v1/tokens lists the tokens of the store. The token with which the server was started is not one of "
            "them: remove its file or HOLDFAST_TOKEN, and start the server again.",
        )
    if backend.access is not None:
        backend.access.forget(token_id)
    return TokenView(**_shown(found, backend.clock.now()))


def _shown(token: Token, now: float) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(token).items() if name != "digest"}
    return fields | {"valid": token.is_valid(now)}


def limit_queue(call: HttpCall[NoQuery, QueueInput]) -> Queue:
    """Limit how many runs of a queue are executed at a time, by all workers together."""
    queues, name = call.backend.store.queues, call.values["queue"]
    queues.limit(name, call.body.limit)
    return next((found for found in queues.queues() if found.name == name), Queue(name=name))


async def prune_run(call: HttpCall[VerbQuery, PruneInput]) -> Answer:
    """Retire old checkpoints of a run, and with `compact` the events before them."""
    backend, run_id, body = call.backend, call.values["id"], call.body
    if call.query.preview:
        found: Pruned = await backend.read(_plan, backend, run_id, body)
    else:  # the engine that was given: it may hold the run
        _ = backend.store  # raises if that engine is not open
        found = await backend.engine.prune(run_id, body.keep_last, compact=body.compact)
    return Answer(body=encode(found))


def delete_run(call: HttpCall[NoQuery, None]) -> Deleted:
    """Delete a run that is over, with its log, for good."""
    return retention.delete_run(call.backend.store, call.values["id"])


def _plan(backend: Backend, run_id: str, body: PruneInput) -> Pruned:
    return retention.plan(backend.store, run_id, body.keep_last, compact=body.compact)
