"""Load the SQL of a store from the `sql/` folder of its dialect: named queries, and the numbered migrations that create the
schema.

In PostgreSQL the tables are in a schema, which the files call `holdfast`; for a store in another schema, that name is replaced.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from holdfast.errors import SchemaTooNew

_NAME = re.compile(r"^-- (\w+): .+$", re.MULTILINE)
_SCHEMA = re.compile(r"\bholdfast\b")
_stores = resources.files("holdfast.storage")


def queries(dialect: str, schema: str | None = None) -> dict[str, str]:
    """Return the named queries of `queries.sql`. Each is put on one line, because drivers cache prepared statements by their
    text.
    """
    parts = _NAME.split(
        within((_stores / dialect / "sql" / "queries.sql").read_text(encoding="utf-8"), schema)
    )
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def migrations(dialect: str, schema: str | None = None) -> tuple[str, ...]:
    """Return the migrations in order; the n-th migrates a store from version n-1 to version n."""
    files = sorted((_stores / dialect / "sql" / "migrations").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]
    return tuple(within(text, schema) for text in texts)


def newer_schema_error(where: str, version: int, known: int) -> SchemaTooNew:
    """Return the error for a process whose open store was migrated by a newer Holdfast: the process must write nothing more."""
    return SchemaTooNew(
        f"{where} was migrated to schema version {version} while this process used it; this process knows versions up "
        f"to {known}. Nothing was written this time. Restart this process with the newer version of Holdfast."
    )


def within(sql: str, schema: str | None) -> str:
    """Return SQL in which the schema name `holdfast` is replaced by `schema`."""
    return sql if schema is None else _SCHEMA.sub(f'"{schema}"', sql)
