"""Routes for the documents and files of a run: receipts, artifacts, and the archive of the whole run.

A file is sent as an attachment of a fixed type, in a sandbox, because its content comes from nodes: a browser must not execute
it. A name leads to a file inside the folder of the node, or nowhere: it must be one of the names in that folder, and no part of
it may be a symbolic link.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.definition import Definition
from holdfast.documents import artifacts, receipts
from holdfast.reading import history
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import refuse
from holdfast.server.runs import Name
from holdfast.storage import definitions
from holdfast.storage.contract import RunRow, Store
from holdfast.upkeep.archive import archive

BINARY = "application/octet-stream"


class ReceiptList(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts and handoffs of a run, made from its log: path -> document."""

    run_id: str
    documents: dict[str, dict[str, Any]]


class ArtifactList(msgspec.Struct, frozen=True, kw_only=True):
    """The files that nodes of a run have written: node -> names. `kept` says whether this server has such files at all."""

    run_id: str
    kept: bool
    artifacts: dict[str, list[str]]


class ReceiptsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose receipts to list."""

    node: Name | UnsetType = UNSET


# --- receipts ----------------------------------------------------------------------------------------


def list_receipts(call: HttpCall[ReceiptsQuery, None]) -> ReceiptList:
    """List the receipts and handoffs of a run, or of one of its nodes."""
    store, run_id, query = call.backend.store, call.values["id"], call.query
    row = store.run(run_id)
    log = history.opened(store, run_id, store.events(run_id, upto=row.seq))
    made = receipts.documents(row, log, _definitions(store), _began_with(store, row))
    found = {path: msgspec.json.decode(content) for path, content in made.items() if _is_full_name(path)}
    wanted = {
        path: document
        for path, document in found.items()
        if query.node is UNSET or document.get("node") == query.node
    }
    return ReceiptList(run_id=run_id, documents=wanted)


def _is_full_name(path: str) -> bool:
    """Return whether a path names one attempt. The plain name is a copy of the latest, and run.json is about the run."""
    return path.removesuffix(".json").rpartition(".")[2].partition("~")[0].isdecimal()


def _definitions(store: Store) -> receipts.Lookup:
    def lookup(fingerprint: str) -> Definition | None:
        stored = store.definition(fingerprint)
        return None if stored is None else definitions.decode(stored)

    return lookup


def _began_with(store: Store, row: RunRow) -> str:
    """Return the fingerprint of the flow with which a forked or compacted log begins; empty for other logs, which contain it."""
    base = history.began_after(store, row)
    return history.load(store, row.run_id, base, row=row).fingerprint if base else ""


# --- artifacts ---------------------------------------------------------------------------------------


def list_artifacts(call: HttpCall[NoQuery, None]) -> ArtifactList:
    """List the files that the nodes of a run have written."""
    backend, run_id = call.backend, call.values["id"]
    row, base = backend.store.run(run_id), backend.engine.settings.run_base
    if not base:
        return ArtifactList(run_id=run_id, kept=False, artifacts={})
    nodes = backend.reader.definition(row).nodes
    found = {node: artifacts.left(base, run_id, row.flow, node) for node in nodes}
    return ArtifactList(
        run_id=run_id, kept=True, artifacts={node: names for node, names in found.items() if names}
    )


def get_artifact(call: HttpCall[NoQuery, None]) -> Answer:
    """Download a file that a node has written."""
    backend, node, name = call.backend, call.values["node"], call.values["path"]
    row, base = backend.store.run(call.values["id"]), backend.engine.settings.run_base
    names = artifacts.left(base, row.run_id, row.flow, node) if base else []
    if name not in names:
        raise refuse(
            "not-found",
            f"Node {node!r} has no such file.",
            remedy=f"GET /api/v1/runs/{row.run_id}/artifacts lists the files of the run.",
        )
    handle = _open_inside(artifacts.folder_of(base, row.run_id, row.flow, node), name)
    return _attachment(handle, name.rpartition("/")[2])


def _open_inside(folder: Path, name: str) -> int:
    """Open a file below a folder, without following a symbolic link. Raises `Refused`."""
    *parents, last = name.split("/")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parents:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        handle = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except OSError:
        raise refuse("not-found", "The file is a link, or was removed meanwhile.") from None
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refuse("not-found", "This is not a regular file.")
    return handle


def _attachment(handle: int, name: str) -> Answer:
    return Answer(
        file=os.fdopen(handle, "rb", buffering=0),
        media_type=BINARY,
        headers={
            "Content-Length": str(os.fstat(handle).st_size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "Content-Security-Policy": "sandbox; default-src 'none'",
        },
    )


# --- the archive -------------------------------------------------------------------------------------


def get_archive(call: HttpCall[NoQuery, None]) -> Answer:
    """Download the archive of a run: its log and everything that it refers to."""
    backend, run_id = call.backend, call.values["id"]
    folder = tempfile.mkdtemp(prefix="holdfast-archive-")
    try:
        handle = _write_archive(backend, run_id, folder)
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)  # the file stays readable through its handle
    return _attachment(handle, f"{run_id}.holdfast")


def _write_archive(backend: Backend, run_id: str, folder: str) -> int:
    written = archive(backend.store, run_id, os.path.join(folder, run_id))
    return os.open(written.place, os.O_RDONLY | os.O_CLOEXEC)
