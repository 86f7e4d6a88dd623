"""Tokens: who may use the server of a store, and what they may do. This is the part of a store that the server uses.

A token is a text `<id>.<secret>`. The store keeps the id and the sha256 of the secret, never the secret itself: its 256 bits
are random, so a slow hash would add nothing. A token is found by its id; the server compares the digests in constant time. A
token is never deleted, only revoked, because logs and requests name it. Every store passes `holdfast.testing.tokens`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Literal, Protocol, TypeAlias, get_args

import msgspec

from holdfast.errors import SettingError

Role: TypeAlias = Literal["read", "start", "operate", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""The roles, each of which may do everything that the roles before it may do."""
Kind: TypeAlias = Literal["person", "agent"]

NAME_MAX = 64
SECRET_BYTES = 32
_ID_BYTES = 6
_TEXT = re.compile(r"([0-9A-Za-z_-]{1,64})\.([0-9A-Za-z_-]{16,512})")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored."""

    id: str
    name: str
    """Who uses the token. Logs record this name for what is done with the token (`actor`)."""
    role: Role
    kind: Kind = "person"
    digest: bytes
    """The sha256 of the secret."""
    created_at: float
    created_by: str | None = None
    expires_at: float | None = None
    revoked_at: float | None = None

    @property
    def actor(self) -> str:
        """The name that logs record: for an agent, with the prefix `agent:`."""
        return f"agent:{self.name}" if self.kind == "agent" else self.name

    def is_valid(self, now: float) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def fits(self, secret: str) -> bool:
        """Return whether this is the token's secret. The comparison takes the same time wherever the two differ."""
        return hmac.compare_digest(self.digest, digest_of(secret))


class Tokens(Protocol):
    """The methods of a store that keep tokens. They are synchronous, may be called from any thread, and raise the errors that
    every method of a store may raise; those that write may also raise `CodecError` and `StoreFull`.
    """

    def add(self, token: Token) -> None:
        """Store a new token. Raises `SettingError` if a token with this id exists."""

    def get(self, token_id: str) -> Token | None:
        """Return the token with this id, also if it has expired or was revoked; None if there is none."""

    def all(self) -> list[Token]:
        """Return all tokens, oldest first."""

    def revoke(self, token_id: str, at: float) -> bool:
        """Revoke a token. Returns False if there is no such token, or if it was revoked before: then nothing changes."""


def token_exists(token_id: str) -> SettingError:
    """Return the error for a new token whose id is in use."""
    return SettingError(f"there is a token with the id {token_id!r} already; create another one")


def digest_of(secret: str) -> bytes:
    """Return the digest under which a secret is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_text() -> str:
    """Return the text of a new token: a random id and a random secret."""
    return f"{secrets.token_hex(_ID_BYTES)}.{secrets.token_urlsafe(SECRET_BYTES)}"


def new_token(
    name: str | None,
    role: Role,
    *,
    kind: Kind,
    now: float,
    created_by: str | None,
    expires_at: float | None = None,
    token_id: str | None = None,
) -> tuple[Token, str]:
    """Return a new token and its text, which has the secret. Raises `SettingError` for a name that logs cannot show."""
    if not name or len(name) > NAME_MAX or not name.isprintable() or "/" in name or ":" in name:
        raise SettingError(
            "give the name of the person or program that will use the token, without / and :, as in `holdfast token create ada`"
        )
    random_id, _, secret = new_text().partition(".")
    made = Token(
        id=token_id or random_id,
        name=name,
        role=role,
        kind=kind,
        digest=digest_of(secret),
        created_at=now,
        created_by=created_by,
        expires_at=expires_at,
    )
    return made, f"{made.id}.{secret}"


def split(text: str) -> tuple[str, str] | None:
    """Split the text of a token into id and secret; None if it has another form."""
    found = _TEXT.fullmatch(text)
    return (found[1], found[2]) if found is not None else None


def allows(role: Role, needed: Role) -> bool:
    """Return whether a role may do what another role may do."""
    return ROLES.index(role) >= ROLES.index(needed)
