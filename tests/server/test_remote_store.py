"""A store on a server: it reads what the store of the server reads, and says plainly what is possible only over there."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import msgspec
import pytest
from canned_server import answer, canned
from hosted import ADMIN, Hosting, hosting
from served_flows import flow

import holdfast as hf
from holdfast.core import requests
from holdfast.errors import BlobCorrupt, BlobMissing, SettingError, StoreUnusable
from holdfast.reading import inbox
from holdfast.reading.reader import Reader
from holdfast.server import store_rows
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Holder, Query, Request
from holdfast.storage.http.row_format import ROWS, StoreAbout
from holdfast.storage.http.store import RemoteStore
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.queues import Wanted
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.along import AlongConformance
from holdfast.testing.appends import Log
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.queues import QueuesConformance

HOST: list[Hosting] = []


@pytest.fixture(scope="module", autouse=True)
def host():
    with hosting() as made:
        HOST.append(made)
        yield made
        HOST.clear()


class _Parted:
    """A part of a store: the named verbs are those of the store on the server, the others those of the server's own store."""

    def __init__(self, here: Any, there: Any, remote: set[str]) -> None:
        self._here, self._there, self._remote = here, there, remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there if name in self._remote else self._here, name)


READ = {"run", "runs", "events", "snapshot", "definition", "now", "check", "generation"}


class ReadOverHttp(_Parted):
    """A store that writes by itself and reads through a server."""

    def __init__(self, here: Any, opened: ExitStack, server: str) -> None:
        self._opened = opened
        there = RemoteStore(server, token=ADMIN)
        opened.callback(there.close)
        super().__init__(here, there, READ)
        self.blobs = _Parted(here.blobs, there.blobs, {"get", "spilled"})
        self.queues = _Parted(here.queues, there.queues, {"holders", "queues", "board", "offered", "waiting"})
        self.upkeep = _Parted(here.upkeep, there.upkeep, {"trimmed", "snapshots", "facts"})

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> Any:
        read = self._there.inbox if holder is None else self._here.inbox
        return read(holder, run_id=run_id)

    def close(self) -> None:
        self._opened.close()
        self._here.close()


LEFT_OUT = {
    "test_a_closed_store_refuses_every_verb",
    "test_a_forked_child_is_refused_every_verb",
    "test_the_url_opens_the_store_and_holds_its_scheme",
    "test_blobs_are_durable_before_the_rows_that_refer_to_them",
    "test_an_append_whose_blob_cannot_be_kept_is_refused_and_its_neighbours_are_written",
}
"""What is about writing, or about the store object of the tests itself."""


class _OverHttp:
    """Serves the store of a conformance suite."""

    def make(self, folder: Any, clock: Any) -> Any:
        raise NotImplementedError

    def open(self, folder: Any, clock: Any) -> Any:
        here, opened = self.make(folder, clock), ExitStack()
        return ReadOverHttp(here, opened, opened.enter_context(HOST[0].serving(self.make(folder, clock))))


