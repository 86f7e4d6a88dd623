"""Check that the forks of a simulated schedule repeat nothing unasked, and that effects happen once for each lineage.

What a parent and the runs before it had begun when it was forked is read from the rows that the ledger has seen until then, and
what the fork was told to do from its own log: this shares no code with the engine. Invariant of the module: it only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from holdfast.storage.contract import Row
from holdfast.testing.simulator_faults import Ledger
from holdfast.testing.simulator_flows import BodyWitness, Tale

Log: TypeAlias = list[tuple[Row, Any]]
Visit: TypeAlias = tuple[str, int, int | None]
"""Node, iteration and item (None for the visit itself)."""

_ENDS = frozenset({"NodeCompleted", "NodeSkipped", "ItemCompleted"})


class ForkedRuns(NamedTuple):
    """The runs of a schedule that descend from each other: their logs, and which flow they have."""

    logs: Mapping[str, Log]
    tales: Mapping[str, Tale | None]
    fresh: frozenset[str]
    """Forks with idempotency keys of their own."""
    forked: Mapping[str, Mapping[str, int]]
    """Fork -> the reason of an attempt to make it -> when the attempt began. What its parent begins later does not count."""
    ledger: Ledger


def check_forks(runs: ForkedRuns, witness: BodyWitness) -> list[str]:
    """Check all forks of a schedule."""
    wrong: list[str] = []
    decided: dict[str, set[tuple[str, int]]] = {}
    for run_id, log in runs.logs.items():
        if log and log[0][0].kind == "RunForked":
            wrong += _check_starts(runs, run_id, decided.setdefault(run_id, set()))
    return wrong + _check_keys(runs, witness, decided)


def _check_starts(runs: ForkedRuns, run_id: str, decided: set[tuple[str, int]]) -> list[str]:
    """Check that a fork starts nothing again that must not run twice, unless that was decided. Collect in `decided` what was
    decided to run again.
    """
    log, first = runs.logs[run_id], runs.logs[run_id][0][1]
    begun, done = _known_at(runs, first.parent, first.to, runs.forked[run_id][first.reason])
    decided |= {(one.node, one.iteration) for one in first.visits if first.repeat.get(one.node) == "run"}
    wrong, asked = [], set()
    for row, event in log:
        if row.kind == "QuestionAsked" and event.about == "repeat":
            asked.add(event.key)
        elif row.kind == "QuestionAnswered" and event.key in asked and event.answer == "run":
            decided.add((event.node, event.iteration))
        if row.kind not in ("NodeStarted", "ItemStarted"):
            continue
        visit = (event.node, event.iteration, getattr(event, "item", None))
        if visit in done or (visit[2] is not None and (*visit[:2], None) in done):
            wrong.append(f"{run_id}@{row.seq}: {visit} starts, but was done where the run was forked")
        elif visit in begun and visit[:2] not in decided:
            wrong.append(
                f"{run_id}@{row.seq}: {visit} starts again, but no caller has decided that it may run twice"
            )
    return wrong


def _known_at(runs: ForkedRuns, run_id: str, to: int, turn: int) -> tuple[set[Visit], set[Visit]]:
    """Return what a run had begun until a turn of the ledger (only what must not run twice), and what was done at event `to`,
    both with what its own parent had begun until that turn, and had done where they part.
    """
    tale, log = runs.tales[run_id], runs.logs[run_id]
    by_seq = {row.seq: (row, event) for row, event in log}
    begun: set[Visit] = set()
    done: set[Visit] = set()
    for row, event in log:
        if runs.ledger.when[run_id, row.seq] >= turn or tale is None:
            break
        is_whole = row.kind == "NodeStarted" and event.node not in tale.sketch.items
        if (is_whole or row.kind == "ItemStarted") and tale.is_careful(event.node):
            begun.add((event.node, event.iteration, getattr(event, "item", None)))
    seq = to
    while seq in by_seq:
        row, event = by_seq[seq]
        if row.kind in _ENDS:
            done.add((event.node, event.iteration, getattr(event, "item", None)))
        seq = event.to if row.kind == "RunRewound" else seq - 1
    if log[0][0].kind == "RunForked":
        first = log[0][1]
        earlier, before = _known_at(runs, first.parent, first.to, turn)
        begun |= earlier
        done |= before
    open_items = {visit for visit in done if visit[2] is not None and (*visit[:2], None) not in done}
    return begun, done - open_items


def _check_keys(
    runs: ForkedRuns, witness: BodyWitness, decided: Mapping[str, set[tuple[str, int]]]
) -> list[str]:
    """Check that the runs of a lineage use one key for each visit, so that a receiver acts once; and that a visit which was to
    run again, and a fork with keys of its own, have others.
    """
    wrong: list[str] = []
    first: dict[tuple[str, str, int, int | None], tuple[str, str]] = {}
    own: dict[str, str] = {}
    for (run_id, node, iteration, item), key in witness.keys.items():
        named = f"node {node!r} (iteration {iteration}, item {item})"
        if (node, iteration) in decided.get(run_id, ()) and item is None:
            other = own.setdefault(key, run_id)
            if other != run_id:
                wrong.append(f"{run_id}: {named} was to run again, but has the key that it has in {other}")
            continue
        if (node, iteration) in decided.get(run_id, ()):
            continue  # of the items, only those that had begun have other keys
        lineage = _lineage_of(runs, run_id)
        other, known = first.setdefault((lineage, node, iteration, item), (run_id, key))
        if known != key:
            wrong.append(f"{run_id}: {named} has another key than in {other}, so its effect happens twice")
    for (_, node, _, _), (run_id, key) in first.items():
        if key in own:
            wrong.append(
                f"{own[key]}: node {node!r} was to run again, but has the key that it has in {run_id}"
            )
    keys = [key for _, key in first.values()]
    if len(set(keys)) != len(keys):
        wrong.append("two lineages, or two visits, have the same idempotency key")
    return wrong


def _lineage_of(runs: ForkedRuns, run_id: str) -> str:
    """Return the run whose keys a run has: its first ancestor, or the last one that has keys of its own."""
    log = runs.logs.get(run_id)
    while log and log[0][0].kind == "RunForked" and run_id not in runs.fresh:
        run_id = log[0][1].parent
        log = runs.logs.get(run_id)
    return run_id
