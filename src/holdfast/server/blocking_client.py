"""`BlockingClient`: the verbs of `Client` for programs without an event loop. Each call opens a connection of its own, unless the
client is used in a `with` block: then one client stays open, on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

from holdfast.core.graph import Flow
from holdfast.errors import SettingError
from holdfast.runtime.blocking import Blocking, blocking, wait_for
from holdfast.server.client import Client

T = TypeVar("T")


class BlockingClient(Blocking[Client]):
    """The verbs of `Client` for blocking callers: `hf.BlockingClient(url, token).get("r1")`. It may be used from several threads,
    and inside a running event loop (a notebook). Each call opens a connection of its own; in a `with` block, the calls share
    connections.
    """

    start = blocking(Client.start)
    run = blocking(Client.run)
    fork = blocking(Client.fork)
    resume = blocking(Client.resume)
    retry = blocking(Client.retry)
    skip = blocking(Client.skip)
    cancel = blocking(Client.cancel)
    pause = blocking(Client.pause)
    edit = blocking(Client.edit)
    answer = blocking(Client.answer)
    signal = blocking(Client.signal)
    prune = blocking(Client.prune)
    delete = blocking(Client.delete)
    preview = blocking(Client.preview)
    requests = blocking(Client.requests)
    get = blocking(Client.get)
    wait = blocking(Client.wait)
    runs = blocking(Client.runs)
    state = blocking(Client.state)
    events = blocking(Client.events)
    checkpoints = blocking(Client.checkpoints)
    check_plan = blocking(Client.check_plan)
    plan_schema = blocking(Client.plan_schema)
    plan = blocking(Client.plan)
    ledger = blocking(Client.ledger)
    questions = blocking(Client.questions)

    def __init__(self, url: str, token: str | None = None, *, flows: Iterable[Flow[Any]] = ()) -> None:
        self._flows = list(flows)
        self._token = token
        self.url = Client(url, token).url  # raises for a wrong URL or token now, not at the first verb
        self._open: _OpenClient | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self._refuse_if_closed()
        if self._open is not None:
            raise SettingError("this client is open already; make another one with hf.BlockingClient(…)")
        self._open = _OpenClient(self._new())
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Closing twice is harmless."""
        self._is_closed = True
        if self._open is not None:
            self._open.close()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise _closed()

    def _new(self) -> Client:
        return Client(self.url, self._token, flows=self._flows)

    def call(self, use: Callable[[Client], Awaitable[T]]) -> T:
        """Await a function of an open client, and return its result: for several verbs over one connection."""
        return self._use(use)

    def _use(self, use: Callable[[Client], Awaitable[T]]) -> T:
        self._refuse_if_closed()
        if self._open is not None:
            return self._open.call(use)
        begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

        async def use_and_remember(client: Client) -> T:
            begun.append((asyncio.get_running_loop(), asyncio.current_task()))
            return await use(client)

        def stop() -> None:
            for loop, task in begun:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)

        return wait_for(use_and_remember, self._new(), stop=stop, pass_on=lambda: None)


class _OpenClient:
    """A client that stays open, on an event loop in a thread of its own. Any thread may call it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = asyncio.Event()
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._stay_open(),), name="holdfast-client", daemon=True
        )
        self._thread.start()

    async def _stay_open(self) -> None:
        async with self._client:
            self._started.set_result(asyncio.get_running_loop())
            await self._over.wait()

    def call(self, use: Callable[[Client], Awaitable[T]]) -> T:
        async def called() -> T:
            return await use(self._client)

        try:
            asked = asyncio.run_coroutine_threadsafe(called(), self._started.result())
            try:
                return asked.result()
            except BaseException:
                asked.cancel()  # the wait for it was interrupted, by Ctrl-C for example
                raise
        except CancelledError:  # another thread has closed the client meanwhile
            raise _closed() from None

    def close(self) -> None:
        if self._thread.is_alive():
            self._started.result().call_soon_threadsafe(self._over.set)
            self._thread.join()


def _closed() -> SettingError:
    return SettingError("this client is closed; make another one with hf.BlockingClient(…)")
