"""Sends verbs to the server, and lets a worker carry them out."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from app_client import Caller, Reply
from served_flows import opened

import holdfast as hf


class Operator(Caller):
    """Sends requests that ask for something."""

    async def post(
        self, path: str, body: Any = None, *, key: str | None = None, wait: int | None = None, **options: Any
    ) -> Reply:
        """Send a body as JSON, with a key and a time to wait."""
        headers = dict(options.pop("headers", None) or {})
        if body is not None:
            headers["content-type"] = "application/json"
        if key is not None:
            headers["idempotency-key"] = key
        if wait is not None:
            headers["prefer"] = f"wait={wait}"
        sent = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.send("POST", f"/api/v1/{path}", body=sent, headers=headers, **options)

    async def run(self, run_id: str) -> dict[str, Any]:
        """Get a run."""
        found = await self.get(f"/api/v1/runs/{run_id}")
        assert found.status == 200, found.body
        return found.json

    async def events(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Get the events of a kind."""
        return (await self.get(f"/api/v1/runs/{run_id}/events?kind={kind}")).json["events"]


@asynccontextmanager
async def operated(*, works: bool = False, **options: Any):
    """An engine with the application over it, and an operator. With `works`, the engine is a worker as well."""
    async with opened(**options) as (engine, caller):
        working = asyncio.ensure_future(engine.work()) if works else None
        try:
            yield engine, Operator(caller.app, role=caller.role)
        finally:
            if working is not None:
                await engine.stop("test is over", grace=0)
                await working


def operate(test, **options: Any) -> None:
    """Run a test with an engine and an operator."""

    async def main() -> None:
        async with operated(**options) as (engine, operator):
            await test(engine, operator)

    asyncio.run(main())


async def reach(engine: hf.Engine, run_id: str, status: str) -> None:
    """Wait until a run has a status."""
    while engine.store.run(run_id).status != status:  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0.005)
