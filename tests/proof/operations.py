"""Every durable operation of Holdfast, each in its own process, which reports what it is about to do and the result (`hands`).

`OPERATIONS` is the table: `prepare` makes the disk before the operation, `perform` is the operation. To add one, add a row; the
harness finds its crash points by itself. The operations about requests and forks are in `asked_operations`, those that change
several runs at once in `along_operations`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
from along_operations import ALONG
from asked_operations import ASKED
from hands import (
    ARCHIVES,
    AUTHOR,
    BULKY,
    COPY,
    FLOW,
    LARGE,
    RUNS,
    SNAPSHOT_AT,
    Hands,
    Operation,
    Paper,
    ToldStore,
    archive_of,
    begun,
    digest_at,
    digests_of,
    snapshot_of,
    story,
    text_of,
)

import holdfast as hf
from holdfast.documents import scribe
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.storage import schema
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Holder, Request
from holdfast.storage.files import disk
from holdfast.storage.queues import Wanted
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.upkeep import archive, retention

# --- what the disk holds before -----------------------------------------------------------------------

_never_closed: list[Any] = []
"""Stores that are kept open until the process dies."""


def nothing(hands: Hands) -> None:
    """Prepare an empty disk."""


def closed(hands: Hands) -> None:
    begun(hands, close=True)


def several(hands: Hands) -> None:
    store = begun(hands)
    assert store.append([story(f"b{number}")[0] for number in range(5)]) == [None] * 5


def requested(hands: Hands) -> None:
    begun(hands).post("r1", Request(id="early", verb="signal", body={"name": "early", "value": 1}))


def old(hands: Hands) -> None:
    """Prepare a run with snapshots, and a new run."""
    store = begun(hands)
    part = story("r1")[2]
    kept = tuple(snapshot_of("r1", seq) for seq in (SNAPSHOT_AT - 2, SNAPSHOT_AT))
    assert store.append([msgspec.structs.replace(part, snapshots=kept)]) == [None]
    for number in range(2):
        assert store.append([story(f"n{number}")[0]]) == [None]
    store.release("n0", AUTHOR, 1)


def completed(hands: Hands) -> None:
    begun(hands, length=len(story("r1")), close=True)


def bulky(hands: Hands) -> None:
    """Prepare two runs that have ended and one that has not, all with blobs."""
    store = hands.open()
    store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for run_id in BULKY:
        for part in story(run_id, LARGE)[: 2 if run_id == "kept" else None]:
            assert store.append([part]) == [None]
    store.close()


def away(hands: Hands) -> None:
    """Prepare the archive of a run, and a store that does not have the run."""
    hands.open().close()
    name, content = archive_of("large")
    disk.make_folder(hands.disk / ARCHIVES)
    (hands.disk / ARCHIVES / name).write_bytes(content)


def first_version(hands: Hands) -> None:
    """Prepare a store with the first version of the schema, and a run in it."""
    disk.prepare(hands.path)
    parts = story("r1")[:2]
    new, view, last = parts[0].create, parts[-1].view, parts[-1].rows[-1]
    assert new is not None
    with hands.tell.verb(
        "append", [["row", "r1", row.seq, row.salt.hex()] for part in parts for row in part.rows]
    ):
        connection = apsw.Connection(str(hands.path))
        connection.pragma("journal_mode", "wal")
        connection.execute(schema.migrations("sqlite")[0])
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", 1)
        connection.execute(
            "insert into runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint, "
            "state_version, active, fence) values (?, ?, ?, '{}', ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            ("r1", new.flow, new.input_digest, new.created_at, view.status, last.seq, last.digest, last.at, view.fingerprint,
             view.state_version, json.dumps(view.active)),
        )  # fmt: skip
        connection.executemany(
            "insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest) "
            "values (1 << 32 | ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [msgspec.structs.astuple(row) for part in parts for row in part.rows],
        )
        connection.execute(
            "insert into definitions (fingerprint, body) values (?, ?)",
            (view.fingerprint, parts[0].definition),
        )
    _never_closed.append(connection)


# --- what is done ------------------------------------------------------------------------------------


def make_store(hands: Hands) -> None:
    hands.open().close()


def append_one(hands: Hands) -> None:
    store = hands.open()
    for part in story("r1")[2:4]:
        with suppress(HoldfastError):
            store.append([part])
    store.close()


def append_batch(hands: Hands) -> None:
    """Create several runs in one batch, then append to several runs in one batch: the two ways in which a batch is written."""
    store = hands.open()
    with suppress(HoldfastError):
        store.append([story(f"n{number}")[0] for number in range(3)])
    with suppress(HoldfastError):
        store.append([story(f"b{number}")[1] for number in range(5)])
    store.close()


def append_snapshot(hands: Hands) -> None:
    part = story("r1")[2]
    snapshot = snapshot_of("r1", part.rows[-1].seq)
    store = hands.open()
    with suppress(HoldfastError):
        store.append([msgspec.structs.replace(part, snapshots=(snapshot,))])
    store.close()


def lease(hands: Hands) -> None:
    store = hands.open()
    fence = 2
    with suppress(HoldfastError):
        store.renew(hands.me())
    with suppress(HoldfastError):
        fence = store.claim("r1", hands.me()).fence
    with suppress(HoldfastError):
        store.release("r1", hands.me().id, fence)
    with suppress(HoldfastError):
        store.renew(hands.me(0.0))
    store.close()


def post(hands: Hands) -> None:
    """Post a request to the inbox, and record one that was posted before."""
    store = hands.open()
    with suppress(HoldfastError):
        store.post("r1", Request(id="late", verb="signal", body={"name": "late", "value": "x" * 200}))
    with suppress(HoldfastError):
        store.append([msgspec.structs.replace(story("r1")[2], taken=("early",))])
    store.close()


def put_blobs(hands: Hands) -> None:
    """Append a run whose values are blobs, one of them put twice; remove a blob; and spill a stream."""
    store = hands.open()
    with suppress(HoldfastError):
        store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for part in story("large", LARGE)[:2]:
        with suppress(HoldfastError):
            store.append([part])
    spare = Blob.of(text_of("spare", 4_000).encode())
    for _ in range(2):
        with suppress(HoldfastError):
            store.blobs.put(spare.digest, spare.body)
    for data in (b"one " * 300, b"two " * 300):
        with suppress(HoldfastError):
            store.blobs.spill("s1", "stream", data)
    with suppress(HoldfastError):
        store.blobs.unspill("s1", ["stream"])
    store.close()


def receipts(hands: Hands) -> None:
    """Make all files of a run from its log."""
    scribe.put_all = hands._put_all
    store = hands.open()
    with suppress(OSError):
        scribe.rebuild(hands.disk / RUNS, store, "r1")
    store.close()


def checkpoint(hands: Hands) -> None:
    """Fold the WAL into the database while the store is in use, and start a new WAL."""
    store = hands.open()
    store._store._database._writer.wal_autocheckpoint(12)
    for part in story("r1")[2:]:
        with suppress(HoldfastError):
            store.append([part])
    for number in range(2):
        with suppress(HoldfastError):
            store.append([story(f"n{number}")[0]])
    store.close()


def take(hands: Hands) -> None:
    """Set a limit of a queue, and claim runs from the queues, as a worker does."""
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("limit", [["limit", "default", 9]]):
        store.queues.limit("default", 9)
    facts = [["fence", run_id, 2] for run_id in ("r1", *(f"b{number}" for number in range(5)))]
    with suppress(HoldfastError), hands.tell.verb("claim by take", facts):
        store.queues.take(hands.me(), Wanted(flows=(FLOW.name,), limit=9))
    store.close()


def prune(hands: Hands) -> None:
    """Retire checkpoints and drop a snapshot; delete a whole run; sweep its remaining events."""
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("retire", [["retired", "r1", SNAPSHOT_AT]]):
        store.upkeep.retire("r1", SNAPSHOT_AT, [SNAPSHOT_AT - 2])
    with suppress(HoldfastError), hands.tell.verb("delete", [["deleted", "n0"]]):
        assert not store.upkeep.delete({"n0": story("n0")[0].rows[-1].seq})
    with suppress(HoldfastError), hands.tell.verb("sweep"):
        store.upkeep.sweep(3)
    store.close()


def compact(hands: Hands) -> None:
    """Replace the older half of a log by a base."""
    store = hands.open()
    with suppress(HoldfastError):
        store.renew(hands.me())
    with suppress(HoldfastError):
        fence = store.claim("r1", hands.me()).fence
        base = snapshot_of("r1", SNAPSHOT_AT)
        with hands.tell.verb("compact", [["base", "r1", SNAPSHOT_AT]]):
            store.upkeep.compact(
                "r1",
                SNAPSHOT_AT,
                body=base.body,
                digest=digest_at("r1", SNAPSHOT_AT),
                holder=hands.me().id,
                fence=fence,
            )
    for _ in range(2):
        with suppress(HoldfastError), hands.tell.verb("sweep"):
            store.upkeep.sweep(3)
    store.close()


def back_up(hands: Hands) -> None:
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("backup", [["copy", COPY.name]]):
        store.upkeep.backup(str(hands.disk / COPY))
    store.close()


def give_back(hands: Hands) -> None:
    """Give back all leases of a dead holder, as a recovery does."""
    store = hands.open()
    facts = [["free", run_id, AUTHOR, 1] for run_id in ("r1", *(f"b{number}" for number in range(5)))]
    with suppress(HoldfastError), hands.tell.verb("give back", [*facts, ["gone", AUTHOR]]):
        store.queues.give_back([AUTHOR])
    store.close()


def send_away(hands: Hands) -> None:
    """Archive the two runs that have ended, delete them, and remove the blobs that only they used. One of the archives exists
    already: its process was killed before the name of the file was durable.
    """
    archive.archive = hands.archived
    store = hands.open()
    for run_id in ("large", "early"):
        with suppress(HoldfastError, OSError):
            if run_id == "early":
                _name_and_die(hands.disk / ARCHIVES, *archive_of(run_id))
            row = store.run(run_id)
            choice = retention.Choice(
                run_id=run_id, flow=row.flow, status=row.status, updated_at=row.updated_at, seq=row.seq, goes=True, why=""
            )  # fmt: skip
            with hands.tell.verb("delete", [["deleted", run_id]]):
                (done,) = retention.delete(store, [choice], f"{hands.disk / ARCHIVES}/")
                if not done.goes:
                    hands.tell.defect(f"run {run_id} was not deleted: {done.why}")
    with suppress(HoldfastError):
        gone = [
            ["unwanted", digest]
            for run_id in BULKY
            if _is_gone(store, run_id)
            for digest in digests_of(run_id)
        ]
        with hands.tell.verb("sweep", also=gone):
            retention.sweep(store)
    store.close()


def _name_and_die(folder: Path, name: str, content: bytes) -> None:
    disk.make_folder(folder)
    beside = folder / f".{name}"
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / name)


def _is_gone(store: ToldStore, run_id: str) -> bool:
    try:
        store.run(run_id)
    except RunNotFound:
        return True
    return False


def put_back(hands: Hands) -> None:
    """Put a run back from its archive, piece by piece."""
    archive.this_process = hands.me
    store = hands.open()
    rows = [["row", "large", row.seq, row.salt.hex()] for part in story("large", LARGE) for row in part.rows]
    blobs = [["blob", digest] for digest in digests_of("large")]
    with suppress(HoldfastError), hands.tell.verb("put back", also=[*rows, *blobs]):
        archive.put_back(store, hands.disk / ARCHIVES / archive_of("large")[0])
    store.close()


def run_flow(hands: Hands) -> None:
    hands.use(lambda engine: engine.run(FLOW, Paper("about e1"), run_id="e1"), receipts=True)


def resume_flow(hands: Hands) -> None:
    hands.use(lambda engine: engine.resume("r1"))


def fork_run(hands: Hands) -> None:
    hands.use(lambda engine: engine.fork("r1", run_id="f1"))


OPERATIONS: dict[str, Operation] = {
    "create": Operation(nothing, make_store),
    "append": Operation(begun, append_one),
    "append batch": Operation(several, append_batch),
    "snapshot": Operation(closed, append_snapshot),
    "lease": Operation(closed, lease),
    "post": Operation(requested, post),
    "blob": Operation(begun, put_blobs),
    "receipt": Operation(completed, receipts),
    "migrate": Operation(first_version, make_store),
    "checkpoint": Operation(begun, checkpoint),
    "take": Operation(several, take),
    "prune": Operation(old, prune),
    "compact": Operation(old, compact),
    "backup": Operation(old, back_up),
    "give back": Operation(several, give_back),
    "archive": Operation(bulky, send_away, again=True),
    "put back": Operation(away, put_back, again=True),
    "run": Operation(nothing, run_flow, files=True),
    "resume": Operation(begun, resume_flow),
    "fork": Operation(closed, fork_run),
    **ASKED,
    **ALONG,
}


def finish(hands: Hands, operation: Operation) -> None:
    """Resume runs that have not ended (only a few if there are many), as a program does that is started after a crash."""
    if operation.again:
        operation.perform(hands)

    async def go_on(engine: hf.Engine) -> None:
        open_runs = [
            run for run in await engine.runs() if run.status not in ("completed", "cancelled", "failed")
        ]
        for run in open_runs[:2]:
            while (
                resumed := await engine.resume(run.id)
            ).questions:  # the process died in what must not run twice
                for question in resumed.questions:
                    await engine.answer(run.id, question.key, "retry")

    hands.use(go_on, receipts=operation.files)
