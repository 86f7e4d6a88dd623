"""Calls the server as an ASGI application, without a socket: any head can be sent, also one that no client would send."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.storage.tokens import Token, digest_of

SECRET = "0123456789abcdef0123456789abcdef"
SERVER = ("127.0.0.1", 8765)
HOST = "127.0.0.1:8765"


def make_token(role: str = "admin", token_id: str | None = None, **changes: Any) -> Token:
    given = {"name": f"{role}-ada", "role": role, "digest": digest_of(SECRET), "created_at": 0.0}
    return Token(id=token_id or role, **{**given, **changes})


TOKENS = tuple(make_token(role) for role in ("read", "start", "operate", "admin"))


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Caller:
    """Sends requests to an application, with a token of this role unless a test says otherwise."""

    def __init__(self, app: Any, *, role: str = "admin", prefix: str = "") -> None:
        self.app = app
        self.role = role
        self.prefix = prefix

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.send("GET", path, **options)

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = "",
        headers: dict[str, str] | list[tuple[str, str]] | None = None,
        body: bytes = b"",
        server: tuple[str, int | None] | None = SERVER,
        client: str = "127.0.0.1",
        host: str | None = HOST,
    ) -> Reply:
        """Send a request. `token` is the text of a token; empty for that of this caller's role, None for none."""
        raw, _, query = path.partition("?")
        sent = [("host", host)] if host is not None else []
        if token is not None:
            sent.append(("authorization", f"Bearer {token or f'{self.role}.{SECRET}'}"))
        if body:
            sent += [("content-length", str(len(body)))]
        sent += list(headers.items()) if isinstance(headers, dict) else headers or []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.prefix + raw,
            "raw_path": (self.prefix + raw).encode("latin-1"),
            "root_path": self.prefix,
            "query_string": query.encode("latin-1"),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent],
            "client": (client, 1234),
            "server": server,
        }
        return await self._call(scope, body)

    async def send_to(self, path: str, send: Any) -> None:
        """Send a GET request whose answer goes to `send`, until the application has answered."""
        raw, _, query = path.partition("?")
        head = [("host", HOST), ("authorization", f"Bearer {self.role}.{SECRET}")]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": raw,
            "raw_path": raw.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in head],
            "client": ("127.0.0.1", 1234),
            "server": SERVER,
        }
        await self.app(scope, asyncio.Event().wait, send)

    async def _call(self, scope: dict[str, Any], body: bytes) -> Reply:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        over = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        over.set()
        headers = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        assert len(dict(headers)) == len(headers), headers
        return Reply(
            sent[0]["status"], dict(headers), b"".join(message.get("body", b"") for message in sent[1:])
        )
