"""The ledger of a run: every decision in its log, and what two runs have decided in common.

Like receipts, the ledger is a function of the log, and is stored nowhere. The digest of an entry is that of its row in the hash
chain of the log, so there is no second chain: whether an entry was removed or altered is found by verifying the log
(`reading/damage`). `reading/ledger_entries` says which events are decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core import run_state
from holdfast.core.definition import Definition
from holdfast.errors import SchemaTooNew, StoreCorrupt
from holdfast.reading import history
from holdfast.reading.damage import LogDamage
from holdfast.reading.ledger_entries import LedgerEntry, kinds_for, read_entries
from holdfast.reading.verification import LogVerdict, find_base, verify
from holdfast.storage.contract import Row, Store
from holdfast.storage.rows import open_body


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of a run, oldest first, as they are in its log."""

    run_id: str
    flow: str
    seq: int
    """The seq of the last event of the log."""
    digest: str
    """The digest of that event, in hex. It covers the whole log."""
    entries: list[LedgerEntry]
    beginning: str = ""
    """Where the earlier events are, if the log was compacted or belongs to a fork; else empty."""
    verified: bool | None = None
    """Whether the log is exactly what was written; None if that was not checked."""
    problems: list[str] = []
    """What is wrong with the log, if it was checked."""
    damage: list[LogDamage] = []
    """The events that were removed, altered or added."""

    def decisions(self) -> list[dict[str, Any]]:
        """What the run decided, without what an interruption adds or changes: see `decisions`."""
        return decisions(self)


def read_ledger(store: Store, run_id: str, *, check: bool = False) -> Ledger:
    """Return the ledger of a run; with `check`, also whether its log is exactly what was written. Raises `StoreCorrupt` for a
    damaged log, but with `check` its damage is in the ledger, which then has the entries that can be read.
    """
    row = store.run(run_id)
    verdict = _verdict(store, run_id) if check else None
    named = {seq for one in verdict.damage for seq in (one.seq, one.or_seq)} if verdict is not None else set()

    def lookup(fingerprint: str) -> Definition | None:
        stored = store.definition(fingerprint)
        try:
            return None if stored is None else history.defined(stored, run_id)
        except StoreCorrupt:
            if verdict is None:
                raise
            return None

    def open_event(found: Row) -> Any:
        return next(history.opened(store, run_id, (found,))).event

    base = find_base(store, row)
    began_with = run_state.load(open_body(base.body, store.blobs)).fingerprint if base is not None else ""
    flow = lookup(row.fingerprint)
    branching = (
        flow is None or bool(flow.branches) or bool(store.events(run_id, kinds=("FlowChanged",), limit=1))
    )
    rows = store.events(run_id, upto=row.seq, kinds=kinds_for(branching=branching))
    entries = read_entries(rows, lookup, open_event, fingerprint=began_with, damaged=named)
    made = Ledger(
        run_id=run_id,
        flow=row.flow,
        seq=row.seq,
        digest=row.digest.hex(),
        entries=entries,
        beginning=history.beginning(store, row),
    )
    return made if verdict is None else add_verdict(made, verdict)


def add_verdict(ledger: Ledger, verdict: LogVerdict) -> Ledger:
    """Return the ledger with the result of a check of its log. LogDamage to an event with an entry gets the type of the entry."""
    types = {entry.seq: entry.type for entry in ledger.entries}
    damage = [msgspec.structs.replace(one, type=types.get(one.seq)) for one in verdict.damage]
    return msgspec.structs.replace(
        ledger, verified=not verdict.problems, problems=verdict.problems, damage=damage
    )


def _verdict(store: Store, run_id: str) -> LogVerdict:
    try:
        return verify(store, run_id)
    except (StoreCorrupt, SchemaTooNew) as fault:
        return LogVerdict(run_id=run_id, events=0, problems=[str(fault)])


# --- what two runs have in common --------------------------------------------------------------------

_OF_THE_PROCESS = frozenset({"execution", "attempt", "question", "request", "uncleaned"})
"""Facts that depend on when a process died, or when a request came."""


def decisions(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the decisions of a run without what an interruption adds or changes: claims, resumes, questions about interrupted
    visits, seqs, times, digests, attempts. They are in the order of nodes and iterations, because the order in which parallel
    nodes end depends on time. A run that was interrupted and resumed has the same ones as a run that was not.
    """
    found = [one for entry in ledger.entries for one in _common(entry)]
    return sorted(found, key=lambda one: (one["about"].get("node") or "", one["about"].get("iteration", 0)))


def _common(entry: LedgerEntry) -> Iterator[dict[str, Any]]:
    about = entry.about
    if entry.type == "resume" or about.get("asked") == "interrupt":
        return
    if entry.type == "refusal" and about.get("verb") in ("resume", "retry"):
        return
    shared = {"type": entry.type, "actor": entry.actor, "by": entry.by, "reason": entry.reason}
    if entry.kind == "NodesSkipped":  # which of them one event names depends on the order of parallel nodes
        for node in about["nodes"]:
            yield shared | {"reason": None, "about": {"node": node, "why": about["why"].get(node)}}
        return
    yield shared | {"about": _without_times(about)}


def _without_times(about: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in about.items() if name not in _OF_THE_PROCESS}
    if "reads" in kept:
        kept["reads"] = _timeless(kept["reads"])
    for name in ("decisions", "checks"):
        if name in kept:
            kept[name] = [one | {"reads": _timeless(one.get("reads", {}))} for one in kept[name]]
    return kept


def _timeless(reads: dict[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in reads.items() if path != "now"}
