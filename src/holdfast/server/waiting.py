"""Requests that wait: until something has happened, the time is over, the client has gone, the server stops, or the token is not
valid any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.runtime.clock import sleep
from holdfast.server.calls import HttpCall

T = TypeVar("T")

WAIT_S_MAX = 60.0
POLL_S = 0.2
CHECK_S = 2.0
"""How often a request that waits checks that its token is still valid. What was looked up counts for `access.FRESH_S` seconds;
together this is less than the 10 seconds within which a revoked token must be refused.
"""


async def until(
    call: HttpCall[Any, Any], seconds: float, look: Callable[[], tuple[bool, T]]
) -> tuple[bool, T]:
    """Call `look` off the event loop, again and again, until it returns true and a value, or until the request may not wait
    any longer. Returns what it returned last. Raises `Refused` if the token expires or is revoked meanwhile.
    """
    backend = call.backend
    checked_at = backend.clock.now()
    ends_at = checked_at + seconds
    gone = asyncio.ensure_future(call.gone())
    try:
        while True:
            found, value = await backend.read(look)
            now = backend.clock.now()
            if found or now >= ends_at or backend.is_stopping or gone.done():
                return found, value
            if now - checked_at >= CHECK_S:
                checked_at = now
                await backend.require_valid(call.who)
            await sleep(backend.clock, min(POLL_S, ends_at - now))
    finally:
        gone.cancel()