class TestMemoryOverHttp(_OverHttp, StoreConformance):
    persistent = False

    def make(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteOverHttp(_OverHttp, StoreConformance):
    def make(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)


class TestAlongOverHttp(_OverHttp, AlongConformance):
    def make(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestQueuesOverHttp(_OverHttp, QueuesConformance):
    shared = False

    def make(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


def _reads(test: Any) -> bool:
    """Return whether a test of a suite is about what a store on a server reads."""
    source = inspect.getsource(test)
    return any(
        f"{verb}(" in source
        for verb in (".events", ".runs", ".snapshot", ".definition", ".board", ".holders")
    )


for suite in (TestMemoryOverHttp, TestSqliteOverHttp, TestAlongOverHttp, TestQueuesOverHttp):
    tests = {name for name in dir(suite) if name.startswith("test_")}
    for name in tests:
        if name in LEFT_OUT or not _reads(getattr(suite, name)):
            setattr(suite, name, None)


# --- what only a store on a server does --------------------------------------------------------------


@pytest.fixture
def remote(host):
    """A store on a server, and the store that the server has."""
    here = MemoryStore()
    hf.run(flow, {"parts": list(range(10))}, run_id="r1", store=here)
    with host.serving(here, flows=[flow]) as url:
        there = RemoteStore(url, token=ADMIN)
        yield there, here
        there.close()


@pytest.mark.parametrize(
    ("name", "limit"), [("EVENTS_MAX", 7), ("EVENTS_BYTES_MAX", 100), ("EVENTS_BYTES_MAX", 1)]
)
def test_a_long_log_is_read_in_pages(remote, monkeypatch, name, limit):
    there, here = remote
    monkeypatch.setattr(store_rows, name, limit)
    assert there.events("r1") == here.events("r1")
    assert there.events("r1", 3, 12) == here.events("r1", 3, 12)
    assert there.events("r1", limit=9) == here.events("r1", limit=9)
    assert there.events("r1", kinds=["ItemCompleted"]) == here.events("r1", kinds=["ItemCompleted"])


def test_many_runs_are_listed_in_pages(remote, monkeypatch):
    there, here = remote
    ids = [hf.fork("r1", store=here) for _ in range(12)]
    monkeypatch.setattr(store_rows, "RUNS_MAX", 5)
    assert there.runs(Query(limit=11)) == here.runs(Query(limit=11))
    assert there.runs(Query()) == here.runs(Query())
    assert there.runs(Query(ids=tuple(ids), limit=11)) == here.runs(Query(ids=tuple(ids), limit=11))


def test_a_query_names_only_the_conditions_that_it_has(host):
    """So a server that does not know a new condition still answers the queries without it."""
    asked = msgspec.json.decode(msgspec.json.encode(Query(origin="r1")))
    assert asked == {"origin": "r1"}


def test_blobs_are_fetched_by_their_digest(remote):
    there, here = remote
    blob = Blob.of(b"x" * 100_000)
    here.blobs.put(blob.digest, blob.body)
    assert there.blobs.get(blob.digest) == blob.body
    other = Blob.of(b"never stored").digest
    with pytest.raises(BlobMissing) as missing:
        there.blobs.get(other)
    assert missing.value.digest == other


def test_a_blob_that_is_not_what_its_digest_says_is_refused():
    about = msgspec.json.encode(StoreAbout(rows=ROWS, version="1", url="x", generation="g", now=1.0))
    with canned(answer(about), answer(b"forged")) as other:
        store = RemoteStore(other.url, token=ADMIN)
        with pytest.raises(BlobCorrupt):
            store.blobs.get(Blob.of(b"true").digest)
        store.close()


def test_what_nodes_stream_is_read_and_only_the_rest_is_returned(remote):
    there, here = remote
    here.blobs.spill("r1", "a", b"one")
    assert there.blobs.spilled("r1") == here.blobs.spilled("r1")
    first = there.blobs.spilled_after({"r1": {}})["r1"]["a"]
    here.blobs.spill("r1", "a", b"two")
    second = there.blobs.spilled_after({"r1": {"a": first.mark}})["r1"]["a"]
    assert first.data + second.data == here.blobs.spilled("r1")["a"]


WRITING = [
    ("append", ([],)), ("claim", ("r1", Holder(id="h"))), ("renew", (Holder(id="h"),)), ("release", ("r1", "h", 1)),
    ("appended", ("r1", 1, b"")), ("inbox", ("h",)), ("queues.take", (Holder(id="h"), Wanted(flows=("order",)))),
    ("queues.limit", ("default", 3)), ("queues.hear", (0.0,)), ("upkeep.delete", ("r1", 1)), ("upkeep.sweep", ()),
    ("blobs.put", ("ab", b"")), ("blobs.delete", ("ab",)), ("tokens.all", ()),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "args"), WRITING, ids=[verb for verb, _ in WRITING])
def test_a_verb_that_needs_a_lease_names_the_store_on_the_machine_of_the_server(remote, verb, args):
    there, _ = remote
    with pytest.raises(
        SettingError, match=r"can be read and asked.*on the machine of the server.*--store memory://"
    ):
        attrgetter(verb)(there)(*args)


def test_a_store_that_was_closed_refuses_to_read(remote):
    there, _ = remote
    there.close()
    with pytest.raises(StoreUnusable, match="is closed"):
        there.run("r1")


def test_a_request_is_posted_once_under_the_name_of_the_token(remote):
    there, here = remote
    with pytest.raises(hf.RunFailed):
        hf.run(flow, {"fails": True}, run_id="r2", store=here)
    request = Request(
        id="k1", verb="resume", body={"force": True, "checkpoint": None}, by="mallory", reason="why"
    )
    assert [there.post("r2", request), there.post("r2", request)] == [True, False]
    (stored,) = here.inbox(run_id="r2")
    assert (stored.verb, stored.by, stored.reason, stored.body["force"]) == (
        "resume",
        "admin-ada",
        "why",
        True,
    )
    assert there.inbox(run_id="r2") == here.inbox(run_id="r2")
    posted = there.queues.post_all([
        Request(id="k2", verb="retry", run_id="r1"),
        Request(id="k1", verb="resume", run_id="r2", body={"force": False}),
        Request(id="k3", verb="resume", run_id="nothing"),
    ])  # fmt: skip
    assert [type(one) for one in posted] == [hf.RunOver, hf.RequestExists, hf.RunNotFound]


def test_the_same_request_to_many_runs_reaches_each_of_them(remote):
    there, here = remote
    for run_id in ("r2", "r3"):
        with pytest.raises(hf.RunFailed):
            hf.run(flow, {"fails": True}, run_id=run_id, store=here)
    same = [Request(id="where:1:5", verb="resume", run_id=run_id) for run_id in ("r2", "r3")]
    assert there.queues.post_all(same) == [True, True]
    assert there.queues.post_all(same) == [False, False]


SENT = {
    "a resume with all its options": requests.Resume(
        checkpoint=1, edit={"item": "lamp"}, force=True, confirm=["charge"], on_change="compatible", rename={"a": "b"},
        budget=hf.Budget(usd=5), scope=["ship"],
    ),
    "a retry": requests.Retry(node="charge", fresh=True, confirm=["r.c/x"]),
    "a skip": requests.Skip(node="charge", update={"item": "lamp"}),
    "a signal": requests.Signal(name="go", payload=[1, None]),
    "a signal without a payload": requests.Signal(name="go"),
}  # fmt: skip


@pytest.mark.parametrize("what", SENT)
def test_a_request_arrives_as_it_was_made(remote, what):
    there, here = remote
    with pytest.raises(hf.RunFailed):
        hf.run(flow, {"fails": True}, run_id="r2", store=here)
    made = inbox.stored_form(msgspec.structs.replace(SENT[what], id="q", reason="why"))
    assert there.post("r2", made)
    if made.verb != "signal":
        (stored,) = here.inbox(run_id="r2")
        assert (stored.verb, stored.reason, stored.body) == (made.verb, "why", made.body)


def test_what_a_function_has_changed_cannot_be_sent(remote):
    there, _ = remote
    made = inbox.stored_form(requests.Edit(id="q", changes={"set": {"item": "lamp"}}, seen=3))
    with pytest.raises(SettingError, match="changes and seen cannot be sent"):
        there.post("r1", made)


def test_the_digest_of_a_preview_is_sent_with_a_request(remote):
    there, here = remote
    with pytest.raises(hf.RunFailed):
        hf.run(flow, {"fails": True}, run_id="r2", store=here)
    with pytest.raises(hf.PreviewStale):
        there.post("r2", inbox.stored_form(requests.Resume(id="q", expects="another")))


def test_a_client_and_a_reader_list_the_runs_that_a_run_started(host):
    here = MemoryStore()
    starts = tuple(Log(run_id).create(origin="caller") for run_id in ("c1", "c2"))
    assert here.append([Log("caller").create(along=Along(starts=starts))]) == [None]
    expected = [("c2", "caller"), ("c1", "caller")]
    assert [(run.id, run.origin) for run in Reader(here).runs(origin="caller")] == expected
    with host.serving(here, flows=[flow]) as url:
        client = hf.BlockingClient(url, ADMIN)
        assert [(run.id, run.origin) for run in client.runs(origin="caller")] == expected
        assert client.runs(origin="c1") == []
