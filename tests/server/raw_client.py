"""Sends raw bytes to a server on loopback: also what no client would send."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from app_client import SECRET, TOKENS
from served_flows import flow, run_order

import holdfast as hf
from holdfast.server import connection
from holdfast.server.asgi import asgi
from holdfast.server.table import Table
from holdfast.storage.memory.store import MemoryStore

TOKEN = f"admin.{SECRET}"


@asynccontextmanager
async def hosted(table: Table | None = None):
    """An application with one run, on a free port of the loopback address."""
    async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
        await run_order(engine, "ok")
        app = asgi(engine, tokens=TOKENS, table=table)
        listening = connection.listen("127.0.0.1", 0)
        host = connection.Host(app, listening)
        serving = asyncio.ensure_future(host.host())
        try:
            yield listening.getsockname()[1]
        finally:
            app.stop()
            host.stop()
            await serving


async def say(port: int, *parts: bytes, rest_s: float = 0.0) -> bytes:
    """Send bytes, and return everything that comes back until the server closes the connection, or says no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(rest_s)
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def request(
    target: str = "/api/v1/meta",
    *more: str,
    method: str = "GET",
    host: str | None = "127.0.0.1:PORT",
    token: str | None = TOKEN,
    body: bytes = b"",
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"Authorization: Bearer {token}"] if token is not None else []
    lines += ["Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
