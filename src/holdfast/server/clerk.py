"""`Clerk`: the engine with which the server records what its callers ask for. It starts runs and leaves requests; it executes no
node and is not a worker.

An engine writes to its store on its event loop. That of the server must not block, because one slow write would delay all other
requests, so the clerk has an event loop in a thread of its own. The runs that it records are those of the engine that the server
was given: with the same store, flows and settings.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.errors import SettingError
from holdfast.runtime.engine import Engine
from holdfast.server.problems import refuse

T = TypeVar("T")
Use = Callable[[Engine], Awaitable[T]]


@dataclass
class _Turn:
    """Whose turn it is, of the calls with one name."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class Clerk:
    """Uses an engine of its own, in a thread of its own, which starts with the first call."""

    def __init__(self, engine: Engine) -> None:
        self._given = engine
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop: Future[asyncio.AbstractEventLoop] | None = None
        self._thread: threading.Thread | None = None
        self._over: asyncio.Event | None = None
        self._turns: dict[str, _Turn] = {}

    async def use(self, call: Use[T]) -> T:
        """Call a function with the engine, in the thread of the clerk, and return its result."""
        loop = await asyncio.wrap_future(self._begin())
        asked = asyncio.run_coroutine_threadsafe(self._call(call), loop)
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            if self._is_closed:  # it has ended before the call
                raise _closed() from None
            raise

    async def use_in_turn(self, name: str | None, call: Use[T]) -> T:
        """Like `use`, but calls with the same name are made one after the other."""
        if name is None:
            return await self.use(call)

        async def in_turn(engine: Engine) -> T:
            turn = self._turns.setdefault(name, _Turn())
            turn.callers += 1
            try:
                async with turn.lock:
                    return await call(engine)
            finally:
                turn.callers -= 1
                if not turn.callers:  # a lock that is free may have been given to the next caller already
                    del self._turns[name]

        return await self.use(in_turn)

    async def _call(self, call: Use[T]) -> T:
        return await call(self._own)

    def _begin(self) -> Future[asyncio.AbstractEventLoop]:
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._loop is None:
                self._own = self._make_engine()
                self._loop = Future()
                self._thread = threading.Thread(target=self._run, name="holdfast-clerk", daemon=True)
                self._thread.start()
            return self._loop

    def _make_engine(self) -> Engine:
        given, settings = self._given, self._given.settings
        try:
            store = given.store
        except SettingError:  # the engine is not open
            raise _closed() from None
        engine = Engine(
            store,
            grace=0,
            lease_ttl=settings.lease_ttl,
            durability=settings.durability,
            blob_over=settings.blob_over,
            log_limit=settings.log_limit,
            run_base=settings.run_base or None,
        )
        engine.flows, engine.flow_files, engine.accepts = given.flows, given.flow_files, given.accepts
        return engine

    def _run(self) -> None:
        started = self._loop
        assert started is not None

        async def main() -> None:
            self._over = asyncio.Event()
            async with self._own:
                started.set_result(asyncio.get_running_loop())
                await self._over.wait()

        try:
            asyncio.run(main())
        except Exception as fault:  # noqa: BLE001 - raised for the caller
            if not started.done():
                started.set_exception(fault)
                with self._lock:
                    self._loop = None

    def close(self) -> None:
        """End the engine and its thread."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and loop.done() and loop.exception() is None:
            assert self._over is not None
            loop.result().call_soon_threadsafe(self._over.set)
            thread.join(5.0)


def _closed() -> Exception:
    return refuse("closed", "The engine of this server is not open: it is starting or stopping.")
