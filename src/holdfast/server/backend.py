"""`Backend`: what the handlers of the server share: the engine, threads for reading, and results that are kept for a while."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.errors import SettingError
from holdfast.reading.diagnosis import Diagnosis
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.engine import Engine
from holdfast.server.access import Access, Identity
from holdfast.server.clerk import Clerk
from holdfast.server.keys import UsedKeys
from holdfast.server.open_streams import OpenStreams
from holdfast.server.problems import refuse
from holdfast.storage.contract import Store
from holdfast.upkeep import doctor
from holdfast.upkeep.doctor import Check

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
PLANS_AT_ONCE = 2
"""How many plans are checked at the same time: one with 10,000 tasks takes seconds, and other requests need threads, too."""
"""How many reads may be made at the same time: a slow one does not hold up the others."""
LOOKS = 2
"""How many of these reads may be made for clients that follow pages of runs."""
KEPT_BYTES = 32 * 1024 * 1024
EXAMINED_S = 60.0
"""For how many seconds the result of an examination of the store is shown before it is examined again."""


class Counts:
    """Counts the answers of the server, by method, path in the table and status. Raw paths are never kept."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer, and the time that it took."""
        self.answers[method, path, status] += 1
        self.seconds[method, path] += seconds  # type: ignore[assignment]


class EncodedAnswers:
    """Caches the latest encoded answer for each resource, up to a total size; the least recently used are evicted."""

    def __init__(self, bytes_max: int = KEPT_BYTES) -> None:
        self._bodies: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.size = 0

    def get(self, name: Hashable, version: Hashable) -> bytes | None:
        """Return the answer for a version of a thing, such as a run at a seq."""
        with self._lock:
            known = self._bodies.get(name)
            if known is None or known[0] != version:
                return None
            self._bodies.move_to_end(name)
            return known[1]

    def put(self, name: Hashable, version: Hashable, body: bytes) -> None:
        """Keep an answer instead of those for other versions. A very large one is not kept."""
        with self._lock:
            self.size -= len(self._bodies.pop(name, (0, b""))[1])
            if len(body) > self._bytes_max // 8:
                return
            self._bodies[name] = (version, body)
            self.size += len(body)
            while self.size > self._bytes_max:
                _, (_, dropped) = self._bodies.popitem(last=False)
                self.size -= len(dropped)


class Examined(NamedTuple):
    """What an examination of the store found."""

    at: float
    problems: list[Diagnosis]
    checks: list[Check]
    store_at: float
    """The store's time at which it began."""


class Backend:
    """The engine of the server, and what its handlers share."""

    def __init__(
        self, engine: Engine, *, commands: CommandLine | None = None, clock: Clock | None = None
    ) -> None:
        self.engine = engine
        self.clerk = Clerk(engine)
        """Records what callers ask for."""
        self.used_keys = UsedKeys()
        self.clock = clock or SystemClock()
        self.commands = commands or CommandLine()
        """How the commands are typed that the server suggests."""
        self.kept = EncodedAnswers()
        self.document = b""
        """The description of the API (OpenAPI)."""
        self.public_urls: tuple[str, ...] = ()
        self.features: tuple[str, ...] = ()
        self.is_stopping = False
        self.counts = Counts()
        self.ready = (0.0, False)
        """When `/readyz` last looked at the store, and whether that succeeded."""
        self.access: Access | None = None
        self.streams = OpenStreams(self.clock, self._is_valid)
        self.channels: dict[Hashable, Any] = {}
        """What the open streams follow -> the news that those with the same interest share."""
        self.looks = asyncio.Semaphore(LOOKS)
        self.plan_turns = asyncio.Semaphore(PLANS_AT_ONCE)
        self._threads: ThreadPoolExecutor | None = None
        self._examined: Examined | None = None
        self._examining: asyncio.Lock | None = None
        self._soon: asyncio.Future[Any] | None = None

    @property
    def store(self) -> Store:
        """The store of the engine. Raises `Refused` if the engine is not open."""
        try:
            return self.engine.store
        except SettingError:
            raise refuse(
                "closed", "The engine of this server is not open: it is starting or stopping."
            ) from None

    @property
    def reader(self) -> Reader:
        """A reader that returns states as plain data, also if the flow is known."""
        return Reader(self.store)

    async def read(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that reads the store, off the event loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-server")
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **options))

    async def _is_valid(self, who: Identity) -> bool:
        return self.access is None or await self.access.is_valid(who)

    async def require_valid(self, who: Identity) -> None:
        """Raise `Refused` if the token of a request that is answered slowly is not valid any more."""
        if not await self._is_valid(who):
            raise refuse("unauthorized", "The token has expired, or was revoked, while the request waited.")

    async def examine(self, *, again: bool) -> Examined:
        """Return when the store was examined, and what was found. It is examined if that was long ago, or with `again`; otherwise
        the problems of runs that have moved since are judged again.
        """
        if self._examining is None:
            self._examining = asyncio.Lock()
        asked_at = self.clock.now()
        async with self._examining:  # those who ask meanwhile get the same result
            known = self._examined
            if known is None or (known.at < asked_at if again else asked_at - known.at > EXAMINED_S):
                self._examined = known = await self.read(self._examine)
            else:
                self._examined = known = await self.read(self._look_again, known)
        return known

    @property
    def examined(self) -> list[Diagnosis] | None:
        """What the last examination of the store found; None if there was none."""
        return None if self._examined is None else self._examined.problems

    def examine_soon(self) -> None:
        """Examine the store in the background, if that was long ago."""
        is_known = self._examined is not None and self.clock.now() - self._examined.at <= EXAMINED_S
        if not is_known and (self._soon is None or self._soon.done()):
            self._soon = asyncio.ensure_future(self.examine(again=False))
            self._soon.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _examine(self) -> Examined:
        now, store_at, flows = self.clock.now(), self.store.now(), self.engine.flows or None
        checks = list(doctor.checks(self.store.upkeep.facts(), now))
        problems = doctor.examine(self.store, flows, now, self.commands, check=False)
        sample = doctor.verify_sample(self.store, self.clock.now, self.commands, known=problems)
        return Examined(now, [*problems, *sample.damaged], [*checks, sample.check()], store_at)

    def _look_again(self, known: Examined) -> Examined:
        flows = self.engine.flows or None
        problems = doctor.look_again(self.store, flows, known.problems, known.store_at, self.commands)
        return known._replace(problems=problems)

    def close(self) -> None:
        """Let the threads end, and the handlers that wait."""
        self.is_stopping = True
        self.clerk.close()
        self.streams.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
