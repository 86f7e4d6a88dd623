"""A run is started, watched, interrupted by `kill -9` of its worker, resumed, answered and forked, all of it over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import holdfast as hf
from command_line import caller, furnish
from served_process import PATIENCE_S, TOKEN, Installation, kill


@pytest.fixture
def installed(tmp_path):
    (tmp_path / "server").mkdir()
    made = Installation(tmp_path / "server")
    yield made
    made.close()


def test_by_the_client(installed):
    url = installed.serve("flow.py", "--no-work")

    async def operate() -> None:
        async with hf.Client(url, TOKEN) as client:
            worker = installed.work()
            assert await client.start("review", run_id="r1", labels={"team": "a"}) == "r1"
            watched = []
            async for event in client.follow("r1"):
                watched.append(event.seq)
                if event.kind == "NodeStarted":
                    break
            assert watched == list(range(1, len(watched) + 1))
            kill(worker)
            assert (await client.wait("r1", PATIENCE_S)).held_by is None
            installed.let_drafts_end()
            asked_for = {"id": "again", "reason": "its machine was lost"}
            assert not (await client.resume("r1", **asked_for)).repeated
            installed.work()
            run = await client.resume("r1", **asked_for, wait=PATIENCE_S)
            assert run.repeated
            (asked,) = await client.questions("r1")
            assert run.questions == (asked.question,)
            watched += [event.seq async for event in client.follow("r1", watched[-1])]
            assert watched == list(range(1, run.seq + 1))
            run = await client.answer("r1", asked.question.key, "approve", wait=PATIENCE_S)
            assert (run.status, run.state["published"]) == ("completed", "a draft")
            made = await client.fork(f"r1@{(await client.checkpoints('r1'))[0].seq}", run_id="r2")
            await client.resume(made)
            await client.wait(made, PATIENCE_S)
            done = await client.answer("r2", "publish", "approve", wait=PATIENCE_S)
            assert (done.status, done.parent) == ("completed", "r1")
            said = {event.kind: event.by for event in await client.events("r1") if event.by}
            assert len(set(said.values())) == 1, said

    asyncio.run(operate())


def test_a_follower_sees_every_event_once_although_the_server_is_killed(installed):
    url = installed.serve("flow.py", "--no-work")

    async def follow() -> None:
        async with hf.Client(url, TOKEN) as client:
            await client.start("review", run_id="r1")
            following = client.follow("r1")
            seen = [(await anext(following)).seq]
            kill(installed.server)
            again = asyncio.create_task(anext(following))
            assert installed.serve("flow.py", port=int(url.rpartition(":")[2])) == url
            installed.let_drafts_end()
            seen.append((await again).seq)
            seen += [event.seq async for event in following]
            run = await client.get("r1")
            assert seen == list(range(1, run.seq + 1))
            assert [question.node for question in run.questions] == ["publish"]

    asyncio.run(follow())


def test_by_the_command_line(installed, tmp_path, monkeypatch, capsys):
    url = installed.serve("flow.py", "--no-work")
    worker = installed.work()
    (tmp_path / "away").mkdir()
    furnish(tmp_path / "away", monkeypatch)
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    command = caller(capsys, tries_suggestions=False)

    def call(*words: str) -> Any:
        done = command(*words, "--store", url, "--json")
        assert done.code == 0, (words, done)
        return done.json

    def watch_until(kind: str) -> None:
        following = installed.begin("events", "r1", "--follow", "--json", "--store", url)
        assert following.stdout is not None
        assert any(json.loads(line)["kind"] == kind for line in following.stdout)

    assert call("start", str(installed.folder / "flow.py"), "--run-id", "r1")["id"] == "r1"
    watch_until("NodeStarted")
    kill(worker)
    assert call("show", "r1")["held_by"] is None
    installed.let_drafts_end()
    assert call("resume", "r1", "--no-execute")["requested"] == "resume"
    assert [one["verb"] for one in call("requests", "r1")] == ["resume"]
    installed.work()
    watch_until("QuestionAsked")
    (asked,) = call("questions")
    call("answer", "r1", asked["key"], "approve")
    watch_until("RunCompleted")
    assert call("state", "r1")["published"] == "a draft"
    assert call("fork", "r1", "--run-id", "r2")["id"] == "r2"
    assert [run["id"] for run in call("runs")] == ["r2", "r1"]
