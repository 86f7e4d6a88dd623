"""Asking a run, on each store: requests that are left, edits, refusals, confirmed repeats, forks that repeat nothing unasked,
runs that begin later; and what a caller is told that asks for something impossible.

Each verb is called on an engine of its own, as by a process that then ends. Only the store connects them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.reading import inbox, verification
from holdfast.storage.rows import open_row
from holdfast.storage.urls import open_store
from holdfast.testing import check
from holdfast.testing.appends import delete_run
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, schema_for, shared_url

PATIENCE_S = 60


@dataclass
class Order:
    city: str = "Ulm"
    log: Annotated[list[str], append] = field(default_factory=list)


class Shop:
    """A store, the flow `look -> charge -> send`, and every call of a node: run, node and idempotency key. `charge` is not
    idempotent; `send` raises while `broken` is true.
    """

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(auto=True)
        self.store = open_store(url, clock=self.clock.now)
        self.luck = random.Random(17)
        self.called: list[tuple[str, str, str]] = []
        self.broken = False
        self.flow = self.make_flow()

    def make_flow(self, **options: Any) -> Flow[Order]:
        graph = Graph("order", Order, **options)
        for name in ("look", "charge", "send"):
            graph.node(name=name, idempotent=name != "charge")(self.call)
        return graph.chain(START, "look", "charge", "send", END).compile()

    async def call(self, state: Order, ctx: hf.Context) -> dict[str, Any]:
        self.called.append((ctx.run_id, ctx.node, ctx.idempotency_key()))
        if self.broken and ctx.node == "send":
            raise ValueError("no stamps")
        return {"log": [f"{ctx.run_id} {ctx.node} {state.city}"]}

    def do(self, use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any]) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                self.store, flows=flows, clock=self.clock, luck=self.luck, inline=True
            ) as engine:
                return await asyncio.wait_for(use(engine), PATIENCE_S)

        return asyncio.run(main())

    def __call__(self, verb: str, *args: Any, **named: Any) -> Any:
        """Call a verb on an engine that has the flow."""
        return self.do(lambda engine: getattr(engine, verb)(*args, **named), self.flow)

    def leave(self, verb: str, *args: Any, **named: Any) -> Any:
        """Call a verb on an engine that has no flow, and so can execute nothing."""
        return self.do(lambda engine: getattr(engine, verb)(*args, **named))

    def work(self) -> None:
        self.do(lambda engine: engine.work(until="idle"), self.flow)

    def complete(self) -> None:
        self("run", self.flow, {}, run_id="r")

    def fail(self) -> None:
        """Execute the run `r` until `send` fails; then `send` is repaired."""
        self.broken = True
        with pytest.raises(hf.RunFailed):
            self("run", self.flow, {}, run_id="r")
        self.broken = False
        self.called.clear()

    def after(self, node: str, run_id: str = "r") -> str:
        return f"{run_id}@{self.store.events(run_id, kinds=('NodeCompleted',), node=node)[-1].seq}"

    def ran(self, run_id: str) -> list[str]:
        return [node for run, node, _ in self.called if run == run_id]

    def keys(self, run_id: str, node: str) -> list[str]:
        return [key for run, name, key in self.called if (run, name) == (run_id, node)]

    def told(self, kind: str, run_id: str = "r") -> list[Any]:
        rows = self.store.events(run_id, kinds=(kind,))
        return [open_row(row, self.store.blobs).event for row in rows]

    def refusal(self, verb: str, *args: Any, **named: Any) -> hf.HoldfastError:
        with pytest.raises(hf.HoldfastError) as raised:
            self(verb, *args, **named)
        return raised.value

    def assert_sound(self, *run_ids: str) -> None:
        for run_id in run_ids:
            assert verification.verify(self.store, run_id).problems == []
        assert check(self.store) == []


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def shop(request: Any, tmp_path: Path) -> Iterator[Shop]:
    schema = schema_for(tmp_path)
    urls = {"memory": f"memory://{schema}", "sqlite": str(tmp_path / "runs.db")}
    shop = Shop(urls.get(request.param) or f"{shared_url()}&schema={schema}")
    yield shop
    shop.store.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


# --- requests ----------------------------------------------------------------------------------------


def test_a_handler_that_asks_executes_nothing_and_a_worker_carries_the_requests_out_in_order(
    shop: Shop,
) -> None:
    shop.fail()
    shop.leave("edit", "r", {"city": "Kiel"}, by="ann", reason="moved", id="1")
    left = shop.leave("resume", "r", execute=False, by="ann", id="2")
    again = shop.leave("resume", "r", execute=False, by="ann", id="2")
    assert (left.status, left.repeated, again.repeated, shop.called) == ("failed", False, True, [])
    waiting = [(one.id, one.verb, one.status, one.by) for one in shop.leave("requests", "r")]
    assert waiting == [("1", "edit", "waiting", "ann"), ("2", "resume", "waiting", "ann")]
    shop.work()
    run = shop("get", "r")
    assert (run.status, run.state.log[-1], shop.ran("r")) == ("completed", "r send Kiel", ["send"])
    assert shop.leave("requests", "r") == []
    shop.assert_sound("r")


@pytest.mark.parametrize("status", ["waiting", "paused", "interrupted", "failed"])
def test_a_run_that_does_not_move_is_edited_whatever_stopped_it(shop: Shop, status: str) -> None:
    graph = Graph("stops", Order)
    begun: list[asyncio.Event] = []

    @graph.node
    async def stop(state: Order, ctx: hf.Context) -> dict[str, Any]:
        if state.city == "Ulm" and status == "waiting":
            await ctx.wait_for("news")
        if state.city == "Ulm" and status == "failed":
            raise ValueError("Ulm is closed")
        if state.city == "Ulm" and status == "interrupted":
            begun[0].set()
            await asyncio.Event().wait()
        return {"log": [state.city]}

    shop.flow = flow = graph.chain(START, "stop", END).compile()

    async def interrupted(engine: hf.Engine) -> None:
        begun.append(asyncio.Event())
        run = asyncio.ensure_future(engine.run(flow, {}, run_id="r"))
        await begun[0].wait()
        engine.stop(grace=0)
        await asyncio.wait([run])

    if status == "interrupted":
        shop.do(interrupted, flow)
    else:
        shop("start", flow, {}, run_id="r")
        if status == "paused":
            shop.leave("pause", "r")
        shop.work()
    assert shop.store.run("r").status == status
    shop.leave("edit", "r", {"city": "Kiel"}, by="ann", id="1")
    shop.work()
    (edited,) = shop.told("StateEdited")
    assert (edited.by, shop.leave("requests", "r")) == ("ann", [])
    assert shop.store.run("r").status == ("completed" if status == "interrupted" else status)
    if status != "interrupted":
        shop.leave("resume", "r", execute=False)
    if status == "waiting":
        shop.leave("signal", "r", "news")
    shop.work()
    run = shop("get", "r")
    assert (run.status, run.state.log) == ("completed", ["Kiel"])
    shop.assert_sound("r")


def test_what_a_worker_cannot_carry_out_is_recorded_with_who_when_and_why(shop: Shop) -> None:
    shop.fail()
    shop.leave("skip", "r", "sned", execute=False, by="ann", reason="in a hurry")
    shop.work()
    (refused,) = shop.leave("requests", "r")
    assert (refused.verb, refused.status, refused.by, refused.reason) == (
        *("skip", "refused"),
        *("ann", "in a hurry"),
    )
    assert "did you mean 'send'?" in refused.refused
    assert refused.at <= refused.refused_at
    assert (shop.store.run("r").status, shop.called) == ("failed", [])
    shop.assert_sound("r")


def test_what_still_waits_when_the_run_ends_is_refused_by_its_last_append(shop: Shop) -> None:
    shop.fail()
    shop.store.post("r", inbox.stored_form(inbox.Cancel(id="1")))
    shop.store.post("r", inbox.stored_form(inbox.Retry(id="2", node="send", by="bob")))
    shop.work()
    (late,) = shop.leave("requests", "r")
    assert (late.id, late.status, late.by) == ("2", "refused", "bob")
    assert late.refused == "the run was cancelled before the request was carried out"
    assert (shop.store.run("r").status, shop.called) == ("cancelled", [])
    shop.assert_sound("r")


# --- confirmed repeats -------------------------------------------------------------------------------


def test_a_node_that_is_not_idempotent_runs_again_only_if_it_is_named(shop: Shop) -> None:
    shop.fail()
    told = str(shop.refusal("resume", "r", after="look"))
    assert "run 'r' was not resumed" in told
    assert "charge (completed at " in told
    assert 'confirm=["charge"] (--confirm charge)' in told
    assert shop.called == []
    run = shop("resume", "r", after="look", confirm=["charge"])
    assert (run.status, shop.ran("r")) == ("completed", ["charge", "send"])
    assert [event.confirmed for event in shop.told("RunRewound")] == [["charge"]]
    shop.assert_sound("r")


def test_a_confirmation_travels_with_a_request_that_is_left(shop: Shop) -> None:
    shop.fail()
    shop.leave("resume", "r", after="look", execute=False, id="1")
    shop.work()
    assert ["charge (completed at " in one.refused for one in shop.leave("requests", "r")] == [True]
    assert shop.called == []
    shop.leave("resume", "r", after="look", confirm=["charge"], execute=False, id="2")
    shop.work()
    assert (shop.store.run("r").status, shop.ran("r")) == ("completed", ["charge", "send"])


# --- forks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "ran", "log"),
    [
        ("run", "completed", ["charge", "send"], ["r look Ulm", "f charge Ulm", "f send Ulm"]),
        ("skip", "completed", ["send"], ["r look Ulm", "r charge Ulm", "f send Ulm"]),
        ("abort", "cancelled", [], ["r look Ulm"]),
    ],
)
def test_a_fork_asks_before_it_repeats_an_effect(
    shop: Shop, answer: str, status: str, ran: list[str], log: list[str]
) -> None:
    shop.complete()
    shop.leave("fork", shop.after("look"), run_id="f")
    shop.work()
    (question,) = shop("get", "f").questions
    assert (question.about, question.options) == ("repeat", ["run", "skip", "abort"])
    assert shop.ran("f") == []
    shop.leave("answer", "f", "charge", answer)
    shop.work()
    run = shop("get", "f")
    assert (run.status, shop.ran("f"), run.state.log) == (status, ran, log)
    shop.assert_sound("r", "f")


def test_a_fork_has_the_keys_of_its_parent_except_for_what_it_was_told_to_repeat(shop: Shop) -> None:
    shop.complete()
    for run_id, given in (("f", {"repeat": "run"}), ("g", {"repeat": "skip"}), ("h", {"fresh": True})):
        shop("fork", shop.after("look"), run_id=run_id, **given)
        shop("resume", run_id)
    assert shop.keys("f", "send") == shop.keys("g", "send") == shop.keys("r", "send")
    assert shop.keys("f", "charge") != shop.keys("r", "charge")
    assert (shop.ran("g"), shop.ran("h")) == (["send"], [])
    shop("answer", "h", "charge", "skip")
    shop("resume", "h")
    assert shop.keys("h", "send") != shop.keys("r", "send")
    assert [shop.told("RunForked", run)[0].lineage for run in "fgh"] == ["r", "r", None]
    shop.assert_sound(*"rfgh")


def test_a_fork_of_a_fork_inherits_the_keys_and_what_was_begun_although_the_parent_has_rewound(
    shop: Shop,
) -> None:
    shop.fail()
    shop("resume", "r", after="look", confirm=["charge"])
    shop("fork", "r@1", run_id="f")
    shop("fork", "f", run_id="g")
    shop.called.clear()
    run = shop("resume", "g")
    assert [question.key for question in run.questions] == ["charge.1.1.repeat"]
    assert shop.ran("g") == ["look"]
    shop("answer", "g", "charge", "skip")
    run = shop("resume", "g")
    assert run.state.log == ["g look Ulm", "r charge Ulm", "g send Ulm"]
    shop.assert_sound(*"rfg")


SAME: list[dict[str, Any]] = [
    {},
    {"edit": {"city": "Kiel"}},
    {"repeat": {"charge": "skip"}},
    {"repeat": "run"},
    {"fresh": True},
]


def test_the_same_fork_twice_is_one_run_and_another_choice_is_refused(shop: Shop) -> None:
    shop.complete()
    for number, given in enumerate(SAME):
        assert shop("fork", "r@1", run_id=f"f{number}", **given) == f"f{number}"
        before = shop.store.run(f"f{number}")
        for other in SAME:
            if other == given:
                assert shop("fork", "r@1", run_id=f"f{number}", **other) == f"f{number}"
            else:
                error = shop.refusal("fork", "r@1", run_id=f"f{number}", **other)
                assert isinstance(error, hf.RunExists)
        assert shop.store.run(f"f{number}") == before


# --- later -------------------------------------------------------------------------------------------


def test_a_run_that_begins_later_is_on_offer_from_then_on(shop: Shop) -> None:
    begin_at = datetime.fromtimestamp(shop.clock.now(), UTC) + timedelta(hours=2)
    shop.leave("start", shop.flow, {}, run_id="r", begin_at=begin_at)
    shop.work()
    run = shop("get", "r")
    assert (run.status, run.due_at, shop.called) == ("pending", begin_at.timestamp(), [])
    shop.clock.advance(7200)
    shop.work()
    assert (shop.store.run("r").status, shop.ran("r")) == ("completed", ["look", "charge", "send"])
    shop.assert_sound("r")


# --- bad input ---------------------------------------------------------------------------------------

ASKED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("resume", (), {"execute": False, "replay": True}),
    ("retry", (), {"execute": False}),
    ("skip", ("send",), {"execute": False}),
    ("edit", ({"city": "Kiel"},), {}),
    ("pause", (), {}),
    ("cancel", (), {}),
    ("signal", ("news",), {"id": "1"}),
    ("answer", ("charge", "run"), {}),
]


def test_a_request_for_a_run_that_does_not_exist_names_the_run_and_where_to_look(shop: Shop) -> None:
    for verb, given, named in [*ASKED, ("requests", (), {}), ("fork", (), {})]:
        error = shop.refusal(verb, "none", *given, **named)
        assert isinstance(error, hf.RunNotFound), verb
        assert "no run 'none'" in str(error)
        assert "holdfast runs" in str(error)


def test_a_request_for_a_run_that_is_over_is_refused_and_leaves_nothing_behind(shop: Shop) -> None:
    shop.complete()
    seq = shop.store.run("r").seq
    for verb, given, named in ASKED:
        error = shop.refusal(verb, "r", *given, **named)
        assert isinstance(error, hf.RunOver), verb
        assert "run 'r' was not" in str(error)
        assert "it is completed, which is final. Fork it" in str(error)
    assert (shop.store.inbox(run_id="r"), shop.store.run("r").seq) == ([], seq)


def test_a_request_for_a_run_that_is_being_compacted_waits_and_is_carried_out(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.fail()
    store, compact = shop.store, shop.store.upkeep.compact

    def meanwhile(*given: Any, **named: Any) -> None:
        assert store.run("r").held
        store.post("r", inbox.stored_form(inbox.Resume(id="1")))
        compact(*given, **named)

    monkeypatch.setattr(store.upkeep, "compact", meanwhile)
    shop("prune", "r", 1, compact=True)
    assert store.upkeep.trimmed("r").base > 0
    assert [one.status for one in shop.leave("requests", "r")] == ["waiting"]
    shop.work()
    assert (store.run("r").status, shop.ran("r")) == ("completed", ["send"])
    assert store.events("r", kinds=("RunResumed",)) != []
    shop.assert_sound("r")


def test_a_request_keeps_its_run_from_being_deleted_and_none_is_taken_for_one_that_is_gone(
    shop: Shop,
) -> None:
    shop.fail()
    shop.leave("resume", "r", execute=False, id="1")
    with pytest.raises(hf.ResumeRefused, match="request"):
        delete_run(shop.store, "r", shop.store.run("r").seq)
    shop.work()
    assert not shop.store.upkeep.delete({"r": shop.store.run("r").seq})
    for verb, given, named in ASKED:
        assert isinstance(shop.refusal(verb, "r", *given, **named), hf.RunNotFound), verb


def test_a_request_for_a_run_whose_state_is_of_a_newer_version_is_refused_and_names_both_versions(
    shop: Shop,
) -> None:
    older = shop.flow
    shop.flow = shop.make_flow(version=2, upgrades={1: lambda values: values})
    shop.fail()
    shop.flow = older
    for verb, given in (("resume", ()), ("retry", ("send",)), ("skip", ("send",))):
        told = str(shop.refusal(verb, "r", *given))
        assert "run 'r' was not" in told, verb
        assert "version 2" in told
        assert "version 1" in told
    told = str(shop.refusal("edit", "r", {"city": "Kiel"}))
    assert "run 'r' was not edited: its state has version 2, and the flow has version 1" in told
    shop.leave("resume", "r", execute=False)
    shop.work()
    assert ["version 2" in one.refused for one in shop.leave("requests", "r")] == [True]
    assert shop.called == []


def test_the_same_request_id_with_another_verb_or_body_names_the_run_and_the_first_request(
    shop: Shop,
) -> None:
    shop.fail()
    shop.leave("retry", "r", "send", execute=False, id="1")
    for verb, given in (("resume", ()), ("retry", ()), ("skip", ("send",))):
        error = shop.refusal(verb, "r", *given, execute=False, id="1")
        assert isinstance(error, hf.RequestExists), verb
        assert "run 'r' already has a request with the id '1' (retry)" in str(error)
        assert "an id of its own" in str(error)


def test_a_confirm_of_a_node_that_does_not_exist_or_would_not_run_again_is_refused(shop: Shop) -> None:
    shop.fail()
    told = str(shop.refusal("resume", "r", after="look", confirm=["chrage"]))
    assert "run 'r' was not resumed: confirm names 'chrage'" in told
    assert "did you mean 'charge'?" in told
    told = str(shop.refusal("resume", "r", confirm=["charge"]))
    assert "run 'r' was not resumed: confirm names 'charge', which would not run again" in told
    assert "Leave it out of confirm." in told
    assert shop.called == []


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"city": 5}, "state.city: Expected `str`, got `int`"),
        ({"ctiy": "Kiel"}, "did you mean 'city'?"),
        (lambda state: {"city": 5}, "state.city: Expected `str`, got `int`"),
    ],
)
def test_an_edit_that_does_not_fit_names_the_run_and_the_field(shop: Shop, edit: Any, told: str) -> None:
    shop.fail()
    for verb, given, named in (
        ("edit", (edit,), {}),
        ("resume", (), {"edit": edit}),
        ("resume", (), {"edit": edit, "execute": False}),
        ("fork", (), {"edit": edit}),
    ):
        error = shop.refusal(verb, "r", *given, **named)
        assert isinstance(error, hf.StateError)
        assert "the edit of run 'r' does not fit Order: " in str(error)
        assert told in str(error)
    if not callable(edit):
        shop.leave("edit", "r", edit)
        shop.work()
        (refused,) = shop.leave("requests", "r")
        assert "the edit of run 'r' does not fit Order: " in refused.refused
        assert told in refused.refused
    assert (shop("state", "r").city, shop.called) == ("Ulm", [])


def test_an_edit_that_was_made_against_an_older_state_is_refused(shop: Shop) -> None:
    shop.fail()

    def meanwhile(state: Order) -> dict[str, str]:
        shop.store.post("r", inbox.stored_form(inbox.Signal(id="1", name="news")))
        return {"city": f"New {state.city}"}

    shop("resume", "r", edit=meanwhile, execute=False)
    shop.work()
    (refused,) = shop.leave("requests", "r")
    assert "the run has moved since (SignalReceived)" in refused.refused
    assert (shop("state", "r").city, shop.called) == ("Ulm", [])


@pytest.mark.parametrize(
    ("repeat", "told"),
    [
        ("again", "give 'ask', 'run', 'skip'"),
        ({"charge": "again"}, "give 'ask', 'run' or 'skip'"),
        ({"chrage": "run"}, "did you mean 'charge'?"),
        ({"look": "run"}, "node 'look' is idempotent, so a fork repeats it without asking. Leave it out"),
    ],
)
def test_a_repeat_that_cannot_be_meant_names_the_run_and_the_remedy(
    shop: Shop, repeat: Any, told: str
) -> None:
    shop.complete()
    error = shop.refusal("fork", "r@1", run_id="f", repeat=repeat)
    assert isinstance(error, hf.SettingError)
    assert "run 'r' was not forked: repeat=" in str(error)
    assert told in str(error)
    assert [run.id for run in shop("runs")] == ["r"]


@pytest.mark.parametrize(
    ("begin_at", "told"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), "has passed. Leave begin_at out"),
        (datetime(2036, 1, 1), "is not a time with a time zone: give a datetime such as"),  # noqa: DTZ001
        (datetime(2126, 1, 1, tzinfo=UTC), "is more than ten years away. Give an earlier time."),
    ],
)
def test_a_time_at_which_no_run_can_begin_is_refused(shop: Shop, begin_at: datetime, told: str) -> None:
    error = shop.refusal("start", shop.flow, {}, run_id="r", begin_at=begin_at)
    assert isinstance(error, hf.SettingError)
    assert told in str(error)
    assert shop("runs") == []


@pytest.mark.parametrize("verb", ["edit", "resume", "fork"])
def test_an_edit_that_is_neither_fields_nor_a_function_is_refused(shop: Shop, verb: str) -> None:
    shop.fail()
    error = shop.refusal(verb, "r", edit=5)
    assert isinstance(error, hf.SettingError)
    assert "edit=5 of run 'r' is not valid: give a dict of fields and values, or a function" in str(error)
    assert shop.called == []
