"""The way of a command to its store.

Only what puts something into a store makes one that is not there (run, start, worker, unarchive, restore, demo). Every other
command says that there is none, and leaves nothing behind, in a folder as in a database.
Commands that only read open an engine that never holds a run; those that execute go through the blocking door, which turns
SIGINT and SIGTERM into an orderly stop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import RunNotFound, SettingError, StoreUnusable, did_you_mean
from holdfast.runtime import blocking, settings
from holdfast.runtime.engine import Engine
from holdfast.storage import urls
from holdfast.storage.contract import Query

T = TypeVar("T")
Use = Callable[[Engine], Awaitable[T]]

_NEAR_RUNS_MAX = 1000


def read(store: str | None, use: Use[T], *, create: bool = False) -> T:
    """Look at a store; only `create` makes one that is not there. Ctrl-C leaves at once."""
    if not create:
        require(store)

    async def main() -> T:
        async with Engine(store, run_base="") as engine:  # who only looks writes no receipts
            return await _guided(engine, use)

    return asyncio.run(main())


def flow_of(store: str | None, run_id: str) -> str:
    """What the flow of a run is called."""

    async def use(engine: Engine) -> str:
        return engine.store.run(run_id).flow

    return read(store, use)


def execute(
    store: str | None, use: Use[T], options: blocking.Options, *, create: bool = False, known: bool = False
) -> T:
    """Use a store for what executes or records; only `create` makes one that is not there. `known`: this command has found
    something in it already, and need not ask again, which costs a connection.
    """
    if not create and not known:
        require(store)
    return blocking.with_engine(lambda engine: _guided(engine, use), {**options, "store": store})


async def _guided(engine: Engine, use: Use[T]) -> T:
    """Use the engine; an id that is not there is told with the one that was probably meant."""
    try:
        return await use(engine)
    except RunNotFound as missing:
        if "@" in missing.run_id:
            raise _no_place(missing) from None
        near = did_you_mean(
            missing.run_id, [row.run_id for row in engine.store.runs(Query(limit=_NEAR_RUNS_MAX))]
        )
        where = engine.store.url.removeprefix("sqlite:///")
        hint = f"{near.removeprefix('; ').capitalize()} " if near else ""
        raise RunNotFound(
            missing.run_id, where, hint + "`holdfast runs` lists the runs of a store; --store names another."
        ) from None


def _no_place(missing: RunNotFound) -> RunNotFound:
    """The run is there, and the place in its log is not: say that, instead of doubting the run."""
    run_id, _, seq = missing.run_id.partition("@")
    hint = str(missing).partition(". ")[2].replace(f"The log of run {run_id!r}", "Its log")
    told = RunNotFound(missing.run_id)
    told.args = (
        f"run {run_id!r} has no event {seq}. {hint} `holdfast checkpoints {run_id}` lists its checkpoints.",
    )
    return told


def require(store: str | None) -> None:
    """Refuse a store that would have to be made."""
    url = settings.resolve({"store": store}).store
    if urls.is_there(url):
        return
    path = os.path.expanduser(urls.sqlite_path(url) or "")
    if not path:
        raise StoreUnusable(
            f"there is no store at {urls.shown(url)}. `holdfast run` makes one; if there is one elsewhere, name its database, "
            "and its schema with ?schema=…, with --store or HOLDFAST_STORE."
        )
    told = ": the file is empty" if os.path.exists(path) else ""
    raise StoreUnusable(
        f"there is no store at {os.path.abspath(path)}{told}. `holdfast run` makes one; if there is one elsewhere, name "
        "it with --store or HOLDFAST_STORE, or go to the folder that has it."
    )


def require_shared(store: str | None, verb: str) -> None:
    """Refuse a store that nobody but this process would ever see, where the work is divided among several."""
    if urls.is_memory(settings.resolve({"store": store}).store):
        raise SettingError(
            f"{verb} cannot use a memory:// store: it is seen by this process alone and ends with it, so that no run would ever "
            "get from who starts it to a worker. Name one that both can open: --store runs.db, or postgresql://…; "
            "`holdfast run` starts a run and executes it in one process, also in memory."
        )
