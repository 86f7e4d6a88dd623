"""The ledger of a plan has what guards, policies and verifications decided, with the values that they read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from command_line import caller, furnish
from holdfast import plan
from holdfast.documents.ledger_file import LedgerFile, export
from holdfast.errors import StoreUnusable
from holdfast.reading.ledger import Ledger, decisions
from holdfast.reading.story import Story
from holdfast.storage.contract import Append, Verdict
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.urls import open_store

FACTS: dict[str, Any] = {"order": "4711", "cents": 4200, "country": "DE"}
DOCUMENT: dict[str, Any] = {
    "holdfast": "plan/1",
    "goal": "the customer has the goods",
    "context": {"facts": FACTS},
    "policy": {"countries": ["DE", "FR"]},
    "tasks": [
        {
            "id": "charge",
            "capability": "charge@1",
            "input": {"cents": {"$ref": "context.facts.cents"}},
            "verification": [{"id": "amount", "rule": "output.cents == input.cents", "reason": "another amount"}],
        },
        {"id": "ship", "capability": "do@1"},
        {"id": "pickup", "capability": "do@1"},
        {"id": "call", "capability": "do@1"},
        {"id": "tell", "capability": "do@1", "join": "some"},
    ],
    "edges": [
        {"from": "charge", "to": "ship", "guard": "context.facts.country in policy.countries"},
        {"from": "charge", "to": "pickup", "guard": "!(context.facts.country in policy.countries)"},
        {"from": "charge", "to": "call", "on_error": ["VerificationFailed"]},
        {"from": "ship", "to": "tell"},
        {"from": "pickup", "to": "tell"},
    ],
    "policies": [{"id": "small", "capability": "charge@1", "rule": "input.cents < 10000", "otherwise": "ask",
                  "reason": "Charge that much?"}],
}  # fmt: skip


@dataclass
class Charge:
    cents: int


@dataclass
class Nothing:
    pass


def shop() -> plan.Capabilities:
    made = plan.Capabilities("shop")

    @made.capability("charge@1")
    def charge(given: Charge) -> Charge:
        return Charge(given.cents if given.cents != 13 else 14)

    @made.capability("do@1")
    def do(given: Nothing) -> str:
        return "done"

    return made


def ran(store: Path, run_id: str, **facts: Any) -> Ledger:
    given = DOCUMENT | {"context": {"facts": FACTS | facts}}
    hf.run(shop().plan(given), run_id=run_id, store=store)
    return hf.ledger(run_id, store=store, verify=True)


def told(ledger: Ledger) -> list[tuple[str, str, str | None, str]]:
    return [(entry.type, entry.actor, entry.by, entry.text) for entry in ledger.entries[1:]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_guards_policies_verifications_and_skips_are_entries_with_what_they_read(store: Path) -> None:
    found = ran(store, "r1")
    assert found.verified
    assert found.entries[0].text.startswith("the run follows a plan for 'shop' (")
    assert found.entries[0].about["plan"] is True
    assert told(found) == [
        ("policy", "policy", "small", "charge is allowed"),
        ("verification", "engine", None, "the result of charge is verified"),
        ("guard", "engine", None, "charge leads to ship, not to pickup"),
        ("skip", "engine", None, "pickup and call are skipped"),
    ]
    _, policy, verification, guard, skip = found.entries
    assert policy.about["decisions"][0]["verdict"] == "allow"
    assert verification.about["checks"][0]["ok"] is True
    assert guard.about["verdicts"] == {"ship": True, "pickup": False}
    assert guard.about["reads"]["context.facts.country"] == "DE"
    assert skip.about["why"] == {"pickup": "charge", "call": "charge"}
    assert skip.reason == "no way from charge to pickup, from charge to call"


def test_a_question_of_a_policy_and_its_answer_are_entries(store: Path) -> None:
    ran(store, "r1", cents=20000)
    hf.answer("r1", "charge", "approve", by="agent:clerk", store=store)
    hf.resume("r1", flows=[shop()], store=store)
    found = hf.ledger("r1", store=store)
    asked = [entry for entry in found.entries if entry.type in ("policy", "decision")]
    assert [(one.actor, one.by, one.text, one.reason) for one in asked] == [
        ("policy", "small", "charge needs an answer", "Charge that much?"),
        ("agent", "agent:clerk", 'charge: the answer is "approve"', None),
    ]
    assert asked[1].about["text"] == "Charge that much?"


def test_a_failed_verification_and_the_edge_that_takes_it_are_entries(store: Path) -> None:
    found = ran(store, "r1", cents=13)
    assert told(found)[1:] == [
        ("verification", "engine", None, "the result of charge is not verified"),
        ("failure", "engine", None, "charge failed for good"),
        ("skip", "engine", None, "the failure of charge leads to call"),
        ("skip", "engine", None, "ship, pickup and tell are skipped"),
    ]
    assert found.entries[2].reason == "amount: another amount"


def test_the_ledger_of_a_plan_verifies_without_the_store(store: Path, tmp_path: Path) -> None:
    found = ran(store, "r1")
    with closing(open_store(str(store))) as opened:
        export(opened, "r1", tmp_path / "ledger.jsonl")
    assert LedgerFile(tmp_path / "ledger.jsonl").ledger == found


class Dying(MemoryStore):
    """A store whose process dies before or after its append with this number."""

    def __init__(self, appends: int, *, after: bool) -> None:
        super().__init__()
        self.left, self.after = appends, after

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        self.left -= 1
        done = super().append(batch) if self.left > 0 or (self.left == 0 and self.after) else []
        if self.left == 0 or not done:
            raise StoreUnusable("the process died")
        return done


async def run_twice(store: Dying, document: dict[str, Any]) -> Ledger:
    """Run a plan until the process dies, and again in a process that does not."""
    known = shop()
    with suppress(hf.HoldfastError):
        async with hf.Engine(store, flows=[known]) as engine:
            await engine.run(known.plan(document), run_id="r1")
    store.left = 1000
    async with hf.Engine(store, flows=[known]) as engine:
        run = await engine.run(known.plan(document), run_id="r1")
        if run.status == "waiting":
            await engine.answer("r1", "charge", "approve", by="ada")
            await engine.resume("r1")
        return await engine.ledger("r1", verify=True)


@pytest.mark.parametrize("cents", [4200, 13, 20000])
@pytest.mark.parametrize("after", [False, True])
def test_a_plan_that_dies_at_any_append_decides_the_same_when_it_is_resumed(cents: int, after: bool) -> None:
    document = DOCUMENT | {"context": {"facts": FACTS | {"cents": cents}}}
    expected = decisions(asyncio.run(run_twice(Dying(1000, after=after), document)))
    resumed = 0
    for number in range(1, 12):
        store = Dying(number, after=after)
        found = asyncio.run(run_twice(store, document))
        assert found.verified
        assert decisions(found) == expected, number
        resumed += any(entry.type == "resume" for entry in found.entries)
    assert resumed >= 2


def test_the_story_and_show_say_why_a_task_ran_and_why_not(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(store, "r1")
    story = Story()
    lines = [line for event in hf.events("r1", store=store) if (line := story.tell(event)) is not None]
    guards = next(line for line in lines if line.note.startswith("guards: "))
    assert (guards.status, guards.name) == ("completed", "charge")
    assert guards.note.startswith('guards: ship is next, pickup is not next (context.facts.country = "DE", ')
    assert story.nodes["pickup"].status == story.nodes["call"].status == "skipped"
    furnish(tmp_path, monkeypatch)
    ended = caller(capsys)("show", "r1", "--store", str(store))
    assert "charge leads to ship, not to pickup" in ended.out
    assert 'context.facts.country = "DE"' in ended.out
    assert "pickup and call are skipped" in ended.out
    assert [one["type"] for one in caller(capsys)("show", "r1", "--json", "--store", str(store)).json["decided"]] == [
        "policy", "verification", "guard", "skip",
    ]  # fmt: skip
    printed = caller(capsys)("events", "r1", "--store", str(store)).out
    assert "guards: ship is next" in printed
    assert "policies before it begins: allow (small allows" in printed
