"""Lets a request through, or refuses it, before anything else looks at it: deny by default.

The guard knows no route. It gets the exact raw paths that need no token, and every other path needs one, whether it exists or
not. It checks, for every method: the name under which the server is called (`Host`, exactly one), the site that sends the request
(`Origin`, `Sec-Fetch-Site`), the token, and the size and type of the body. Roles are checked after routing, because they are in
the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from holdfast.runtime.clock import Clock
from holdfast.server.access import Access, Identity
from holdfast.server.addresses import Addresses
from holdfast.server.problems import refuse
from holdfast.server.rates import Rates
from holdfast.storage.tokens import Role, allows

BODY_BYTES_MAX = 4 * 1024 * 1024
BODY_SECONDS_MAX = 30.0
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer, unless the answer has another value for one of them."""

SAFE_METHODS = ("GET", "HEAD")
_ONCE = ("idempotency-key", "if-match", "if-none-match", "last-event-id", "prefer", "traceparent")
"""Headers that change what a request means. They may occur once: a handler does not see a header that occurs twice."""
_OWN_SITES = ("same-origin", "none")
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_JSON = re.compile(r'application/json(?:\s*;\s*charset="?utf-8"?)?', re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_FOR = re.compile(r"[\w.@+-](?:[\w .@+-]{0,62}[\w.@+-])?")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first part of a request: everything but its body."""

    method: str
    path: str
    """The raw path, as it was sent, below the prefix under which the application is mounted."""
    headers: dict[str, list[str]]
    """Lower-case name -> the values of all headers of that name."""
    client: str
    """The address that sends the request; empty if that is unknown."""
    server: tuple[str, int | None] | None
    """The address at which the request arrived."""

    def one(self, name: str) -> str | None:
        """Return the value of a header; None if there is none. Raises `Refused` if the header occurs twice."""
        found = self.headers.get(name, [])
        if len(found) > 1:
            raise refuse("bad-request", f"The request has the header {name!r} twice.")
        return found[0] if found else None


class Guard:
    """Decides which requests are let through. `open_paths` are the exact raw paths that need no token."""

    def __init__(
        self, access: Access, addresses: Addresses, open_paths: Collection[str], rates: Rates, clock: Clock
    ) -> None:
        self._rates = rates
        self._clock = clock
        self._access = access
        self._addresses = addresses
        self._open_paths = frozenset(open_paths)

    async def admit(self, head: RequestHead) -> Identity | None:
        """Return who sends a request; None if its path needs no token. Raises `Refused`."""
        self._check_host(head)
        is_open = head.path in self._open_paths and head.method in SAFE_METHODS
        self._check_site(head, is_open=is_open)
        _check_body(head)
        for name in _ONCE:
            head.one(name)
        if is_open:
            return None
        if self._access.anonymous is not None and any(name in head.headers for name in _PROXY_HEADERS):
            raise refuse(
                "forbidden",
                "The request comes through a proxy, and this server was started with --no-token.",
                remedy="Start the server without --no-token, so that requests through the proxy need a token.",
            )
        who = await self._access.identify(head.headers.get("authorization", []), head.client)
        self._rates.take(who.token_id, self._clock.now())
        behalf = head.one("holdfast-for")
        if behalf is None:
            return who
        if not _FOR.fullmatch(behalf):
            raise refuse(
                "bad-request",
                "The header `Holdfast-For` is not a name: use up to 64 letters, digits, spaces and . _ @ + -",
            )
        return msgspec.structs.replace(who, by=f"{who.by}/{behalf}")

    def _check_host(self, head: RequestHead) -> None:
        hosts = head.headers.get("host", [])
        if len(hosts) != 1:
            raise refuse("bad-request", "The request must have exactly one header `Host`.")
        if not self._addresses.is_host(hosts[0], head.server):
            raise refuse("wrong-host", "The header `Host` does not name this server.")

    def _check_site(self, head: RequestHead, *, is_open: bool) -> None:
        origin = head.one("origin")
        if origin is not None and not self._addresses.is_origin(origin, head.server):
            raise refuse("wrong-origin", "The header `Origin` names another site.")
        site = head.one("sec-fetch-site")
        # A link on another site may lead to an open path; that site cannot read what is shown.
        if site is not None and site not in _OWN_SITES and not is_open:
            raise refuse(
                "wrong-origin", "The header `Sec-Fetch-Site` says that another site sends the request."
            )


def check_role(who: Identity, needed: Role) -> None:
    """Raise `Refused` if the role of a token is too low."""
    if not allows(who.role, needed):
        raise refuse(
            "forbidden",
            f"This needs the role {needed!r}, and the token of {who.name!r} has the role {who.role!r}.",
            remedy=f"Use another token: holdfast token create NAME --role {needed}",
        )


def _check_body(head: RequestHead) -> None:
    """Refuse a body that is too large, or that is not JSON, before any of it is read."""
    length, coded = head.one("content-length"), head.one("transfer-encoding")
    if length is not None and (coded is not None or not _LENGTH.fullmatch(length)):
        raise refuse("bad-request", "The header `Content-Length` is not valid here.")
    if (
        coded is not None and coded.lower() != "chunked"
    ):  # a proxy before this server might read the body in another way
        raise refuse("bad-request", "The header `Transfer-Encoding` must be `chunked`.")
    has_body = coded is not None or (length is not None and int(length) > 0)
    if has_body and head.method in SAFE_METHODS:
        raise refuse("bad-request", f"A {head.method} request has no body.")
    if length is not None and int(length) > BODY_BYTES_MAX:
        raise too_large()
    if head.one("content-encoding") not in (None, "identity"):
        raise refuse(
            "wrong-type", "The body is compressed.", remedy="Send the body without `Content-Encoding`."
        )
    if has_body and not _JSON.fullmatch((head.one("content-type") or "").strip()):
        raise refuse("wrong-type", "The body is not declared as JSON.")


def too_large() -> Exception:
    """Return the exception for a body that is too large."""
    return refuse("too-large", f"The body is larger than {BODY_BYTES_MAX:,} bytes.")
