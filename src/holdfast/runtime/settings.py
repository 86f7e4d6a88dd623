"""Options of an engine, from the nearest place that has them: the call, the environment, `[tool.holdfast]` in
pyproject.toml, the default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from holdfast.errors import SettingError, did_you_mean
from holdfast.storage.oversize import BLOB_OVER, LOG_BUDGET

Durability = Literal["sync", "async", "exit"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every option has the same name in a call, as HOLDFAST_… in the environment, and in pyproject.toml."""

    store: str = ".holdfast/runs.db"
    """Where runs are kept: a path, sqlite:///path, postgresql://… or memory://name."""
    grace: float = 30.0
    """Seconds that running nodes get to end when the process is asked to stop."""
    park_after: float = 30.0
    """Seconds that a waiting `async` node is kept in memory before it is unwound."""
    lease_ttl: float = 30.0
    """Seconds after which a holder that does not answer is taken over, where its death cannot be seen."""
    durability: Durability = "sync"
    """When a step is durable: before the next node starts (sync), while it runs (async), when the run stops (exit)."""
    blobs: str = ""
    """Where values too large for the log are kept: a folder, file:///path, memory://name or a URL of fsspec; empty: beside
    the store."""
    blob_over: int = BLOB_OVER
    """Bytes of JSON over which a value leaves the log and becomes a blob."""
    log_budget: int = LOG_BUDGET
    """Bytes of log for one checkpoint over which a result is refused; from 500 KB on there is a warning."""
    concurrency: int = 10
    """Runs that a worker carries on at a time."""
    keep_checkpoints: int = 0
    """The last so many checkpoints of a run stay as it goes on; 0: all of them."""
    run_base: str = ""
    """The folder for receipts, handoffs and artifacts; empty: none are made."""


def resolve(
    given: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """The settings in force. Options that are None were not given."""
    environment = os.environ if environment is None else environment
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
    """`[tool.holdfast]` of the nearest pyproject.toml, from this folder upwards."""
    folder = (folder or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            try:
                table = dict(_table_of(file.read_text("utf-8")))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
                raise SettingError(f"{file} cannot be read: {fault}") from fault
            known = (*Settings.__annotations__, "flows", "retention")
            for name in table:
                if name not in known:
                    raise SettingError(
                        f"{file}: [tool.holdfast] has no option {name!r}{did_you_mean(name, known)}"
                    )
            return table
    return {}


@lru_cache(maxsize=1)
def _table_of(text: str) -> dict[str, Any]:
    """Kept for the next engine: to parse what is mostly not ours takes longer than to open a store in memory."""
    table: dict[str, Any] = tomllib.loads(text).get("tool", {}).get("holdfast", {})
    return table


def _fit(value: Any, name: str, kind: Any, where: str) -> Any:
    if name in ("grace", "lease_ttl", "park_after"):
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            raise SettingError(f"{where} must be a number of seconds, not {value!r}") from None
        if not seconds >= 0 or (name == "lease_ttl" and seconds < 1):
            raise SettingError(
                f"{where} must be {'at least 1 second' if name == 'lease_ttl' else 'positive'}, not {value!r}"
            )
        return seconds
    if name == "durability" and value not in get_args(Durability):
        raise SettingError(f"{where} must be one of {', '.join(get_args(Durability))}, not {value!r}")
    if name in ("blob_over", "log_budget"):
        return _bytes(value, where)
    if name == "keep_checkpoints" and value in (0, "0") and not isinstance(value, (bool, float)):
        return 0
    if name in ("concurrency", "keep_checkpoints"):
        return _count(value, where)
    if name in ("store", "blobs", "run_base"):
        if not isinstance(value, (str, os.PathLike)):
            raise SettingError(f"{where} must be a path or a URL, not {value!r}")
        return os.fspath(value)
    return value


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
