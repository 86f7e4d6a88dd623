"""The rules by which an append or a request is refused, and any other change of a run that has ended. Every store applies the
rules for appends and requests, in this order, with these messages.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec

from holdfast.core.run_state import FINAL
from holdfast.errors import CodecError, FenceLost, RequestExists, RunExists, RunOver, SeqConflict
from holdfast.storage.contract import Append, Request, Verdict

_encode = msgspec.json.Encoder(order="sorted").encode


def refuse_final(run_id: str, status: str, asked: str = "resumed") -> None:
    """Refuse to change a run whose status is final. Raises `RunOver`."""
    if status in FINAL:
        raise RunOver(
            run_id,
            f"it is {status}, which is final. Fork it to continue from one of its checkpoints, which "
            f"`holdfast checkpoints {run_id}` lists: `holdfast fork {run_id}@SEQ`.",
            asked=asked,
        )


def digest_request(request: Request) -> bytes:
    """Return the digest of what a request asks for: its verb and its body. A repeated request has the same digest. Raises
    `CodecError` for text that cannot be stored.
    """
    try:
        _encode([request.id, request.by, request.reason])
        return sha256(_encode([request.verb, request.body])).digest()
    except UnicodeEncodeError as fault:
        raise CodecError(f"a value cannot be stored: {fault}", path="post") from fault


def is_new_request(
    run_id: str,
    request: Request,
    digest: bytes,
    status: str,
    posted_verb: str | None,
    posted_digest: bytes | None,
) -> bool:
    """Return whether a request with this digest, to a run with this status, is to be stored; False if it was posted before. The
    last two arguments describe the request of the run that has the same id, if there is one; its digest is None if it was stored
    by a version of Holdfast that kept no digests. Raises `RequestExists`, `RunOver`.
    """
    if posted_verb is not None:
        if posted_verb != request.verb or posted_digest not in {None, digest}:
            raise RequestExists(run_id, request.id, posted_verb)
        return False
    refuse_final(run_id, status, "changed")
    return True


def judge_create(append: Append, *, exists: bool, holder_known: bool) -> Verdict:
    """Return the verdict on an append that creates a run. A holder must be known to the store (by `renew`) before it can hold a
    run.
    """
    if exists:
        return RunExists(append.run_id, "input or flow")
    if append.holder is not None and not holder_known:
        return FenceLost(
            f"run {append.run_id!r} was not created: the store does not know engine {append.holder!r}. "
            "Renew the holder first."
        )
    return _gap(append)


def judge_along(append: Append, exists: Callable[[str], bool]) -> Verdict:
    """Return the verdict on an append that is otherwise accepted, by what it changes in other runs. `exists` says whether there
    is a run with an id.
    """
    if append.along is None:
        return None
    ids = {append.run_id}
    for start in append.along.starts:
        verdict = judge_create(start, exists=start.run_id in ids or exists(start.run_id), holder_known=False)
        if verdict is not None:
            return verdict
        ids.add(start.run_id)
    for run_id, request in append.along.posts:
        try:
            _encode(run_id)
            digest_request(request)
        except (CodecError, UnicodeEncodeError) as fault:
            return CodecError(f"a request to run {run_id!r} cannot be stored: {fault}", path="post")
    return None


def judge(append: Append, *, seq: int, fence: int, holder: str | None) -> Verdict:
    """Return the verdict on an append to a run whose log ends at `seq` and whose lease belongs to `holder` with `fence`."""
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
                f"run {append.run_id!r}: the append has row {row.seq} where row {expected} must follow. Nothing was written."
            )
    return None if append.rows else SeqConflict(f"run {append.run_id!r}: an append needs at least one row.")
