"""The SQL of the SQLite store: named queries, and the numbered migrations that make and lift its schema.

A store knows its version by `user_version` (how many migrations it has seen) and its kind by `application_id`. All missing
migrations run in one transaction, so a store is never between two versions, however many processes open it at once.
"""

from __future__ import annotations

import re
from importlib import resources

import apsw

from holdfast.errors import SchemaTooNew, StoreUnusable

APPLICATION_ID = 0x48_46_53_54  # "HFST"

_NAME = re.compile(r"^-- (\w+): .+$", re.MULTILINE)
_sql = resources.files("holdfast.storage") / "sql"


def queries() -> dict[str, str]:
    """The named queries of `queries.sql`."""
    parts = _NAME.split((_sql / "queries.sql").read_text(encoding="utf-8"))
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def migrations() -> list[str]:
    """The migrations in order; the n-th lifts a store from version n-1 to n."""
    files = sorted((_sql / "migrations").iterdir(), key=lambda file: file.name)
    return [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]


def refuse_foreign(connection: apsw.Connection, path: str) -> None:
    """Refuse a database that another program made, before anything of it is changed."""
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        return
    if application or connection.pragma("user_version") or connection.execute("select 1 from sqlite_schema").get:
        raise StoreUnusable(f"{path} is a SQLite database of another program. Choose another path for the store.")


def migrate(connection: apsw.Connection, path: str) -> None:
    """Lift a store to the version this code knows. Refuses one that is newer."""
    known = migrations()
    if _version(connection, len(known), path) == len(known):
        return
    connection.execute("begin immediate")
    try:
        # Another process may have lifted it while this one waited for the lock.
        for number in range(_version(connection, len(known), path), len(known)):
            connection.execute(known[number])
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(known))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _version(connection: apsw.Connection, known: int, path: str) -> int:
    version = int(connection.pragma("user_version"))
    if version > known:
        raise SchemaTooNew(f"{path} has schema version {version}; this Holdfast knows versions up to {known}. "
                           "Use the version that wrote it, or a newer one. Nothing was changed.")
    return version
