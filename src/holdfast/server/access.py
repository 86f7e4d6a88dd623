"""Finds out who sends a request, from the token in its header `Authorization`.

A token is looked up by its id and compared in constant time. What was looked up counts for `FRESH_S` seconds, so that a busy
client does not cost a query per request, and a token that was revoked is refused soon after. An address that sends wrong tokens
is refused for a while before anything is looked up; a token that was right lately stays right, so that one client cannot lock
out others that share its address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from holdfast.runtime.clock import Clock
from holdfast.server.addresses import network_of
from holdfast.server.problems import Refused, refuse
from holdfast.storage.tokens import Kind, Role, Token, digest_of, split

FRESH_S = 5.0
"""For how many seconds a token that was looked up counts without a look at the store."""
FAILURES_MAX = 20
"""How many wrong tokens an address may send in `WINDOW_S` seconds."""
WINDOW_S = 60.0
_KEPT_MAX = 10_000

Read = Callable[..., Awaitable[Any]]
"""Calls a function that reads the store, off the event loop."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request: the token's name and role. `by` is what logs record."""

    token_id: str
    name: str
    role: Role
    kind: Kind = "person"
    by: str
    expires_at: float | None = None


class Failures:
    """Counts wrong tokens per address, in windows of `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, address: str, now: float) -> None:
        """Count a wrong token."""
        key = network_of(address)
        began, count = self._counts.pop(key, (now, 0))
        self._counts[key] = (began, count + 1) if now - began < WINDOW_S else (now, 1)
        if len(self._counts) > _KEPT_MAX:
            self._counts.popitem(last=False)

    def seconds_left(self, address: str, now: float) -> float:
        """Return for how long this address may send no other token; 0 if it may."""
        began, count = self._counts.get(network_of(address), (now, 0))
        return max(0.0, began + WINDOW_S - now) if count >= FAILURES_MAX else 0.0


class Access:
    """Knows the tokens of the server: `given` are those of its process, `find` gets those of the store."""

    def __init__(
        self,
        *,
        given: Iterable[Token] = (),
        find: Callable[[str], Token | None] = lambda token_id: None,
        read: Read,
        clock: Clock,
        anonymous: Identity | None = None,
    ) -> None:
        """With `anonymous`, no token is needed, and every request comes from that identity."""
        self.anonymous = anonymous
        self._given = {token.id: token for token in given}
        self._get = find
        self._read = read
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, Token]] = OrderedDict()
        self._right: OrderedDict[bytes, None] = OrderedDict()
        """Digests of the tokens that were right lately."""
        self._failures = Failures()

    async def identify(self, authorizations: list[str], address: str) -> Identity:
        """Return who sends a request with these headers `Authorization`, from this address. Raises `Refused`."""
        if self.anonymous is not None and not authorizations:
            return self.anonymous
        if len(authorizations) != 1:
            told = "The request has no token." if not authorizations else "The request has two tokens."
            raise _unauthorized(told)
        scheme, _, text = authorizations[0].partition(" ")
        now, digest = self._clock.now(), digest_of(text)
        left = 0.0 if digest in self._right else self._failures.seconds_left(address, now)
        if left:
            raise refuse(
                "too-many-failures",
                "This address has sent too many wrong tokens.",
                headers={"Retry-After": str(int(left) + 1)},
            )
        token = await self._find(text) if scheme.lower() == "bearer" else None
        if token is None or not token.is_valid(now):
            self._failures.add(address, now)
            self._right.pop(digest, None)
            raise _unauthorized("The token is not valid: it is unknown, has expired, or was revoked.")
        self._right[digest] = None
        self._right.move_to_end(digest)
        if len(self._right) > _KEPT_MAX:
            self._right.popitem(last=False)
        return identity_of(token)

    async def is_valid(self, who: Identity) -> bool:
        """Return whether the token of an earlier request is still valid, for an answer that takes long."""
        if self.anonymous is not None and who.token_id == self.anonymous.token_id:
            return True
        token = await self._look_up(who.token_id)
        return token is not None and token.is_valid(self._clock.now())

    def forget(self, token_id: str) -> None:
        """Look a token up again at its next request, because it was revoked here."""
        self._known.pop(token_id, None)

    async def _find(self, text: str) -> Token | None:
        parts = split(text)
        if parts is None:
            return None
        token = await self._look_up(parts[0])
        return token if token is not None and token.fits(parts[1]) else None

    async def _look_up(self, token_id: str) -> Token | None:
        if token_id in self._given:
            return self._given[token_id]
        at, known = self._known.get(token_id, (0.0, None))
        if known is not None and 0 <= self._clock.now() - at < FRESH_S:
            return known
        found: Token | None = await self._read(self._get, token_id)
        self._known.pop(token_id, None)
        if found is not None:
            self._known[token_id] = (self._clock.now(), found)
            if len(self._known) > _KEPT_MAX:
                self._known.popitem(last=False)
        return found


def identity_of(token: Token) -> Identity:
    """Return the identity of a request with this token."""
    return Identity(
        token_id=token.id,
        name=token.name,
        role=token.role,
        kind=token.kind,
        by=token.actor,
        expires_at=token.expires_at,
    )


def _unauthorized(detail: str) -> Refused:
    return refuse("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
