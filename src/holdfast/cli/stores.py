"""How a command opens its store.

Only commands that put something into a store make one that is missing (run, start, worker, unarchive, restore, demo). Every other
command says that there is none, and creates nothing, in a folder as in a database.
Commands that only look use a `Reader` over the open store: no engine, no event loop. Commands that execute or record use an
engine, through the blocking functions, which turn SIGINT and SIGTERM into an orderly stop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.errors import RunNotFound, SettingError, StoreUnusable, did_you_mean
from holdfast.reading.reader import Reader
from holdfast.runtime import blocking, settings
from holdfast.runtime.engine import Engine
from holdfast.storage import urls
from holdfast.storage.contract import Query, Store

T = TypeVar("T")
Use = Callable[[Engine], Awaitable[T]]

_NEAR_RUNS_MAX = 1000


@contextmanager
def reading(store: str | None, *, create: bool = False) -> Iterator[Reader]:
    """A reader over the open store; only `create` makes a store that is missing. Errors about a run name the one that was
    probably meant.
    """
    if not create:
        require(store)
    chosen = settings.resolve({"store": store})
    opened = urls.open_store(chosen.store, blobs=chosen.blobs)
    try:
        with _guided(lambda: opened):
            yield Reader(opened)
    finally:
        opened.close()


def read(store: str | None, use: Callable[[Reader], T], *, create: bool = False) -> T:
    """Read from a store; only `create` makes one that is missing. Ctrl-C leaves at once."""
    with reading(store, create=create) as reader:
        return use(reader)


def watch(store: str | None, use: Use[T], *, create: bool = False) -> T:
    """Follow what happens in a store, with an engine that never holds a run and writes no receipts. Ctrl-C leaves at once."""
    if not create:
        require(store)

    async def main() -> T:
        async with Engine(store, run_base="") as engine:
            with _guided(lambda: engine.store):
                return await use(engine)

    return asyncio.run(main())


def flow_of(store: str | None, run_id: str) -> str:
    """The name of a run's flow."""
    return read(store, lambda reader: reader.store.run(run_id).flow)


def execute(
    store: str | Store | None,
    use: Use[T],
    options: blocking.Options,
    *,
    create: bool = False,
    known: bool = False,
) -> T:
    """Use a store for a command that executes or records; only `create` makes one that is missing. `known`: this command has
    read from it already and need not look again whether it is there, which costs a connection. An open store is used as it is.
    """
    if not create and not known and (store is None or isinstance(store, str)):
        require(store)

    async def main(engine: Engine) -> T:
        with _guided(lambda: engine.store):
            return await use(engine)

    return blocking.with_engine(main, {**options, "store": store})


@contextmanager
def _guided(store: Callable[[], Store]) -> Iterator[None]:
    """An error about a run that does not exist names the one that was probably meant."""
    try:
        yield
    except RunNotFound as missing:
        if "@" in missing.run_id:
            raise _no_place(missing) from None
        opened = store()
        near = did_you_mean(missing.run_id, [row.run_id for row in opened.runs(Query(limit=_NEAR_RUNS_MAX))])
        where = opened.url.removeprefix("sqlite:///")
        hint = f"{near.removeprefix('; ').capitalize()} " if near else ""
        raise RunNotFound(
            missing.run_id, where, hint + "`holdfast runs` lists the runs of a store; --store names another."
        ) from None


def _no_place(missing: RunNotFound) -> RunNotFound:
    """The run exists, and the place in its log does not: say that, instead of doubting the run."""
    run_id, _, seq = missing.run_id.partition("@")
    hint = str(missing).partition(". ")[2].replace(f"The log of run {run_id!r}", "Its log")
    error = RunNotFound(missing.run_id)
    error.args = (
        f"run {run_id!r} has no event {seq}. {hint} `holdfast checkpoints {run_id}` lists its checkpoints.",
    )
    return error


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
    empty = ": the file is empty" if os.path.exists(path) else ""
    raise StoreUnusable(
        f"there is no store at {os.path.abspath(path)}{empty}. `holdfast run` makes one; if there is one elsewhere, name "
        "it with --store or HOLDFAST_STORE, or go to the folder that has it."
    )


def require_shared(store: str | None, verb: str) -> None:
    """Refuse a store that only this process can open, for a command that shares its work with other processes."""
    if urls.is_memory(settings.resolve({"store": store}).store):
        raise SettingError(
            f"{verb} cannot use a memory:// store: only this process can see it, so that no run would ever get from "
            "`start` to a worker. Name a store that both can open: --store runs.db, or postgresql://…; "
            "`holdfast run` starts a run and executes it in one process, also in memory."
        )
