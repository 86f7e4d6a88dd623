"""What can go wrong between a client and a server, each as a plain error: for the store of a server, and for the client."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import pytest
from app_client import SECRET
from canned_server import answer, canned
from hosted import ADMIN, hosting
from served_flows import flow

import holdfast as hf
from holdfast.errors import Problem, SchemaTooNew, SettingError, StoreBusy, StoreUnusable
from holdfast.reading.views import EventView
from holdfast.server import client as client_module
from holdfast.server import http_session, problems
from holdfast.storage.contract import Query
from holdfast.storage.http import connections, problem_types, server_url
from holdfast.storage.http.row_format import ROWS, StoreAbout
from holdfast.storage.http.store import RemoteStore
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.tokens import Token, digest_of

Look = Callable[..., Any]


def open_store(url: str, token: str = ADMIN) -> Any:
    RemoteStore(url, token=token).close()


def use_client(url: str, token: str = ADMIN) -> Any:
    return hf.BlockingClient(url, token).questions()


both = pytest.mark.parametrize("look", [open_store, use_client])


@pytest.fixture(scope="module")
def host():
    with hosting() as made:
        yield made


@pytest.fixture(scope="module")
def served(host):
    store = MemoryStore()
    with host.serving(store, flows=[flow]) as url:
        hf.run(flow, {}, run_id="ok", store=store)
        yield url, store


@both
def test_a_wrong_token_is_refused_with_a_way_to_get_one(served, look):
    with pytest.raises(SettingError, match=r"refuses the request: .* token .*holdfast token create"):
        look(served[0], "admin.wrongwrongwrongwrong")


@both
def test_a_revoked_token_is_refused(served, look):
    url, store = served
    token = Token(
        id="gone", name="eve", role="read", digest=digest_of(SECRET), created_at=0.0, revoked_at=1.0
    )
    if store.tokens.get("gone") is None:
        store.tokens.add(token)
    with pytest.raises(SettingError, match="it is unknown, has expired, or was revoked"):
        look(url, f"gone.{SECRET}")


def test_a_role_that_is_too_low_is_named(served):
    with pytest.raises(SettingError, match="needs the role 'operate'"):
        hf.BlockingClient(served[0], f"read.{SECRET}").cancel("ok")


@both
def test_a_server_that_is_gone_is_named(look):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(StoreUnusable, match=r"no Holdfast server answers at http://127.*holdfast serve"):
        look(url)


@both
@pytest.mark.parametrize(
    ("told", "words"),
    [
        (answer(b"<html>", Content_Type="text/html"), "cannot be read"),
        (answer(b"{}"), "cannot be read"),
        (
            answer(b"no", status=404, Content_Type="text/plain"),
            "status 404, which is not an answer of Holdfast",
        ),
        (answer(b"{}", status=502, Content_Type="application/problem+json"), "status 502"),
        (answer(b"", status=302, Location="https://evil.example/"), "redirects to 'https://evil.example/'"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no Holdfast server answers"),
    ],
)
def test_what_is_not_a_holdfast_server_is_said_to_be_none(look, told, words):
    with canned(told, keeps=False) as other, pytest.raises(StoreUnusable, match=words):
        look(other.url)
    assert all("evil.example" not in request for request in other.requests)


@both
def test_a_certificate_of_another_host_is_refused_before_the_token_is_sent(look):
    with (
        canned(answer(), tls=True) as other,
        pytest.raises(StoreUnusable, match=r"certificate .* is not valid"),
    ):
        look(other.url)
    assert other.requests == []


@both
def test_an_answer_that_is_too_large_is_not_read(look, monkeypatch):
    monkeypatch.setattr(connections, "JSON_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(http_session, "JSON_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(connections.Connections.send, "__kwdefaults__", {"bytes_max": 1 << 20})
    with canned(answer(b" " * (3 << 20))) as other, pytest.raises(StoreUnusable, match="larger than 1 MB"):
        look(other.url)


def follow(url: str) -> list[Any]:
    async def main() -> list[Any]:
        async with hf.Client(url, ADMIN) as client:
            return [event async for event in client.follow("r")]

    return asyncio.run(main())


def stream(frames: bytes) -> bytes:
    return answer(frames, Content_Type="text/event-stream")


@pytest.mark.parametrize(
    "frames",
    [
        b"event: event\ndata: " + b"x" * (1 << 20),
        b"event: event\ndata: nonsense\n\n",
        b"event: event\ndata: " + b"[" * 60_000 + b"\n\n",
        b'event: reset\ndata: {"seq": "x"}\n\n',
        b"event: chunk\ndata: {}\n\n",
        b"event: problem\ndata: []\n\n",
    ],
)
def test_a_stream_that_cannot_be_read_is_reported(frames, monkeypatch):
    monkeypatch.setattr(http_session, "_FRAME_BYTES_MAX", 1 << 19)
    with canned(stream(frames)) as other, pytest.raises(StoreUnusable, match=r"cannot be read|is larger"):
        follow(other.url)


def test_a_follower_tries_again_if_the_server_is_stopping():
    stopping = problems.refuse("closed", "The server is stopping.").problem
    busy = answer(msgspec.json.encode(stopping), 503, Content_Type=problems.MEDIA_TYPE)
    over = stream(b'event: over\ndata: {"seq": 1, "status": "completed"}\n\n')
    told = stream(b"event: problem\ndata: " + msgspec.json.encode(stopping) + b"\n\n")
    with canned(busy, told, over) as other:
        assert follow(other.url) == []
        assert len(other.requests) == 3
    with canned(busy) as other, pytest.raises(StoreBusy, match="stopping"):
        follow(other.url)


def test_a_follower_waits_longer_for_a_server_that_has_answered_before(monkeypatch):
    monkeypatch.setattr(client_module, "_RESTART_S", (0.0,) * 6)
    event = EventView(
        seq=1, at=0.0, kind="RunCreated", node=None, iteration=0, execution=0, attempt=0, by=None, body={}
    )
    began = stream(b"id: 1\nevent: event\ndata: " + msgspec.json.encode(event) + b"\n\n")
    wrong = answer(b"", 502, Content_Type="text/plain")
    over = stream(b'event: over\ndata: {"seq": 1, "status": "completed"}\n\n')
    with canned(began, *[wrong] * 6, over) as other:
        assert [found.seq for found in follow(other.url)] == [1]
    with canned(wrong, wrong, wrong, wrong, over) as other, pytest.raises(StoreUnusable, match="502"):
        follow(other.url)


def test_an_answer_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr(http_session, "WHOLE_S", 0.05)
    unfinished = answer(b"[" * 10)[:-1]
    with canned(unfinished) as other, pytest.raises(StoreBusy, match="did not answer"):
        use_client(other.url)


@both
def test_json_that_is_nested_too_deeply_is_refused(look):
    deep = b"[" * 100_000
    with canned(answer(deep)) as other, pytest.raises(StoreUnusable, match="cannot be read"):
        look(other.url)
    wrong = answer(b'{"about": ' + deep, 400, Content_Type=problems.MEDIA_TYPE)
    with canned(wrong) as other, pytest.raises(StoreUnusable, match="status 400"):
        look(other.url)


def test_pages_without_end_are_not_read_for_ever():
    about = answer(msgspec.json.encode(StoreAbout(rows=ROWS, version="9", url="x", generation="g", now=5.0)))
    empty = answer(b'{"events": [], "runs": [], "more": true}')
    with canned(about, empty) as other, closing(RemoteStore(other.url, token=ADMIN)) as store:
        assert store.events("r") == []
        assert store.runs(Query()) == []


def test_a_server_that_does_not_answer_is_given_up(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = server_url.ServerUrl.parse(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreBusy, match=r"did not answer within 0.05 s"):
            connections.Connections(url, None, answer_s=0.05).get("/store", StoreAbout)


ABOUT = msgspec.json.encode(StoreAbout(rows=ROWS, version="9", url="x", generation="g", now=5.0))


def test_a_connection_is_kept_and_each_request_sent_once():
    with canned(answer(ABOUT)) as other:
        store = RemoteStore(other.url, token=ADMIN)
        assert [store.now() for _ in range(3)] == [5.0] * 3
        store.close()
    assert (len(other.requests), other.connections) == (4, 1)


def test_a_kept_connection_that_the_server_has_closed_is_opened_again():
    with canned(answer(ABOUT), keeps=False) as other:
        store = RemoteStore(other.url, token=ADMIN)
        assert [store.now() for _ in range(3)] == [5.0] * 3
        assert len(other.requests) == 4
        store.close()


def test_a_request_that_was_cut_off_is_sent_again_with_the_same_key():
    with canned(None, None, answer(json.dumps({"id": "r1"}).encode(), status=201)) as other:
        assert hf.BlockingClient(other.url, ADMIN).start("order", {"item": "desk"}) == "r1"
    keys = {
        line for sent in other.requests for line in sent.splitlines() if line.startswith("Idempotency-Key")
    }
    assert len(other.requests) == 3
    assert len(keys) == 1


def test_a_server_with_older_rows_than_can_be_read_is_refused():
    old = msgspec.json.encode(StoreAbout(rows=ROWS - 1, version="0.0.1", url="x", generation="g", now=5.0))
    with canned(answer(old)) as other, pytest.raises(SchemaTooNew, match=r"runs Holdfast 0\.0\.1"):
        RemoteStore(other.url, token=ADMIN)


def test_a_client_that_reads_older_rows_than_the_server_gives_is_refused(served, monkeypatch):
    monkeypatch.setattr(connections, "ROWS", ROWS - 1)
    with pytest.raises(SchemaTooNew, match=r"Install Holdfast .* where the client runs"):
        open_store(served[0])


def test_the_client_raises_what_the_engine_raises(served):
    client = hf.BlockingClient(served[0], ADMIN)
    with pytest.raises(hf.RunNotFound) as missing:
        client.get("nothing")
    assert missing.value.run_id == "nothing"
    with pytest.raises(hf.RunOver) as over:
        client.answer("ok", "ship", "approve")
    assert over.value.run_id == "ok"
    with pytest.raises(hf.FlowNotFound) as unknown:
        client.start("nothing")
    assert (unknown.value.flow, unknown.value.known) == ("nothing", ("order",))
    with pytest.raises(hf.RunExists):
        client.start("order", {"item": "desk"}, run_id="ok")


@pytest.mark.parametrize("kind", problem_types.ERRORS.values(), ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_it_was(kind):
    error = kind.__new__(kind)
    error.args = ("what happened",)
    error.run_id, error.known, error.reason, error.path, error.field = "r1", ("a", "b"), "no", "state.a", "a"
    error.problems = (Problem("tasks[0]", "no"),)
    sent = msgspec.json.encode(problems.problem_of(error))
    back = problem_types.error_of(msgspec.json.decode(sent, type=problem_types.ReportedProblem), "http://x")
    assert (type(back), str(back), back.run_id, back.known) == (kind, "what happened", "r1", ("a", "b"))


@pytest.mark.parametrize("name", problems.KINDS)
def test_every_problem_of_the_server_is_an_error_for_its_client(name):
    problem = problems.refuse(name, "What happened.").problem
    error = problem_types.error_of(problem, "http://x")
    assert "What happened." in str(error)
    fault = isinstance(error, (StoreBusy, StoreUnusable))
    assert fault == (problem.status >= 500 or problem.status in (408, 429))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:CANARY@host", "contains a user or a password"),
        ("http://127.0.0.1:1/#token=CANARY", "contains a token"),
        ("http://holdfast.example.com", "would send the token unencrypted"),
        ("https://", "not the URL of a server"),
        ("https://host:0", "not the URL of a server"),
        ("https://host:x", "not the URL of a server"),
        ("https://host/?a=b", "not the URL of a server"),
        ("https://host/a b", "not the URL of a server"),
        ("ftp://host", "not the URL of a server"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url, words):
    with pytest.raises(SettingError, match=words) as refused:
        hf.Client(url, ADMIN)
    assert "CANARY" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://Host.example", "https://host.example"),
        ("https://host:443/", "https://host"),
        ("http://127.0.0.1:8765/holdfast/", "http://127.0.0.1:8765/holdfast"),
        ("http://[::1]:8765", "http://[::1]:8765"),
    ],
)
def test_a_url_is_written_in_one_way(url, text):
    assert hf.Client(url, ADMIN).url == text


def test_a_token_is_taken_from_the_environment_and_never_shown(served, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", ADMIN)
    assert hf.BlockingClient(served[0]).get("ok").status == "completed"
    monkeypatch.setenv("HOLDFAST_TOKEN", "CANARY CANARY")
    with pytest.raises(SettingError, match="HOLDFAST_TOKEN is not a token") as refused:
        hf.Client(served[0])
    assert "CANARY" not in str(refused.value)


def test_an_id_that_was_used_for_something_else_is_refused(served):
    url, store = served
    hf.run(flow, {"asks": True}, run_id="asks", store=store)
    client = hf.BlockingClient(url, ADMIN)
    assert not client.signal("asks", "go", {"n": 1}, id="k1").repeated
    assert client.signal("asks", "go", {"n": 1}, id="k1").repeated
    with pytest.raises(hf.RequestExists) as reused:
        client.signal("asks", "go", {"n": 2}, id="k1")
    assert reused.value.run_id == "asks"


def test_a_verb_that_would_do_something_else_than_its_preview_is_refused(served):
    url, store = served
    hf.run(flow, {"asks": True}, run_id="seen", store=store)
    client = hf.BlockingClient(url, ADMIN)
    seen = client.preview("seen", "cancel")
    assert [question.node for question in seen.closes] == ["ship"]
    client.answer("seen", "ship", "approve")
    with pytest.raises(hf.PreviewStale):
        client.cancel("seen", expects=seen.digest)
    with pytest.raises(SettingError, match=r"'cancle' has no preview.*did you mean 'cancel'"):
        client.preview("seen", "cancle")


def test_requests_that_wait_are_listed(served):
    url, store = served
    with pytest.raises(hf.RunFailed):
        hf.run(flow, {"fails": True}, run_id="failed", store=store)
    client = hf.BlockingClient(url, ADMIN)
    client.resume("failed", force=True, id="k2", by="eve")
    (asked,) = client.requests("failed")
    assert (asked.verb, asked.status, asked.by) == ("resume", "waiting", "admin-ada/eve")


def test_the_questions_of_many_runs_are_read_in_pages_oldest_first(served, monkeypatch):
    url, store = served
    for name in ("q1", "q2", "q3"):
        hf.run(flow, {"asks": True}, run_id=name, store=store)
    client = hf.BlockingClient(url, ADMIN)
    monkeypatch.setattr("holdfast.server.client._RUNS_MAX", 1)
    asked = [one.run_id for one in client.questions()]
    assert [run_id for run_id in asked if run_id.startswith("q")] == ["q1", "q2", "q3"]
    assert [(one.run_id, one.question.node) for one in client.questions("q2")] == [("q2", "ship")]


def test_a_run_is_pruned_by_an_administrator(served):
    url, store = served
    hf.run(flow, {}, run_id="long", store=store)
    client = hf.BlockingClient(url, ADMIN)
    pruned = client.prune("long", 1, compact=True)
    assert (pruned.run_id, pruned.kept) == ("long", 1)
    assert len(client.checkpoints("long")) == 1


def test_a_run_is_deleted_by_an_administrator_over_http(served):
    url, store = served
    hf.run(flow, {}, run_id="over", store=store)
    hf.run(flow, {"asks": True}, run_id="going", store=store)
    with hf.BlockingClient(url, ADMIN) as client:
        assert (client.delete("over").run_id, client.get("going").status) == ("over", "waiting")
        with pytest.raises(hf.RunNotFound):
            client.delete("over")
        with pytest.raises(hf.ResumeRefused, match="it is waiting"):
            client.delete("going")


def test_a_blocking_client_in_a_with_block_keeps_its_connection_for_all_threads(served):
    with hf.BlockingClient(served[0], ADMIN) as client:
        sessions = {id(client.call(session_of)) for _ in range(2)}
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(client.get, ["ok", "ok"]))
            sessions |= {id(one) for one in pool.map(client.call, [session_of, session_of])}
        assert ([run.status for run in found], len(sessions)) == (["completed"] * 2, 1)
        with pytest.raises(hf.RunNotFound):
            client.get("nothing")
        with pytest.raises(SettingError, match="is open already"), client:
            pass
    assert not any(thread.name == "holdfast-client" for thread in threading.enumerate())
    client.close()
    for use in (lambda: client.get("ok"), client.__enter__):
        with pytest.raises(
            SettingError, match=r"this client is closed; make another one with hf.BlockingClient"
        ):
            use()


def test_a_call_of_a_client_that_another_thread_closes_says_so(served):
    begun = threading.Event()

    async def hang(client: hf.Client) -> None:
        begun.set()
        await asyncio.Event().wait()

    client = hf.BlockingClient(served[0], ADMIN)
    with ThreadPoolExecutor(1) as pool:
        with client:
            hanging = pool.submit(client.call, hang)
            begun.wait()
        with pytest.raises(SettingError, match="this client is closed"):
            hanging.result()


async def session_of(client: hf.Client) -> Any:
    return client._open()


def test_without_aiohttp_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['aiohttp'] = None; import holdfast as hf; hf.Client('https://host', 't')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast[http]'" in done.stderr.splitlines()[-1]


def test_the_questions_of_all_runs_are_listed_as_the_engine_lists_them(served):
    url, store = served
    hf.run(flow, {"asks": True}, run_id="curious", store=store)
    client = hf.BlockingClient(url, ADMIN)
    assert client.questions() == hf.questions(store=store)
    assert client.questions("curious") == hf.questions("curious", store=store)
    with pytest.raises(hf.RunNotFound):
        client.questions("nothing")
