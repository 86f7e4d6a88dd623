"""Requests and processes that die: whatever happens, each request is carried out once, recorded as refused, or marked as unmet
because its run has ended; and it waits until then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import inbox, verification
from holdfast.storage.contract import Request, Store
from holdfast.storage.urls import open_store
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "asked.py"
PATIENCE_S = 60
ANSWERS = ("new", "repeated", "over")
"""What a sender says about its request."""


def make_flow() -> hf.Flow[Any]:
    """The flow of the program, whose node does not wait here."""
    graph = Graph("asked")
    graph.node(name="work")(lambda state, ctx: {"worked": ctx.attempt})
    return graph.chain(START, "work", END).compile()


FLOW = make_flow()


class Process:
    """The program `asked.py`, as a process."""

    def __init__(self, *arguments: Any) -> None:
        self.process = forked.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def end(self) -> int:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


class Place:
    """A store on which processes work, and what became of the requests to its runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)
        self.processes: list[Process] = []

    def start(self, verb: str, *arguments: Any) -> Process:
        process = Process(verb, self.url, *arguments)
        self.processes.append(process)
        return process

    def post(self, run_id: str, request: Any) -> bool:
        """Leave a request; False if the run was over by then."""
        try:
            self.store.post(run_id, inbox.stored_form(request))
        except hf.RunOver:
            return False
        return True

    def until(self, run_id: str, kind: str, count: int) -> None:
        """Wait until the log has so many events of a kind."""

        async def main() -> None:
            left = count
            async with hf.Engine(self.store, flows=[FLOW]) as engine:
                async for event in engine.follow(run_id):
                    left -= event.kind == kind
                    if not left:
                        return

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def work(self) -> None:
        """Let a worker of this process execute what is left."""

        async def main() -> None:
            async with hf.Engine(self.store, flows=[FLOW]) as engine:
                await asyncio.wait_for(engine.work(until="idle"), PATIENCE_S)

        asyncio.run(main())

    def request(self, run_id: str, request_id: str) -> Request | None:
        return next((one for one in self.store.inbox(run_id=run_id) if one.id == request_id), None)

    def kinds(self, run_id: str) -> list[str]:
        return [row.kind for row in self.store.events(run_id)]

    def assert_settled(self, run_id: str, request_id: str, effect: str, *, was_left: bool) -> str:
        """Return what became of a request: it was done, refused or unmet, or the run was over before. Fails if it is lost, still
        waits, or was carried out twice.
        """
        done = self.kinds(run_id).count(effect)
        refused = self.store.events(run_id, kinds=("RequestRefused",))
        found = self.request(run_id, request_id)
        assert verification.verify(self.store, run_id).problems == []
        assert (found is not None) == was_left, "the request is lost, or was stored although it was refused"
        assert done + len(refused) <= 1, "it was carried out twice, or carried out and refused"
        if found is None:
            assert not done
            return "over"
        assert found.taken or found.unmet, "it still waits"
        assert found.unmet == (not done and not refused)
        return "done" if done else "refused" if refused else "unmet"

    def close(self) -> None:
        for process in self.processes:
            process.process.kill()
            process.process.communicate()
        self.store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Place]:
    schema = schema_for(tmp_path)
    url = f"{shared_url()}&schema={schema}" if request.param == "postgres" else str(tmp_path / "runs.db")
    place = Place(url)
    yield place
    place.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


ASKED: dict[str, tuple[Any, str, str]] = {
    "signal": (inbox.Signal(id="1", name="news"), "SignalReceived", "done"),
    "edit": (inbox.Edit(id="1", fields={"x": 1}), "StateEdited", "done"),
    "pause": (inbox.Pause(id="1"), "RunPaused", "done"),
    "cancel": (inbox.Cancel(id="1"), "RunCancelled", "done"),
    "retry": (inbox.Retry(id="1", node="work"), "NodeScheduled", "done"),
    "skip": (inbox.Skip(id="1", node="work"), "NodeSkipped", "done"),
    "resume": (inbox.Resume(id="1"), "RunResumed", "done"),
    "answer": (inbox.Answer(id="1", key="why", value=1), "QuestionAnswered", "refused"),
}
"""Run -> the request that is left for it, the event that carries it out, and what becomes of it if the holder dies."""


def test_requests_that_are_left_while_their_holder_is_killed_are_carried_out_by_the_next_one(
    place: Place,
) -> None:
    holder = place.start("run", ",".join(ASKED))
    assert holder.line() == "in"
    os.kill(holder.process.pid, signal.SIGSTOP)  # so that it finds none of them
    for run_id, (request, _, _) in ASKED.items():
        assert place.post(run_id, request)
    holder.kill()
    assert holder.end() == -signal.SIGKILL
    place.work()
    for run_id, (_, effect, ends) in ASKED.items():
        assert place.assert_settled(run_id, "1", effect, was_left=True) == ends, run_id
    assert place.store.run("pause").status == "paused"
    assert place.store.run("cancel").status == "cancelled"
    assert {place.store.run(one).status for one in ASKED if one not in ("pause", "cancel")} == {"completed"}


