"""Opens the store of a command.

Only run, start, worker, unarchive, restore and demo create a store that does not exist. Every other command reports that there is
no store, and creates nothing, neither a file nor a schema.
Commands that only read use a `Reader` over the open store, without an engine or an event loop. Commands that execute or record
use an engine through the blocking functions, which turn SIGINT and SIGTERM into an orderly stop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.cli import asking, program
from holdfast.cli import options as shared
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
def opened(store: str | None, *, create: bool = False) -> Iterator[Store]:
    """Open a store for a block. A store that does not exist is created only with `create`, and without it a store that this user
    may not write is opened all the same, to read it. If the block asks for an unknown run, the error suggests a similar run id.
    """
    if not create:
        require(store)
    chosen = settings.resolve({"store": store})
    made = urls.open_store(chosen.store, blobs=chosen.blobs, reads=not create)
    try:
        with _guided(lambda: made):
            yield made
    finally:
        made.close()


@contextmanager
def reading(store: str | None, *, create: bool = False) -> Iterator[Reader]:
    """Open a store for a block, as `opened` does, and yield a reader for it."""
    with opened(store, create=create) as made:
        yield Reader(made)


def read(store: str | None, use: Callable[[Reader], T], *, create: bool = False) -> T:
    """Call a function with a reader of a store. The store is created only with `create`. Ctrl-C exits at once."""
    with reading(store, create=create) as reader:
        return use(reader)


def watch(store: str | None, use: Use[T], *, create: bool = False) -> T:
    """Call a function with an engine that follows runs, but never holds one and writes no receipts. Ctrl-C exits at once."""

    async def main(made: Store) -> T:
        async with Engine(made, run_base="") as engine:
            return await use(engine)

    with opened(store, create=create) as made:
        return asyncio.run(main(made))


def flow_of(store: str | None, run_id: str) -> str:
    """Return the name of the flow of a run."""
    return read(store, lambda reader: reader.store.run(run_id).flow)


def read_update(given: str | None, run_id: str, store: str | None) -> Any:
    """Return the value of `--update`: fields of the state as a JSON object; in the run of a plan, the output of the node, which
    may be any JSON. None if the option was not given.
    """
    value = shared.read_json(given, "--update")
    if value is None or isinstance(value, dict) or read(store, lambda reader: has_plan(reader, run_id)):
        return value
    return shared.read_fields(given, "--update")


def has_plan(reader: Reader, run_id: str) -> bool:
    """Return whether a run follows a plan, and not a graph in code."""
    return bool(reader.definition(reader.store.run(run_id)).plan)


def execute(
    store: str | Store | None,
    use: Use[T],
    options: blocking.Options,
    *,
    create: bool = False,
    known: bool = False,
) -> T:
    """Call a function with an engine, for a command that executes a run or records something. The store is created only with
    `create`. If `known` is true, it is not checked whether the store exists, which saves a connection. `store` may also be a
    store that is open already.
    """
    if is_server(store):
        if store is None or isinstance(store, str):
            with opened(store) as made:
                return execute(made, use, options)
        with _guided(lambda: store):
            return asking.ask(store, use, options)
    if not create and not known and (store is None or isinstance(store, str)):
        require(store)

    async def main(engine: Engine) -> T:
        engine.os_signals.announces = False  # the display reports signals
        program.freeze()
        with _guided(lambda: engine.store):
            return await use(engine)

    return blocking.with_engine(main, {**options, "store": store})


@contextmanager
def _guided(store: Callable[[], Store]) -> Iterator[None]:
    """Add the most similar run id to an error about a run that does not exist."""
    try:
        yield
    except RunNotFound as missing:
        if "@" in missing.run_id:
            raise _no_place(missing) from None
        searched = store()
        near = did_you_mean(
            missing.run_id, [row.run_id for row in searched.runs(Query(limit=_NEAR_RUNS_MAX))]
        )
        where = searched.url.removeprefix("sqlite:///")
        hint = f"{near.removeprefix('; ').capitalize()} " if near else ""
        raise RunNotFound(
            missing.run_id, where, hint + "`holdfast runs` lists its runs; --store names another store."
        ) from None


def _no_place(missing: RunNotFound) -> RunNotFound:
    """Return the error for RUN@SEQ if the run exists but its log has no such event."""
    run_id, _, seq = missing.run_id.partition("@")
    hint = str(missing).partition(". ")[2].replace(f"The log of run {run_id!r}", "Its log")
    error = RunNotFound(missing.run_id)
    error.args = (
        f"run {run_id!r} has no event {seq}. {hint} `holdfast checkpoints {run_id}` lists its checkpoints.",
    )
    return error


def require(store: str | None) -> None:
    """Raise `StoreUnusable` if the store does not exist."""
    url = settings.resolve({"store": store}).store
    if urls.is_there(url):
        return
    path = os.path.expanduser(urls.sqlite_path(url) or "")
    if not path:
        raise StoreUnusable(
            f"there is no store at {urls.shown(url)}. `holdfast run FILE.py` creates one. If your store is elsewhere, name its "
            "database (and its schema, with ?schema=…) in --store or HOLDFAST_STORE."
        )
    try:
        os.stat(path)
    except PermissionError:
        raise StoreUnusable(
            f"this user may not look into {os.path.dirname(os.path.abspath(path))}, where the store is expected. Run the command "
            "as the user that owns the store, or allow this user to read that folder."
        ) from None
    except OSError:
        pass
    empty = ": the file is empty" if os.path.exists(path) else ""
    raise StoreUnusable(
        f"there is no store at {os.path.abspath(path)}{empty}. `holdfast run FILE.py` creates one. If your store is elsewhere, "
        "name it with --store or HOLDFAST_STORE, or change to its folder."
    )


def is_server(store: str | Store | None) -> bool:
    """Return whether a store is on a server: it can be read and asked, and workers over there execute its runs."""
    if store is None or isinstance(store, str):
        return urls.is_server(settings.resolve({"store": store}).store)
    return urls.is_server(store.url)


def require_here(store: str | None, verb: str, way_out: str) -> None:
    """Raise `SettingError` for a store on a server, which a command that executes runs cannot use."""
    if is_server(store):
        url = urls.shown(settings.resolve({"store": store}).store)
        raise SettingError(f"{verb} executes runs in this process, and {url} is a server. {way_out}")


def require_shared(store: str | None, verb: str) -> None:
    """Raise `SettingError` for a memory:// store, which a command that works with other processes cannot use."""
    if urls.is_memory(settings.resolve({"store": store}).store):
        raise SettingError(
            f"{verb} cannot use a memory:// store: only this process can see it, so no worker would find the runs "
            "that `start` records. Name a store that all processes can open: --store runs.db, or postgresql://…; "
            "`holdfast run FILE.py` starts and executes a run in one process, even with memory://."
        )
