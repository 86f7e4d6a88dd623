"""The SQL of a store as it is written in the `sql/` folder of its dialect: named queries, and the numbered migrations that
make the schema.

In PostgreSQL the tables are in a schema, which the files call `holdfast`; a store in another one has its name put in that place.
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
    """The named queries of `queries.sql`. Each is put on one line: the driver caches prepared statements by their text."""
    parts = _NAME.split(
        within((_stores / dialect / "sql" / "queries.sql").read_text(encoding="utf-8"), schema)
    )
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def migrations(dialect: str, schema: str | None = None) -> tuple[str, ...]:
    """The migrations in order; the n-th takes a store from version n-1 to n."""
    files = sorted((_stores / dialect / "sql" / "migrations").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]
    return tuple(within(text, schema) for text in texts)


def newer_schema_error(where: str, version: int, known: int) -> SchemaTooNew:
    """Why a process that opened a store writes nothing more to it: a newer Holdfast has changed what is there."""
    return SchemaTooNew(
        f"{where} was migrated to schema version {version} while this process used it, which knows versions up to "
        f"{known}. This step was not written. Restart this process with the newer version of Holdfast."
    )


def within(sql: str, schema: str | None) -> str:
    """A text of ours with another schema in the place of `holdfast`."""
    return sql if schema is None else _SCHEMA.sub(f'"{schema}"', sql)
