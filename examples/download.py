"""A long download in pieces. It saves its progress, so that it need not start again after a dropped connection or `kill -9`.

    holdfast run examples/download.py --run-id download --run-base out
    holdfast events download --follow                        # in another shell

Kill the process, and resume the run with `holdfast resume download examples/download.py --run-base out`. The log of the
server (downloads/pieces.log) lists the requested pieces: no piece before the last checkpoint is requested again. With
--run-base, the node `keep` writes a note about the file beside the receipts of the run.
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


# --- a simulated server -------------------------------------------------------------------------------


def piece(name: str, number: int) -> bytes:
    """Return a piece of the file on the server. Its bytes are generated, and are the same at every call."""
    return hashlib.sha256(f"{name} {number}".encode()).digest() * (PIECE_BYTES // 32)


def serve(folder: str, name: str, first: int) -> Iterator[bytes]:
    """Send the pieces from number `first` on. A download that began at piece 0 loses its connection half-way."""
    for number in range(first, PIECES):
        if first == 0 and number == PIECES // 2:
            raise ConnectionResetError("the server closed the connection")
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
        file.truncate(done * PIECE_BYTES)  # remove bytes that were written after the last checkpoint
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
    with suppress(hf.ContextError):  # raised without run_base: then there is no folder
        ctx.artifacts.write("note.json", json.dumps({"file": str(whole), "sha256": state.sha256}))


graph.chain(START, "fetch", "check", "keep", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Download(), run_id="download", run_base="out")
    print(run.status, run.state.size, run.state.sha256)
