"""The witness: a file of JSON lines that records, outside the engine, what really happened.

    witness = Witness("witness.jsonl")
    async with Engine(store, flows=[flow], resources={"witness": witness}) as engine: ...

    async def pay(state, ctx):
        with ctx.resources["witness"].visit(ctx):
            key = ctx.idempotency_key()
            ctx.resources["witness"].effect(ctx, key)
            await bank.pay(key=key)

A log says what the engine believes; the witness says what nodes, receivers, readers and callers saw. `checker` compares the
two; the witness only records. Invariant: a line is written with one system call, so that processes that share a file, or die
while they write, do not damage each other's lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]


class Witness:
    """Writes a witness file: a list of what nodes, callers and readers saw, with which `holdfast.testing.check` compares the
    logs. Each process makes its own `Witness`; the file is created if it is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def note(self, what: str, **facts: Any) -> None:
        """Write one line: what happened, the id of this process, and these facts."""
        line = json.dumps({"what": what, "pid": os.getpid(), **facts}, separators=(",", ":"))
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)

    # --- nodes ------------------------------------------------------------------------------------------

    @contextmanager
    def visit(self, ctx: Any) -> Iterator[None]:
        """Note that a node's code began, and that it ended without an error. A context manager: wrap the code of the node in
        it.
        """
        self.note("enter", **visit_of(ctx))
        yield
        self.note("exit", **visit_of(ctx))

    def effect(self, ctx: Any, key: str, name: str = "") -> None:
        """Note that a node is about to cause an effect in another system, with this idempotency key."""
        self.note("effect", key=key, name=name, **visit_of(ctx))

    def receipt(self, key: str) -> None:
        """Note that a receiver acted on this key. Do not call it for a request that the receiver refused as a duplicate."""
        self.note("receipt", key=key)

    # --- writers, readers and callers -------------------------------------------------------------------

    def ack(
        self, run_id: str, seq: int, append_id: bytes, *, holder: str | None, fence: int, known: bool = True
    ) -> None:
        """Note that a store acknowledged an append whose first event is `seq`. Pass `known=False` if the writer got no reply
        and does not know whether the store accepted the append.
        """
        self.note("ack", run=run_id, seq=seq, id=append_id.hex(), holder=holder, fence=fence, known=known)

    def read(self, run_id: str, seq: int, digest: bytes, *, reader: str = "") -> None:
        """Note that a reader saw the log of a run up to `seq`."""
        self.note("read", run=run_id, seq=seq, digest=digest.hex(), reader=reader)

    def asked(self, run_id: str, request_id: str) -> None:
        """Note that the inbox acknowledged a request."""
        self.note("asked", run=run_id, id=request_id)

    def told(self, run_id: str, signal: str, payload: Any = None) -> None:
        """Note that a signal was acknowledged. Use a different payload for each signal."""
        self.note("told", run=run_id, signal=signal, payload=payload)

    def killed(self, holder: str, at: float) -> None:
        """Note that an engine died, and when, by the store's clock."""
        self.note("killed", holder=holder, at=at)

    def served(self, worker: str, *, ok: bool) -> None:
        """Note whether a worker served a request."""
        self.note("served", worker=worker, ok=ok)

    def trace(self, seed: int | str, digest: str) -> None:
        """Note the digest (`checker.trace`) of a schedule that ran with this seed."""
        self.note("trace", seed=seed, digest=digest)


def visit_of(ctx: Any) -> Line:
    """Return the fields that identify the attempt that a context belongs to."""
    return {
        "run": ctx.run_id,
        "node": ctx.node,
        "iteration": ctx.iteration,
        "execution": ctx.execution,
        "attempt": ctx.attempt,
        "item": ctx.item,
    }


def lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    """Read the lines of a witness file. A line that a crash left incomplete is skipped."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        for written in file:
            try:
                line = json.loads(written)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


class Testimony:
    """The lines of a witness file, sorted by run and kind. It is empty if no file is given."""

    def __init__(self, path: str | os.PathLike[str] | None, more: list[Line] | None = None) -> None:
        self.runs: dict[str, dict[str, list[Line]]] = {}
        """Run -> kind of line -> lines, in the order they were written."""
        self.others: dict[str, list[Line]] = {}
        """Kind of line -> lines that belong to no run."""
        for line in (*(lines(path) if path is not None else ()), *(more or ())):
            place = self.runs.setdefault(line["run"], {}) if "run" in line else self.others
            place.setdefault(line.get("what", ""), []).append(line)

    def of(self, run_id: str) -> dict[str, list[Line]]:
        return self.runs.get(run_id, {})
