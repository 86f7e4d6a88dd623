"""A long download in pieces: it remembers how far it came, so that neither a dropped line nor `kill -9` begins it anew.

    holdfast run examples/download.py --run-id download --run-base out
    holdfast events download --follow                        # from another shell

Kill it, and resume it with `holdfast resume download examples/download.py --run-base out`. The server's own book
(pieces.log) tells which pieces it was asked for: none that a checkpoint had passed is asked for again. With --run-base
a note about the file is kept beside the receipts of the run, with its digest in the log.
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
    """What the server has there: made up, and always the same."""
    return hashlib.sha256(f"{name} {number}".encode()).digest() * (PIECE_BYTES // 32)


def serve(folder: str, name: str, first: int) -> Iterator[bytes]:
    """The pieces from `first` on. A line that has carried the beginning drops half-way, as long lines do."""
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
    """A dropped line is known to be worth another try, and the next attempt goes on behind the last checkpoint."""
    os.makedirs(state.folder, exist_ok=True)
    part = Path(state.folder, state.name + ".part")
    done = ctx.last_checkpoint or 0
    with part.open("r+b" if done else "wb") as file:
        file.truncate(done * PIECE_BYTES)  # what was written behind the checkpoint may be half a piece
        file.seek(0, os.SEEK_END)
        for data in serve(state.folder, state.name, first=done):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the bytes are safe before the checkpoint says so
            done += 1
            ctx.checkpoint(done)
            ctx.emit(f"{100 * done // PIECES} %")
    return {"size": part.stat().st_size}


@graph.node
def check(state: Download) -> dict[str, Any]:
    """Compare with what the server says it is. A wrong file is nothing that trying again would mend."""
    digest = hashlib.sha256(Path(state.folder, state.name + ".part").read_bytes()).hexdigest()
    promised = hashlib.sha256(b"".join(piece(state.name, number) for number in range(PIECES))).hexdigest()
    if digest != promised:
        raise hf.Fatal(f"{state.name} has the digest {digest[:12]}, not {promised[:12]}")
    return {"sha256": digest}


@graph.node
def keep(state: Download, ctx: hf.BlockingContext) -> None:
    """Give the file its name, and leave a note about it with the run, where there is a folder for that."""
    part, whole = Path(state.folder, state.name + ".part"), Path(state.folder, state.name)
    if part.exists():  # else an attempt that was cut has done it
        part.replace(whole)
    with suppress(hf.ContextError):  # no run_base, no folder
        ctx.artifacts.write("note.json", json.dumps({"file": str(whole), "sha256": state.sha256}))


graph.chain(START, "fetch", "check", "keep", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Download(), run_id="download", run_base="out")
    print(run.status, run.state.size, run.state.sha256)