@pytest.mark.parametrize("name", ["signal", "cancel", "resume"])
def test_a_request_is_settled_wherever_its_holder_is_killed_after_it_was_left(
    place: Place, name: str
) -> None:
    request, effect, _ = ASKED[name]
    outcomes = []
    for number in range(1, 100):
        run_id = f"{name}-{number}"
        holder = place.start("run", run_id, "--die", number)
        assert holder.line() == "in"
        assert place.post(run_id, request)
        holder.go_on()
        code = holder.end()
        place.work()
        outcomes.append(place.assert_settled(run_id, "1", effect, was_left=True))
        assert place.store.run(run_id).status in ("completed", "cancelled")
        if code == 0:
            break
    assert number > 3, "it was killed at every write, and then not any more"


@pytest.mark.parametrize("name", ["signal", "pause"])
def test_a_request_that_is_left_at_any_write_around_the_end_of_the_run_is_settled(
    place: Place, name: str
) -> None:
    request, effect, _ = ASKED[name]
    outcomes: dict[str, str] = {}
    for number in range(1, 100):
        run_id = f"{name}-{number}"
        holder = place.start("run", run_id, "--wait", number)
        assert holder.line() == "in"
        holder.go_on()
        point = holder.line()
        left: list[bool] = []
        # On SQLite, a request waits for a transaction that is under way: so it is left in a thread.
        sender = threading.Thread(target=lambda: left.append(place.post(run_id, request)))  # noqa: B023
        sender.start()
        if not point.endswith(".written"):
            sender.join(PATIENCE_S if point != "over" else None)
        if point != "over":  # then it ends, and does not read any more
            holder.go_on()
        sender.join(PATIENCE_S)
        assert holder.end() == 0
        place.work()
        outcomes[f"{number} {point}"] = place.assert_settled(run_id, "1", effect, was_left=left[0])
        if point == "over":
            break
    assert list(outcomes.values()) == sorted(outcomes.values(), reverse=True), "first unmet, then over"
    found = {point.partition(" ")[2]: outcome for point, outcome in outcomes.items()}
    assert (found["append.before"], found["append.committed"]) == ("unmet", "over"), outcomes


def test_a_run_that_completes_at_any_write_of_a_request_settles_it(place: Place) -> None:
    """The other order: the sender is in the middle of its request when the run completes."""
    outcomes: dict[str, tuple[str, str]] = {}
    for number in range(1, 100):
        run_id = f"r{number}"
        holder, sender = place.start("run", run_id), place.start("signal", run_id, "1", "--wait", number)
        assert (holder.line(), sender.line()) == ("in", "in")
        sender.go_on()
        point = sender.line()
        if point in ANSWERS:  # it had fewer writes
            break
        holder.go_on()
        if not point.endswith(".written"):  # the run waits for a transaction that is under way
            assert holder.line() == "over"
        sender.go_on()
        answer = sender.line()
        assert (holder.end(), sender.end()) == (0, 0)
        settled = place.assert_settled(run_id, "signal:1", "SignalReceived", was_left=point != "post.before")
        outcomes[f"{number} {point}"] = (answer, settled)
    found = {point.partition(" ")[2]: outcome for point, outcome in outcomes.items()}
    assert found["post.before"] == ("over", "over"), outcomes
    assert found["post.committed"] == ("over", "unmet"), outcomes


def test_a_sender_that_is_killed_at_any_write_has_left_its_request_or_not_and_may_repeat_it(
    place: Place,
) -> None:
    holder = place.start("run", "r")
    assert holder.line() == "in"
    for number in range(1, 100):
        sender = place.start("signal", "r", number, "--die", number)
        assert sender.line() == "in"
        sender.go_on()
        code = sender.end()
        was_left = place.request("r", f"signal:{number}") is not None
        again = place.start("signal", "r", number)
        assert again.line() == "in"
        again.go_on()
        assert again.line() == ("repeated" if was_left else "new")
        assert again.end() == 0
        if code == 0:
            break
    assert number > 2
    place.until("r", "SignalReceived", number)  # a signal that still waits when the run completes is unmet
    holder.go_on()
    assert holder.end() == 0
    assert [place.request("r", f"signal:{one}") is not None for one in range(1, number + 1)] == [
        True
    ] * number
    assert place.kinds("r").count("SignalReceived") == number


def test_16_processes_that_leave_the_same_request_at_once_leave_it_once(place: Place) -> None:
    asyncio.run(_fail(place))
    senders = [place.start("leave", "r", "7") for _ in range(16)]
    assert {sender.line() for sender in senders} == {"in"}
    for sender in senders:
        sender.go_on()
    assert sorted(sender.line() for sender in senders) == ["new", *["repeated"] * 15]
    assert {sender.end() for sender in senders} == {0}
    assert [(one.id, one.verb) for one in place.store.inbox(run_id="r")] == [("request:7", "resume")]
    place.work()
    assert place.kinds("r").count("RunResumed") == 1
    assert place.assert_settled("r", "request:7", "RunResumed", was_left=True) == "done"


async def _fail(place: Place) -> None:
    """Make the run `r`, which was cancelled half-way by its process: it is interrupted."""
    async with hf.Engine(place.store, flows=[FLOW]) as engine:
        await engine.start(FLOW, {}, run_id="r")
        await engine.pause("r")
