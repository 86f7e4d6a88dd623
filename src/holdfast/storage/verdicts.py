"""What an append is refused for. Every store judges by these rules, in this order, and says so in these words."""

from __future__ import annotations

from holdfast.errors import FenceLost, RunExists, SeqConflict
from holdfast.storage.contract import Append, Verdict


def judge_create(append: Append, *, exists: bool, holder_known: bool) -> Verdict:
    """Whether an append may make its run. A holder must have said that it lives before it can hold."""
    if exists:
        return RunExists(append.run_id, "input or flow")
    if append.holder is not None and not holder_known:
        return FenceLost(
            f"run {append.run_id!r} was not created: engine {append.holder!r} is not known to the store as alive. "
            "Renew the holder first."
        )
    return _gap(append)


def judge(append: Append, *, seq: int, fence: int, holder: str | None) -> Verdict:
    """Whether an append may follow a log that ends at `seq`, for a lease of `holder` with `fence`."""
    if append.holder is None or append.holder != holder or append.fence != fence:
        who = (
            f"engine {holder!r} holds it with fence {fence}"
            if holder
            else f"no engine holds it, the last fence was {fence}"
        )
        return FenceLost(
            f"run {append.run_id!r} is not held by engine {append.holder!r} with fence {append.fence}: {who}. "
            "This engine may not write to the run unless it claims it again."
        )
    if append.expected_seq != seq:
        return SeqConflict(
            f"the log of run {append.run_id!r} ends at {seq}, not at {append.expected_seq}. Load it again."
        )
    return _gap(append)


def _gap(append: Append) -> SeqConflict | None:
    expected = append.expected_seq
    for row in append.rows:
        expected += 1
        if row.seq != expected:
            return SeqConflict(
                f"run {append.run_id!r}: row {row.seq} was to be written in the place of row {expected}."
            )
    return None if append.rows else SeqConflict(f"run {append.run_id!r}: an append needs at least one row.")
