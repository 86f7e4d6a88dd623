"""A long download in pieces: it saves its progress, so that neither a dropped connection nor `kill -9` restarts it.

    holdfast run examples/download.py --run-id download --run-base out
    holdfast events download --follow                        # from another shell

Kill it, and resume it with `holdfast resume download examples/download.py --run-base out`. The log of the server
(pieces.log) lists the requested pieces: no piece before the last checkpoint is requested again. With --run-base, a note
about the file is kept beside the receipts of the run, and its digest in the run's log.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph, Retry

PIECES = 40
PIECE_BYTES = 4096


@dataclass
class Download:
    name: str = "film"
    folder: str = "downloads"
    size: int = 0
    sha256: str = ""


# --- a server far away --------------------------------------------------------------------------------


def piece(name: str, number: int) -> bytes:
    """The content of a piece on the server: generated, and always the same."""
    return hashlib.sha256(f"{name} {number}".encode()).digest() * (PIECE_BYTES // 32)


def serve(folder: str, name: str, first: int) -> Iterator[bytes]:
    """Send the pieces from `first` on. A connection that began with the first piece drops half-way."""
    for number in range(first, PIECES):
        if first == 0 and number == PIECES // 2:
            raise ConnectionResetError("the server went away")
        with Path(folder, "pieces.log").open("a") as log:
            log.write(f"{number}\n")
        time.sleep(0.03)
        yield piece(name, number)


# --- the flow -----------------------------------------------------------------------------------------

graph = Graph("download", Download)


@graph.node(retry=Retry(attempts=3, backoff=0.2))
def fetch(state: Download, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Fetch all pieces. Holdfast retries after a dropped connection, and the new attempt continues at the last checkpoint."""
    os.makedirs(state.folder, exist_ok=True)
    part = Path(state.folder, state.name + ".part")
    done = ctx.last_checkpoint or 0
    with part.open("r+b" if done else "wb") as file:
        file.truncate(done * PIECE_BYTES)  # bytes after the checkpoint may be half a piece
        file.seek(0, os.SEEK_END)
        for data in serve(state.folder, state.name, first=done):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the bytes must be durable before the checkpoint is
            done += 1
            ctx.checkpoint(done)
            ctx.emit(f"{100 * done // PIECES} %")
    return {"size": part.stat().st_size}


@graph.node
def check(state: Download) -> dict[str, Any]:
    """Compare the file with the digest from the server. A retry would not repair a wrong file, so the error is fatal."""
    digest = hashlib.sha256(Path(state.folder, state.name + ".part").read_bytes()).hexdigest()
    promised = hashlib.sha256(b"".join(piece(state.name, number) for number in range(PIECES))).hexdigest()
    if digest != promised:
        raise hf.Fatal(f"{state.name} has the digest {digest[:12]}, not {promised[:12]}")
    return {"sha256": digest}


@graph.node
def keep(state: Download, ctx: hf.BlockingContext) -> None:
    """Give the file its final name, and add a note about it to the run's folder, if the run has one."""
    part, whole = Path(state.folder, state.name + ".part"), Path(state.folder, state.name)
    if part.exists():  # otherwise an interrupted attempt has already renamed it
        part.replace(whole)
    with suppress(hf.ContextError):  # without run_base there is no folder
        ctx.artifacts.write("note.json", json.dumps({"file": str(whole), "sha256": state.sha256}))


graph.chain(START, "fetch", "check", "keep", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Download(), run_id="download", run_base="out")
    print(run.status, run.state.size, run.state.sha256)
