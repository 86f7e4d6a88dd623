"""A run that another run has started stays as long as that run may need it, and a dry run says so too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli import care
from holdfast.errors import RunNotFound
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Append, Holder, Query, Store, Verdict
from holdfast.storage.oversize import take_out
from holdfast.storage.urls import open_store
from holdfast.testing.appends import Log
from holdfast.upkeep import archive, retention
from holdfast.upkeep.retention import Choice, RetentionPolicy

ME = Holder(id="me", ttl_s=30.0)
ENDED = RetentionPolicy(keep=0)
ALL = RetentionPolicy(keep=0, status=("completed", "failed", "cancelled"))
BY_FLOW = RetentionPolicy(keep=0, flow="child", status=("completed", "failed", "cancelled"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "runs.db")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    made.renew(ME)
    yield made
    made.close()


def family(store: Store, status: str, *children: str, run_id: str = "caller") -> None:
    """Make a run with this status that has started these children, which are completed."""
    log = Log(run_id, holder="me", fence=1)
    created = log.create(flow="caller", input_digest=b"input")
    assert store.append([created]) == [None]
    log.wrote(created)
    starts = tuple(
        Log(child).create(b"{}", status="completed", flow="child", origin=run_id) for child in children
    )
    assert store.append([log.next(status=status, along=Along(starts=starts), release=True)]) == [None]


graph = Graph("child", dict)


@graph.node
async def only(state: dict[str, Any]) -> None:
    if state["fails"]:
        raise ValueError("no luck")


flow = graph.chain(START, only, END).compile()


class _Starting:
    """A store whose new runs were started by another run."""

    def __init__(self, store: Store, origin: str | None) -> None:
        self._store = store
        self._origin = origin

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        return self._store.append(
            [
                msgspec.structs.replace(one, create=msgspec.structs.replace(one.create, origin=self._origin))
                if one.create is not None
                else one
                for one in batch
            ]
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def execute(store: Store, run_id: str, *, fails: bool = False, origin: str | None = None) -> None:
    """Execute a run that completes or fails, as a child of another run. Its input is a blob."""

    async def main() -> None:
        options: dict[str, Any] = {"flows": [flow], "run_base": "", "blob_over": 1000}
        async with hf.Engine(_Starting(store, origin), **options) as engine:
            await engine.run(flow, {"fails": fails, "text": run_id * 1000}, run_id=run_id)

    with suppress(hf.RunFailed):
        asyncio.run(main())


calling = Graph("caller", dict)


@calling.node
async def ring(state: dict[str, Any], ctx: hf.Context) -> None:
    await ctx.call(flow, {"fails": False, "text": "child" * 1000})


caller_flow = calling.chain(START, ring, END).compile()


def call(store: Store, run_id: str) -> None:
    """Execute a run that calls another one."""

    async def main() -> None:
        async with hf.Engine(store, flows=[flow, caller_flow], run_base="", blob_over=1000) as engine:
            await engine.run(caller_flow, {}, run_id=run_id)

    asyncio.run(main())


def goes(choices: list[Choice]) -> dict[str, str | None]:
    """Run -> why it is kept; None if it goes."""
    return {choice.run_id: None if choice.goes else choice.why for choice in choices}


def prune(store: Store, *wanted: RetentionPolicy) -> dict[str, str | None]:
    """Prune, and require that a dry run says the same before."""
    chosen = list(retention.choose(store, wanted))
    foretold = goes(list(retention.preview_deletion(store, lambda: chosen)))
    assert goes(list(chain.from_iterable(retention.delete_all(store, chosen)))) == foretold
    for run_id, why in foretold.items():
        if why is None:
            with pytest.raises(RunNotFound):
                store.run(run_id)
    return foretold


@pytest.mark.parametrize("status", ["running", "waiting", "paused", "interrupted", "failed"])
def test_a_child_stays_while_its_caller_may_need_it(store: Store, status: str) -> None:
    family(store, status, "child")
    told = prune(store, ENDED)
    assert told == {"child": f"run 'caller' started it and may still need it: it is {status}"}


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_child_goes_before_its_caller_once_that_is_over(store: Store, status: str) -> None:
    family(store, status, "child", "other")
    assert prune(store, BY_FLOW) == {"child": None, "other": None}
    assert store.run("caller").status == status


def test_a_child_goes_with_a_caller_that_goes_too(store: Store) -> None:
    execute(store, "caller", fails=True)
    execute(store, "child", origin="caller")
    assert prune(store, ALL) == {"caller": None, "child": None}


def test_a_child_stays_with_a_caller_that_stays_for_its_fork(store: Store) -> None:
    execute(store, "caller", fails=True)
    execute(store, "child", origin="caller")
    assert store.append([Log("fork", holder="me").create(parent="caller")]) == [None]
    assert prune(store, ALL) == {
        "caller": "run 'fork' was forked from it",
        "child": "run 'caller' started it and may still need it: it is failed",
    }


def test_a_child_outlives_a_caller_that_is_deleted(store: Store) -> None:
    family(store, "completed", "child")
    assert prune(store, RetentionPolicy(keep=0, flow="caller")) == {"caller": None}
    assert store.run("child").origin == "caller"
    assert prune(store, BY_FLOW) == {"child": None}


def test_three_generations_go_together_although_each_needs_the_next(store: Store) -> None:
    execute(store, "caller", fails=True)
    execute(store, "child", fails=True, origin="caller")
    execute(store, "grandchild", origin="child")
    assert prune(store, RetentionPolicy(keep=0)) == {
        "grandchild": "run 'child' started it and may still need it: it is failed"
    }
    assert prune(store, ALL) == {"caller": None, "child": None, "grandchild": None}


def test_prune_says_which_run_still_needs_a_child(
    store: Store, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    family(store, "failed", "child")
    for dry_run in (True, False):
        care._prune_many([ENDED], None, False, url, dry_run=dry_run, as_json=False)
        assert "child: run 'caller' started it and may still need it: it is failed" in capsys.readouterr().out


def test_a_sweep_keeps_the_blobs_of_a_run_that_another_run_started(store: Store) -> None:
    body, blobs = take_out(msgspec.json.encode({"input": "x" * 5000}), 1000)
    loose = Blob.of(b"no run refers to this")
    store.blobs.put(loose.digest, loose.body)
    start = Log("child").create(body, origin="caller", blobs=blobs)
    assert store.append([Log("caller").create(along=Along(starts=(start,)))]) == [None]
    assert archive.references(store, store.run("child")) == {blob.digest for blob in blobs}
    unused = {blob.digest for blob in (*blobs, loose)}
    assert retention._strike_used(store, unused, set()) is None
    assert unused == {loose.digest}


@pytest.mark.parametrize("caller", ["there", "deleted"])
def test_a_child_that_is_put_back_from_an_archive_has_its_origin_and_its_blobs(
    store: Store, tmp_path: Path, caller: str
) -> None:
    call(store, "caller")
    (row,) = store.runs(Query(origin="caller"))
    digests = archive.references(store, row)
    assert digests
    file = archive.archive(store, row.run_id, tmp_path / "child.holdfast.zst").place
    assert prune(store, RetentionPolicy(keep=0) if caller == "deleted" else BY_FLOW)[row.run_id] is None
    for digest in digests:
        store.blobs.delete(digest)
    archive.put_back(store, file)
    found = store.run(row.run_id)
    assert (found.origin, found.seq, found.digest) == ("caller", row.seq, row.digest)
    assert archive.references(store, found) == digests
    assert all(store.blobs.get(digest) for digest in digests)
