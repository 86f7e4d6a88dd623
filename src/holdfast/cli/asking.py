"""Makes the requests of a command whose store is on a server: with `hf.Client`, called as commands call an engine.

The server records the name of the token as the author of a request. `--by NAME` adds for whom it is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from holdfast.cli import options
from holdfast.errors import SettingError
from holdfast.reading.reader import Reader
from holdfast.runtime import blocking
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Store

T = TypeVar("T")


def ask(store: Store, use: Callable[[Engine], Awaitable[T]], given: blocking.Options) -> T:
    """Call a function with what stands in for an engine: its verbs make requests to the server. `given` are the options that the
    command has for an engine.
    """
    # Here, because they need a package that not everybody has.
    from holdfast.server.blocking_client import BlockingClient
    from holdfast.server.client import Client

    if given.get("run_base"):
        raise SettingError(
            "--run-base names a folder on the machine that executes the run; give it to `holdfast worker` there"
        )

    async def use_client(client: Client) -> T:
        return await use(cast(Engine, RemoteEngine(client, store, given)))

    return BlockingClient(store.url).call(use_client)


class RemoteEngine:
    """The verbs of an engine that make requests, over HTTP. What is read comes from the store."""

    def __init__(self, client: Any, store: Store, given: blocking.Options) -> None:
        self._given = given
        self.store = store
        self.reader = Reader(store)
        self.flow_files: dict[str, str] = {}
        self._client = client

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._call, verb)

    async def preview(self, *args: Any, **options: Any) -> Any:
        """Preview a verb here: that only reads, and the commands that it suggests are typed here."""
        async with Engine(self.store, flows=self._given.get("flows", ()), run_base="") as engine:
            return await engine.preview(*args, **options)

    async def prune(self, *args: Any, **options: Any) -> None:
        """Say where to prune: the command also archives, and removes what no run refers to."""
        await self._impossible()

    async def _call(
        self,
        verb: str,
        *args: Any,
        by: str | None = None,
        execute: bool = False,
        validate: Any = None,
        **named: Any,
    ) -> Any:
        """Make a request. `execute` and `validate` are for a process that executes runs; a command refuses them before."""
        found = getattr(self._client, verb, self._impossible)
        if by is not None and by != options.resolve_actor(None):
            named["by"] = by
        return await found(*args, **named)

    async def _impossible(self, *args: Any, **named: Any) -> None:
        """Say where a verb is possible that is not a request."""
        self.store.append([])
