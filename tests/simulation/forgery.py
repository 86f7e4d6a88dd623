"""Plant violations in stores, for tests of the checker: change rows in a SQLite file and, if asked, repair the hash chain and the
run row afterwards, so that nothing else is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw


@dataclass
class Forged:
    """An event that can be changed."""

    seq: int
    at: float
    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    salt: bytes
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.body or b"{}")

    def tell(self, **changes: Any) -> None:
        self.body = json.dumps({**self.told, **changes}, separators=(",", ":")).encode()


class Forger:
    """Changes the events and the row of one run in the SQLite file at `path`."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.run_id = run_id
        self.db = apsw.Connection(str(path))
        (self.key,) = self.db.execute("select key from runs where run_id = ?", (run_id,)).fetchone()
        cells = "key & 4294967295, at, kind, node, iteration, execution, attempt, salt, body"
        found = self.db.execute(f"select {cells} from events where key >> 32 = ? order by key", (self.key,))
        self.events = [Forged(*row) for row in found]

    def find(self, kind: str, node: str | None = None, nth: int = 0) -> Forged:
        return [e for e in self.events if e.kind == kind and node in (None, e.node)][nth]

    def insert(self, after: Forged, kind: str, node: str | None = None, visit=(0, 0, 0), **told: Any) -> None:
        """Insert an event after another; the seqs of the following events grow by one."""
        place = self.events.index(after) + 1
        body = json.dumps(told, separators=(",", ":")).encode() if told else b""
        salt = sha256(f"{kind} {place}".encode()).digest()[:16]
        self.events.insert(place, Forged(after.seq + 1, after.at, kind, node, *visit, salt, body))
        for event in self.events[place + 1 :]:
            event.seq += 1
        self.sql("update inbox set taken = taken + 1 where run = ? and taken > ?", self.key, after.seq)

    def seal(self, digest: bytes = b"") -> None:
        """Write the changed log back, with a correct hash chain (after `digest`) and a run row that agrees with its end."""
        self.db.execute("delete from events where key >> 32 = ?", (self.key,))
        for e in self.events:
            header = f"{self.run_id}\n{e.seq}\n{e.at!r}\n{e.kind}\n{e.node or ''}\n{e.iteration}\n{e.execution}\n{e.attempt}\n"
            digest = sha256(digest + header.encode() + sha256(e.salt + e.body).digest()).digest()
            cells = (
                self.key << 32 | e.seq,
                e.at,
                e.kind,
                e.node,
                e.iteration,
                e.execution,
                e.attempt,
                e.salt,
                digest,
                e.body,
            )
            self.db.execute(
                "insert into events (key, at, kind, node, iteration, execution, attempt, salt, digest, body) "
                f"values ({', '.join('?' * 10)})",
                cells,
            )
        last = self.events[-1]
        self.row(seq=last.seq, digest=digest, updated_at=last.at)

    def row(self, **columns: Any) -> None:
        """Change the run row."""
        for name, value in columns.items():
            self.db.execute(f"update runs set {name} = ? where key = ?", (value, self.key))

    def sql(self, statement: str, *values: Any) -> None:
        self.db.execute(statement, values)

    def close(self) -> None:
        self.db.close()


Plant = Callable[[Forger], None]


def forged(path: Path, run_id: str, plant: Plant) -> Path:
    """Plant a violation in the file, and return its path."""
    forger = Forger(path, run_id)
    try:
        plant(forger)
    finally:
        forger.close()
    return path
