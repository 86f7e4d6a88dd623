"""A run is started, watched, interrupted by `kill -9` of its worker, resumed, answered and forked, without a look at the store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from command_line import caller, furnish
from served_process import PATIENCE_S, TOKEN, Installation, kill

import holdfast as hf


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
            resuming = asyncio.create_task(client.resume("r1", reason="its machine was lost", wait=PATIENCE_S))
            installed.work()
            run = await resuming
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


def test_by_the_command_line(installed, tmp_path, monkeypatch, capsys):
    url = installed.serve("flow.py", "--no-work")
    worker = installed.work()
    (tmp_path / "away").mkdir()
    furnish(tmp_path / "away", monkeypatch)
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    command = caller(capsys, tries_suggestions=False)

    def call(*words: str) -> Any:
        done = command(*words, "--store", url, "--json", *(["--debug"] if words[0]=="fork" else []))
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
