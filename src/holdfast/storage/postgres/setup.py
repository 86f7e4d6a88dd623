"""Check that a PostgreSQL server and a schema in it are fit for a store, and create or migrate that schema.

This module owns no connection. Invariant: all missing migrations run in one transaction, under a lock that every process takes,
so a store is never between two versions, however many processes open it at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.errors import SchemaTooNew, StoreReadOnly, StoreUnusable
from holdfast.storage import schema
from holdfast.storage.postgres.address import Address

SERVER_MIN = 14
Cells = tuple[Any, ...]


class Statements(Protocol):
    """The methods of a transaction that this module needs."""

    def do(self, query: str, *values: Any) -> object: ...
    def do_text(self, sql: str) -> None: ...
    def rows(self, query: str, *values: Any) -> list[Cells]: ...


def require_fit(address: Address, facts: Sequence[Any]) -> None:
    """Refuse a server that would lose data or cannot store all text. `facts` is the row of the query `server`."""
    version, in_recovery, fsync, synchronous_commit, encoding = facts
    if version // 10_000 < SERVER_MIN:
        raise StoreUnusable(
            f"{address.url} is PostgreSQL {version // 10_000}; Holdfast needs {SERVER_MIN} or newer. "
            "Upgrade the server, or use another one."
        )
    if encoding != "UTF8":
        raise StoreUnusable(
            f"{address.url}: the database's encoding is {encoding}, which cannot store every text. Create another "
            "database with: create database … encoding 'UTF8' template template0"
        )
    if in_recovery:
        raise StoreReadOnly(
            f"{address.url} is a replica, which accepts no writes. Use the URL of the primary, or name all hosts "
            "and add target_session_attrs=read-write."
        )
    if not address.unsafe and "off" in {fsync, synchronous_commit}:
        raise not_durable(address, fsync=fsync)


def not_durable(address: Address, *, fsync: str = "on") -> StoreUnusable:
    """Return the error for a server that acknowledges commits before they are on disk."""
    setting = "fsync" if fsync == "off" else "synchronous_commit"
    return StoreUnusable(
        f"{address.url}: {setting} is off, so writes that the server acknowledges may be lost. Nothing was written. Switch it "
        "on for this user, database or server, or accept the loss with unsafe=1 in the URL."
    )


def is_current(versions: list[Cells]) -> bool:
    """Return whether a schema needs no migration. `versions` are the rows of the query `version`."""
    return versions == [(len(schema.migrations("postgres")),)]


def require_known(address: Address, versions: list[Cells]) -> None:
    """Refuse a schema that a newer Holdfast migrated while it was in use. `versions` are the rows of the query `version`."""
    known = known_version()
    if versions and versions[0][0] > known:
        raise schema.newer_schema_error(address.url, versions[0][0], known)


@functools.cache
def known_version() -> int:
    """Return the newest schema version that this code knows."""
    return len(schema.migrations("postgres"))


def migrate(address: Address, transaction: Statements) -> None:
    """Migrate the schema to the version that this code knows; create it if it is missing. Refuses a schema of a newer version or
    of another program.
    """
    known = schema.migrations("postgres", address.schema)
    transaction.rows("lock_schema", f"holdfast {address.schema}")
    for migration in known[_version(address, transaction, len(known)) :]:
        transaction.do_text(migration)
    transaction.do("set_version", str(len(known)))


def _version(address: Address, transaction: Statements, known: int) -> int:
    if transaction.rows("meta_table") != [(None,)]:
        found = transaction.rows("version")
        version = int(found[0][0]) if found else 0
        if version > known:
            raise SchemaTooNew(
                f"{address.url} has schema version {version}; this Holdfast knows versions up to {known}. "
                "Use the version of Holdfast that wrote the store, or a newer one. Nothing was changed."
            )
        if version:
            return version
    name, holds = transaction.rows("schema_holds")[0]
    if holds is not None:
        raise StoreUnusable(
            f"{address.url}: the schema {address.schema!r} contains tables of another program, e.g. {holds!r}. "
            "Choose another schema with schema=… in the URL."
        )
    if name is None:
        transaction.do("create_schema")
    return 0
