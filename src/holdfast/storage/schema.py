"""The SQL of the SQLite store as it is written in `sql/`: named queries, and the numbered migrations that make the schema."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- (\w+): .+$", re.MULTILINE)
_sql = resources.files("holdfast.storage") / "sql"


def queries() -> dict[str, str]:
    """The named queries of `queries.sql`, on one line each: the driver finds a prepared statement by its text."""
    parts = _NAME.split((_sql / "queries.sql").read_text(encoding="utf-8"))
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def migrations() -> list[str]:
    """The migrations in order; the n-th lifts a store from version n-1 to n."""
    files = sorted((_sql / "migrations").iterdir(), key=lambda file: file.name)
    return [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]
