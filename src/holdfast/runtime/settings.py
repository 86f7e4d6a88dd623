"""Options of an engine. The first place that sets an option wins: the call, the environment, `[tool.holdfast]` in
pyproject.toml, the default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from holdfast.errors import SettingError, did_you_mean
from holdfast.storage.oversize import BLOB_OVER, LOG_LIMIT

Durability = Literal["sync", "async", "exit"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options. Each has the same name in a call and in pyproject.toml, and is HOLDFAST_<NAME> in the environment."""

    store: str = ".holdfast/runs.db"
    """Where runs are kept: a path, sqlite:///path, postgresql://… or memory://name."""
    grace: float = 30.0
    """Seconds that running nodes get to finish when the process is asked to stop."""
    park_after: float = 30.0
    """Seconds that a waiting `async` node stays in memory before the engine unwinds it. A worker, and an engine whose caller
    blocks until the run returns, keep it for a second at most."""
    lease_ttl: float = 30.0
    """Seconds without a sign of life after which another process may claim the run, if it cannot see that the holder died."""
    durability: Durability = "sync"
    """When a step is durable: before the next node starts (sync), while the next node runs (async), when the run stops (exit)."""
    blobs: str = ""
    """Where values too large for the log are kept: a folder, file:///path, memory://name or an fsspec URL. If empty, next to
    the store.
    """
    blob_over: int = BLOB_OVER
    """Bytes of JSON above which a value is stored as a blob instead of in the log."""
    log_limit: int = LOG_LIMIT
    """Bytes of log for one checkpoint above which the engine refuses a result. It logs a warning if more than 500 KB follow the
    last step.
    """
    concurrency: int = 10
    """How many runs a worker executes at the same time."""
    threads: int = 200
    """How many `def` nodes, and steps in threads, an engine calls at the same time; further calls wait in order."""
    processes: int = 0
    """How many nodes with `executor="process"` an engine calls at the same time; further calls wait in order. 0: as many as the
    cores that this process may use."""
    keep_checkpoints: int = 0
    """How many of its latest checkpoints a run keeps while it continues; 0 keeps all."""
    run_base: str = ""
    """The folder for receipts, handoffs and artifacts. If empty, the engine writes none."""


T = TypeVar("T")

_KNOWN: ContextVar[dict[Any, Any] | None] = ContextVar("known", default=None)
"""What the command that is being executed has looked up; None outside of a command."""


@contextmanager
def of_one_command() -> Iterator[None]:
    """Resolve each option once in this block, and look for pyproject.toml once: nothing that a command does depends on a change
    of the environment or the file while it is executed.
    """
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


def _once(name: Hashable, look_up: Callable[[], T]) -> T:
    known = _KNOWN.get()
    if known is None:
        return look_up()
    if name not in known:
        known[name] = look_up()
    found: T = known[name]
    return found


