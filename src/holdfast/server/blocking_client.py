"""`BlockingClient`: the verbs of `Client` for programs without an event loop. Each call opens a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from holdfast.core.graph import Flow
from holdfast.runtime.blocking import Blocking, blocking, wait_for
from holdfast.server.client import Client

T = TypeVar("T")


class BlockingClient(Blocking[Client]):
    """The verbs of `Client` for blocking callers: `hf.BlockingClient(url, token).get("r1")`. It may be used from several threads,
    and inside a running event loop (a notebook). Each call opens a connection of its own.
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

    def call(self, use: Callable[[Client], Awaitable[T]]) -> T:
        """Await a function of an open client, and return its result: for several verbs over one connection."""
        return self._use(use)

    def _use(self, use: Callable[[Client], Awaitable[T]]) -> T:
        begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

        async def use_and_remember(client: Client) -> T:
            begun.append((asyncio.get_running_loop(), asyncio.current_task()))
            return await use(client)

        def stop() -> None:
            for loop, task in begun:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)

        opened = Client(self.url, self._token, flows=self._flows)
        return wait_for(use_and_remember, opened, stop=stop, pass_on=lambda: None)
