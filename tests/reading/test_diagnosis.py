"""Why a run does not move is answered once, and in the same words to everybody who asks."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast.reading import remedies, text
from holdfast.reading.cases import case_of, later_case
from holdfast.reading.diagnosis import diagnose
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import doctor
from holdfast.upkeep.recovery import Recovery

FLOW = """
from pathlib import Path

from holdfast import END, START, Graph, Step

graph = Graph("work", dict)

def charge():
    if not Path("mended").exists():
        raise KeyError("declined")

@graph.node
def first(state, ctx):
    if state["mode"] == "fail":
        raise ValueError("no luck")
    if state["mode"] == "kept":
        ctx.step(Step("charge", raises=(KeyError,)), charge)
    if state["mode"] == "ask":
        ctx.ask("go on?", options=["yes", "no"])
    if state["mode"] == "wait":
        ctx.wait_for("paid")
    return {}

flow = graph.chain(START, first, END).compile()
"""


@pytest.fixture
def store() -> Iterator[Store]:
    store = MemoryStore()
    yield store
    store.close()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, work=FLOW)
    return caller(capsys)


@pytest.mark.parametrize("options", [(), ("--on-change", "compatible")])
def test_a_suggested_resume_names_the_file_before_its_options(options: tuple[str, ...]) -> None:
    remedy = remedies.resume(CommandLine(file="work.py"), "r", "resume it", options=options)
    assert remedy.command.split() == ["holdfast", "resume", "r", "work.py", *options]


@pytest.mark.parametrize("mode", ["fail", "kept", "ask", "wait"])
def test_show_and_doctor_give_the_same_reason_and_remedies(cli: Cli, mode: str) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", json.dumps({"mode": mode}))
    shown = cli("show", "r", "--json").json
    (found,) = cli("doctor", "--json").json["findings"]
    assert found["reason"] == shown["reason"]
    assert found["remedies"] == shown["remedies"]
    assert {*found["remedies"][0]} == {"verb", "arguments", "words", "command", "link"}


@pytest.mark.parametrize("mode", ["fail", "kept", "ask", "wait"])
def test_a_remedy_can_be_called_in_python_and_pasted(cli: Cli, mode: str, tmp_path: Path) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", json.dumps({"mode": mode}))
    remedy = cli("show", "r", "--json").json["remedies"][0]
    words = [word.replace("FILE.py", "work.py") for word in shlex.split(remedy["command"])]
    assert words[1] == remedy["verb"]

    async def main() -> Any:
        async with hf.Engine(".holdfast/runs.db") as engine:
            return getattr(engine, remedy["verb"])(**remedy["arguments"]).close()

    asyncio.run(main())
    assert cli(*words[1:]).code in (0, 1)


def test_a_run_that_failed_with_a_kept_outcome_is_not_offered_a_resume_that_gets_it_again(
    cli: Cli, tmp_path: Path
) -> None:
    ran = cli("run", "work.py", "--run-id", "r", "--input", json.dumps({"mode": "kept"}))
    shown = cli("show", "r", "--json").json
    assert [one["verb"] for one in shown["remedies"]] == ["retry", "skip", "resume"]
    first, _, last = shown["remedies"]
    assert first["words"].startswith("fix the cause, then call the steps of first again")
    assert last["words"] == "resume it, if the code of first now handles this outcome of the step charge"
    before = cli("run", "work.py", "--run-id", "r")
    said = ran.err + ran.out + cli("show", "r").out + before.err + before.out
    assert "then resume it" not in said
    assert "resume the run" not in said
    assert "try the failed node again" not in said
    (tmp_path / "mended").touch()
    assert cli(*shlex.split(last["command"])[1:]).code == 1  # the code of the node does not handle it
    assert cli(*shlex.split(first["command"])[1:]).code == 0


def test_recovery_and_doctor_name_a_crash_alike(store: Store) -> None:
    flow = outline("START a b END")
    History("r", flow, starts_at=store.now() - 90).created().completed("a").started("b").write(store)
    (of_doctor,) = doctor.examine(store, None, store.now())
    (of_run,) = Recovery(store).sweep().findings
    assert of_doctor.kind == of_run.kind == "no worker"
    assert (of_doctor.crashed, of_run.crashed) == (True, True)
    reason = "its process crashed in b, and no live worker takes flow 'outline'"
    assert (of_doctor.reason, of_run.reason) == (reason, reason)
    commands = [one.command for one in of_doctor.remedies]
    assert commands == [one.command for one in of_run.remedies]
    assert commands == ["holdfast worker FILE.py", "holdfast resume r FILE.py"]
    assert of_run.remedies[1].words == "resuming runs the node again, as attempt 2"


@pytest.mark.parametrize("waits", ["for a retry", "for a time"])
def test_a_run_that_was_released_until_a_later_time_has_not_crashed(waits: str) -> None:
    clock = ManualClock()
    graph = hf.Graph("later")

    @graph.node(retry=hf.Retry(attempts=2, backoff=900))
    async def call(state: dict[str, Any], ctx: hf.Context) -> None:
        if waits == "for a retry":
            raise ConnectionError("busy")
        await ctx.sleep(900)

    flow = graph.chain(hf.START, call, hf.END).compile()
    store = MemoryStore(clock=clock.now)

    async def work() -> None:
        async with hf.Engine(store, flows=flow, clock=clock, inline=True, park_after=0) as engine:
            await engine.start(flow, {}, run_id="r")
            await engine.work(until="idle")

    asyncio.run(work())
    assert store.run("r").holder is None
    found = Reader(store).diagnose("r")
    assert (found.kind, found.crashed) == ("waiting", False)
    assert found.reason.startswith("call is retried at" if waits == "for a retry" else "call sleeps until")
    clock.advance(1000)
    late = Reader(store).diagnose("r")
    assert ("call was to be retried at" if waits == "for a retry" else "call has slept until") in late.reason
    store.close()


def test_a_remedy_says_what_was_given_to_the_command(store: Store) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow, starts_at=store.now()).created().settled().write(store)
    commands = CommandLine(program="./hf", file="flow.py", store="runs.db")
    found = Reader(store).diagnose("r", commands)
    assert found.kind == "question"
    assert [one.command for one in found.remedies] == [
        "./hf answer r a approve --store runs.db",
        "./hf answer r a reject --store runs.db",
        "./hf resume r flow.py --store runs.db",
    ]
    assert found.remedies[0].arguments == {"run_id": "r", "question": "a.1.1", "value": "approve"}
    assert found.remedies[2].arguments == {"run": "r"}


@pytest.mark.parametrize("by", ["a later case", "a reader"])
def test_a_later_case_reads_only_what_has_come_since(
    by: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow, starts_at=store.now()).created().settled().write(store)
    before = case_of(store, store.run("r"))
    seq = before.row.seq

    async def main() -> None:
        async with hf.Engine(store) as engine:
            await engine.answer("r", "a", "approve", by="me")

    asyncio.run(main())
    asked: list[int] = []
    events = store.events

    def watched(run_id: str, after: int = 0, *args: Any, **options: Any) -> Any:
        asked.append(after)
        return events(run_id, after, *args, **options)

    monkeypatch.setattr(store, "events", watched)
    reader, is_reader = Reader(store), by == "a reader"
    found = (
        reader.diagnose("r", before=before) if is_reader else diagnose(later_case(store, before), store.now())
    )
    assert min(asked) >= seq
    assert found.answered
    assert found.reason.startswith("answered by me, and no ")
    assert not is_reader or found == Reader(store).diagnose("r")


def test_a_time_is_told_as_shortly_as_the_present_allows() -> None:
    now = time.mktime((2026, 11, 17, 14, 5, 9, 0, 0, -1))
    assert text.soon(now + 12, now) == "14:05:21"
    assert text.soon(now + 86400, now) == "18 Nov, 14:05"
    assert text.soon(now - 86400 * 15, now) == "2 Nov, 14:05"
    assert text.soon(now + 86400 * 100, now) == "25 Feb 2027"
