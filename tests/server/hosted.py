"""A server on a real socket, in a thread of the tests, for any number of stores: each is mounted below a prefix of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from app_client import SECRET, TOKENS

import holdfast as hf
from holdfast.server import connection
from holdfast.server.asgi import asgi
from holdfast.storage.contract import Store

PATIENCE_S = 60
ADMIN = f"admin.{SECRET}"


class Hosting:
    """Serves stores until it is closed."""

    def __init__(self) -> None:
        self._apps: dict[str, Any] = {}
        self._numbers = count(1)
        self._listening = connection.listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.loop = asyncio.new_event_loop()
        self._host = connection.Host(self._call, self._listening)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_until_complete(self._host.host())

    async def _call(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        prefix = "/" + scope["path"].split("/")[1]
        app = self._apps.get(prefix)
        if app is None:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"nothing"})
            return
        await app({**scope, "root_path": prefix}, receive, send)

    def wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    @contextmanager
    def serving(self, store: Store, **options: Any) -> Iterator[str]:
        """Serve a store; yields the URL of its server."""
        engine, prefix = hf.Engine(store, **options), f"/s{next(self._numbers)}"
        self.wait_for(engine.__aenter__())
        app = self._apps[prefix] = asgi(engine, tokens=TOKENS)
        try:
            yield self.url + prefix
        finally:
            del self._apps[prefix]
            self.loop.call_soon_threadsafe(app.stop)
            self.wait_for(engine.__aexit__(None, None, None))

    def mount(self, app: Any) -> str:
        """Serve any application; returns its URL."""
        prefix = f"/a{next(self._numbers)}"
        self._apps[prefix] = app
        return self.url + prefix

    def close(self) -> None:
        self._host.stop()
        self._thread.join(PATIENCE_S)
        self._listening.close()
        self.loop.close()


@contextmanager
def hosting() -> Iterator[Hosting]:
    made = Hosting()
    try:
        yield made
    finally:
        made.close()