def resolve(
    given: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """Return the settings in force: `given` has the options of the call, in which None means that an option was not given.
    Raises `SettingError`.
    """
    if environment is not None or folder is not None:
        return _resolve(given, os.environ if environment is None else environment, folder)
    chosen = tuple((name, value) for name, value in given.items() if value is not None)
    return _once(chosen, lambda: _resolve(given, os.environ, None))


def _resolve(given: Mapping[str, Any], environment: Mapping[str, str], folder: Path | None) -> Settings:
    chosen: dict[str, Any] = {}
    project = project_table(folder)
    for name, kind in Settings.__annotations__.items():
        variable = f"HOLDFAST_{name.upper()}"
        if given.get(name) is not None:
            chosen[name] = _fit(given[name], name, kind, f"option {name!r}")
        elif environment.get(variable):
            chosen[name] = _fit(environment[variable], name, kind, f"environment variable {variable}")
        elif name in project:
            chosen[name] = _fit(project[name], name, kind, f"[tool.holdfast] {name}")
    return Settings(**chosen)


def project_table(folder: Path | None = None) -> dict[str, Any]:
    """Return the table `[tool.holdfast]` of the nearest pyproject.toml: in this folder (default: the current one) or a parent."""
    return (
        _once("table", lambda: _read_table(project_file()))
        if folder is None
        else _read_table(_nearest(folder))
    )


def _read_table(file: Path) -> dict[str, Any]:
    try:
        table = dict(_table_of(file.read_text("utf-8"))) if file.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise SettingError(
            f"{file} cannot be read as TOML: {fault}. Correct the file: Holdfast reads its options from it."
        ) from fault
    known = (*Settings.__annotations__, "flows", "resources", "retention")
    for name in table:
        if name not in known:
            raise SettingError(
                f"{file}: [tool.holdfast] has no option {name!r}{did_you_mean(name, known) or '.'} "
                f"The options are {', '.join(known)}."
            )
    return table


def project_file(folder: Path | None = None) -> Path:
    """Return the nearest pyproject.toml, or its path in the folder (default: the current one) if there is none."""
    return _once("file", lambda: _nearest(Path.cwd())) if folder is None else _nearest(folder)


def _nearest(folder: Path) -> Path:
    folder = folder.resolve()
    files = [place / "pyproject.toml" for place in (folder, *folder.parents)]
    return next((file for file in files if file.is_file()), files[0])


def project_flows() -> list[str]:
    """Return the entries of `[tool.holdfast] flows` (`file.py` or `file.py:flow`) with absolute paths. Empty if that setting is
    not valid.
    """
    try:
        listed = project_table().get("flows", [])
    except SettingError:
        return []
    folder, entries = project_file().parent, listed if isinstance(listed, list) else []
    return [os.path.abspath(folder / entry) for entry in entries if isinstance(entry, str)]


@lru_cache(maxsize=1)
def _table_of(text: str) -> dict[str, Any]:
    """Return the table `[tool.holdfast]` in the text of a pyproject.toml. Cached, because parsing takes longer than opening a
    store in memory.
    """
    table: dict[str, Any] = tomllib.loads(text).get("tool", {}).get("holdfast", {})
    return table


def _fit(value: Any, name: str, kind: Any, where: str) -> Any:
    if name in ("grace", "lease_ttl", "park_after"):
        return read_seconds(value, where, at_least=1 if name == "lease_ttl" else 0)
    if name == "durability" and value not in get_args(Durability):
        raise SettingError(f"{where} must be one of {', '.join(get_args(Durability))}, not {value!r}")
    if name in ("blob_over", "log_limit"):
        return _bytes(value, where)
    if (
        name in ("keep_checkpoints", "processes")
        and value in (0, "0")
        and not isinstance(value, (bool, float))
    ):
        return 0
    if name in ("concurrency", "keep_checkpoints", "processes", "threads"):
        return _count(value, where)
    if name in ("store", "blobs", "run_base"):
        if not isinstance(value, (str, os.PathLike)):
            raise SettingError(f"{where} must be a path or a URL, not {value!r}")
        return os.fspath(value)
    return value


def read_seconds(value: Any, where: str, *, at_least: float = 0) -> float:
    """Return a number of seconds that was given as an option. `where` names the option in the error for a wrong value."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{where} must be a number of seconds, not {value!r}") from None
    if not seconds >= at_least:
        raise SettingError(
            f"{where} must be {'at least 1 second' if at_least else '0 seconds or more'}, not {value!r}"
        )
    return seconds


def _count(value: Any, where: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if isinstance(value, (bool, float)) or count < 1:
        raise SettingError(f"{where} must be a whole number, at least 1, not {value!r}")
    return count


def _bytes(value: Any, where: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        raise SettingError(f"{where} must be a number of bytes, not {value!r}") from None
    if isinstance(value, (bool, float)) or count < 1000:
        raise SettingError(f"{where} must be a whole number of bytes, at least 1000, not {value!r}")
    return count
