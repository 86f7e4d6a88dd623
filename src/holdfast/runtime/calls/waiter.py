"""`Waiter`: a coroutine of a node that waits in memory."""

from __future__ import annotations

import asyncio

from holdfast.runtime.clock import Timer


class Waiter:
    """A coroutine of the node that waits in memory."""

    def __init__(self, began_at: float) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.current_task()
        self.began_at = began_at
        self.timer: Timer | None = None
