"""What a preview lists, in whichever process it is made; and that a verb which expects a preview does that or nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from asking import Order, leave, refused, waiting, works
from engines import gated
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Context, Flow, Graph
from holdfast.reading import inbox
from holdfast.reading.remedies import CommandLine
from holdfast.storage.contract import Query
from holdfast.storage.verdicts import digest_request


def look(stage: Stage, verb: str, *flows: Flow[Any], **given: Any) -> hf.Preview:
    found: hf.Preview = stage.do(lambda engine: engine.preview("r", verb, **given), *flows)
    return found


def names(nodes: Any) -> list[str]:
    return [one.node for one in nodes]


# --- what it lists -----------------------------------------------------------------------------------


def test_a_resume_keeps_what_completed_and_runs_what_failed_again(stage: Stage) -> None:
    order = Order().fail(stage)
    found = look(stage, "resume", order.flow)
    assert (names(found.kept), names(found.rerun), found.refused) == (["charge"], ["send"], None)
    (failed,) = found.rerun
    assert (failed.first, failed.last, failed.status) == (1, 1, "failed")
    assert failed.at == next(row.at for row in stage.store.events("r") if row.kind == "NodeFailed")


def test_a_rewind_names_what_must_be_confirmed_and_when_it_completed(stage: Stage) -> None:
    order = Order().fail(stage)
    found = look(stage, "resume", order.flow, restart_at="charge")
    assert (names(found.confirm), names(found.rerun), found.kept) == (["charge"], ["charge", "send"], ())
    completed_at = next(row.at for row in stage.store.events("r") if row.kind == "NodeCompleted")
    assert (found.confirm[0].at, found.confirm[0].idempotent) == (completed_at, False)
    assert found.refused is not None
    assert found.error == "ResumeRefused"
    (first, *_) = found.remedies
    assert (first.verb, first.arguments["confirm"]) == ("resume", ["charge"])
    assert found.command == first.command
    run = stage.do(lambda engine: engine.resume(**first.arguments), order.flow)
    assert (run.status, order.ran) == ("completed", ["charge", "send"])


def test_the_digest_is_the_same_before_and_after_the_decision(stage: Stage) -> None:
    order = Order().fail(stage)
    before = look(stage, "resume", order.flow, restart_at="charge")
    after = look(
        stage, "resume", order.flow, restart_at="charge", confirm=["charge"], by="ann", reason="why not"
    )
    assert (before.digest == after.digest, after.refused) == (True, None)
    forks = [
        look(stage, "fork", checkpoint=1, repeat=how).digest for how in ("ask", "run", {"charge": "skip"})
    ]
    assert len(set(forks)) == 1


def test_other_options_have_another_digest(stage: Stage) -> None:
    order = Order().fail(stage)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("resume", {}), ("resume", {"replay": True}), ("resume", {"after": "charge"}), ("resume", {"edit": {"plain": "milk"}}),
        ("resume", {"edit": {"plain": "soap"}}), ("retry", {}), ("retry", {"node": "send"}), ("retry", {"fresh": True}),
        ("skip", {"node": "send"}), ("skip", {"node": "send", "update": {"plain": "x"}}), ("cancel", {}), ("fork", {}),
        ("fork", {"fresh": True}), ("fork", {"checkpoint": 1}),
    ]  # fmt: skip
    digests = [look(stage, verb, order.flow, **given).digest for verb, given in asked]
    assert len(set(digests)) == len(asked)


def test_a_fork_says_about_what_it_asks(stage: Stage) -> None:
    Order().fail(stage)
    found = look(stage, "fork", checkpoint=1)
    assert (names(found.confirm), names(found.asks), names(found.rerun), found.at) == (
        ["charge"],
        ["charge"],
        ["send"],
        1,
    )
    assert names(look(stage, "fork", checkpoint=1, repeat={"charge": "run"}).rerun) == ["charge", "send"]
    assert names(look(stage, "fork", checkpoint=1, repeat="skip").skips) == ["charge"]


def test_a_fork_with_an_id_that_is_taken_is_refused(stage: Stage) -> None:
    order = Order().fail(stage)
    stage.do(lambda engine: engine.start(order.flow, {"plain": "milk"}, run_id="taken"), order.flow)
    assert look(stage, "fork", run_id="taken").error == "RunExists"
    assert look(stage, "fork", run_id="no id").error == "SettingError"


def asks_first() -> Flow[Work]:
    graph = Graph("asks", Work)
    graph.node(name="plan")(lambda state: {"log": ["planned"]})
    graph.node(name="publish", approve="Publish?")(lambda state: {"log": ["published"]})
    return graph.chain(START, "plan", "publish", END).compile()


def test_a_cancellation_closes_all_questions(stage: Stage) -> None:
    flow = asks_first()
    stage.run(flow)
    found = look(stage, "cancel")
    assert ([question.key for question in found.closes], names(found.kept)) == (["publish.1.1"], ["plan"])
    assert (found.unknown, found.command) == ((), "holdfast cancel r")


def test_a_cancellation_names_the_child_runs_that_are_cancelled_too_and_what_they_leave(stage: Stage) -> None:
    bottom, top = Graph("bottom", Work), Graph("top", Work)

    @bottom.node
    async def dig(state: Work, ctx: Context) -> None:
        await ctx.step("shovel", int)
        await ctx.wait_for("go")

    flow = bottom.chain(START, "dig", END).compile()

    @top.node
    async def call(state: Work, ctx: Context) -> None:
        await ctx.start(flow, Work(), key="free", cancel_with_caller=False)
        await ctx.call(flow, Work(), key="bound")

    stage.run(top.chain(START, "call", END).compile())
    found = look(stage, "cancel")
    (child,) = found.cancels
    assert (child.flow, child.caller) == ("bottom", "r")
    assert [(left.node, left.why, left.steps) for left in child.uncleaned] == [("dig", "unwound", ["shovel"])]
    assert [(left.node, left.why) for left in found.uncleaned] == [("call", "unwound")]


def test_a_rewind_closes_a_question_and_the_end_of_the_log_does_not(stage: Stage) -> None:
    flow = asks_first()
    stage.run(flow)
    assert look(stage, "resume", flow).closes == ()
    assert [question.text for question in look(stage, "resume", flow, restart_at="plan").closes] == [
        "Publish?"
    ]


def test_a_completed_run_can_be_forked_and_not_retried(stage: Stage) -> None:
    order = Order()
    order.broken = False
    stage.run(order.flow)
    found = look(stage, "retry", order.flow)
    assert (found.error, [remedy.verb for remedy in found.remedies]) == ("RunOver", ["fork"])
    assert (look(stage, "resume", order.flow).refused, names(look(stage, "resume", order.flow).kept)) == (
        None,
        ["charge", "send"],
    )


def test_a_function_cannot_be_typed(stage: Stage) -> None:
    order = Order().fail(stage)
    found = look(stage, "resume", order.flow, edit=lambda state: {"plain": "milk"})
    assert (found.refused, found.command) == (None, None)


def test_a_command_names_every_option(stage: Stage) -> None:
    order = Order().fail(stage)
    commands = CommandLine(file="order.py", store="runs.db")

    def typed(verb: str, **given: Any) -> str | None:
        return look(stage, verb, order.flow, commands=commands, **given).command

    assert typed("resume", restart_at="charge", edit={"plain": "milk"}) == (
        """holdfast resume r order.py --restart-at charge --edit '{"plain": "milk"}' --confirm charge --store runs.db"""
    )
    assert typed("retry", node="send", fresh=True) == "holdfast retry r send order.py --fresh --store runs.db"
    assert typed("skip", node="send", update={"plain": "x"}, reason="sent by hand") == (
        """holdfast skip r send order.py --update '{"plain": "x"}' --reason 'sent by hand' --store runs.db"""
    )
    assert typed("fork", checkpoint=1, repeat={"charge": "run"}, run_id="s", labels={"a": "b"}) == (
        "holdfast fork r@1 --repeat charge=run --run-id s --label a=b --store runs.db"
    )


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("resumes", {}, "'resumes' has no preview; did you mean 'resume'?"),
        ("pause", {}, "'pause' has no preview"),
        ("resume", {"restart": "a"}, "resume has no option 'restart'"),
        ("retry", {"replay": True}, "retry has no option 'replay'"),
        ("resume", {"on_change": "whatever"}, "cannot be requested"),
        ("resume", {"confirm": "charge"}, "give a list of the names of nodes"),
        ("skip", {"node": "send", "update": {"nothing": 1}}, "nothing"),
    ],
)
def test_a_wrong_call_is_the_callers_mistake(
    stage: Stage, verb: str, given: dict[str, Any], said: str
) -> None:
    order = Order().fail(stage)
    with pytest.raises((hf.SettingError, hf.StateError), match=said):
        look(stage, verb, order.flow, **given)
    with pytest.raises(hf.RunNotFound):
        stage.do(lambda engine: engine.preview("nobody", "resume"))


# --- in another process ------------------------------------------------------------------------------


def test_a_process_without_the_flow_says_the_same_and_what_it_cannot_say(stage: Stage) -> None:
    order = Order().fail(stage)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("resume", {}), ("resume", {"restart_at": "charge"}), ("retry", {}), ("skip", {"node": "send"}), ("cancel", {}),
        ("fork", {"checkpoint": 1}),
    ]  # fmt: skip
    for verb, given in asked:
        here, there = look(stage, verb, order.flow, **given), look(stage, verb, **given)
        assert here.digest == there.digest
        assert here.unknown == ()
        assert bool(there.unknown) == (verb in ("resume", "retry", "skip"))
    assert "'order' is not known here" in look(stage, "resume").unknown[0]
    edited = look(stage, "resume", edit={"plain": "milk"})
    assert any("the edit fits" in said for said in edited.unknown)


def test_a_run_that_another_engine_executes_can_be_previewed(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> list[hf.Preview]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gate["in"].wait()
        async with stage.engine() as other:
            seen = [await other.preview("r", verb) for verb in ("resume", "retry", "cancel")]
        gate["open"].set()
        await run
        return seen

    resume, retry, cancel = stage.do(use, flow)
    assert (resume.error, [one.verb for one in resume.remedies][:1]) == ("RunHeld", ["pause"])
    assert retry.error == "ResumeRefused"
    assert (cancel.refused, len(cancel.stops)) == (None, 1)


# --- what a caller expects ---------------------------------------------------------------------------


def edit_order(stage: Stage, order: Order) -> None:
    """Let `send` complete, behind the back of the caller who looks at a preview."""
    stage.do(lambda engine: engine.skip("r", "send", {"plain": "by hand"}), order.flow)


def test_a_verb_that_expects_what_it_does_is_carried_out(stage: Stage) -> None:
    order = Order().fail(stage)
    digest = look(stage, "resume", order.flow, restart_at="charge").digest
    run = stage.resume(order.flow, restart_at="charge", confirm=["charge"], expects=digest)
    assert run.status == "completed"


@pytest.mark.parametrize(
    ("verb", "given"),
    [("resume", {}), ("retry", {}), ("skip", {"node": "send"}), ("cancel", {}), ("fork", {})],
)
def test_a_verb_that_would_do_something_else_is_refused_and_nothing_is_recorded(
    stage: Stage, verb: str, given: dict[str, Any]
) -> None:
    order = Order().fail(stage)
    seq = stage.store.run("r").seq
    with pytest.raises(hf.PreviewStale, match="it would not do what the preview 'other' said") as stale:
        stage.verb(order.flow, verb, expects="other", **given)
    assert f"holdfast {verb} r --dry-run" in stale.value.reason
    row = stage.store.run("r")
    assert (row.seq, row.held, order.ran, len(stage.store.runs(Query()))) == (seq, False, [], 1)


def test_a_request_in_the_inbox_is_checked_by_the_worker_that_carries_it_out(stage: Stage) -> None:
    order = Order().fail(stage)
    digest = look(stage, "resume").digest  # in a process that does not know the flow
    leave(stage, "resume", execute=False, expects=digest)
    assert waiting(stage)[0].body["expects"] == digest
    (ended,) = works(stage, order.flow)
    assert (ended.status, refused(stage)) == ("completed", [])


@pytest.mark.parametrize(("verb", "given"), [("resume", {}), ("retry", {}), ("skip", {"node": "send"})])
def test_a_request_whose_preview_has_changed_meanwhile_is_refused_in_the_log(
    stage: Stage, verb: str, given: dict[str, Any]
) -> None:
    """The digest was right when the request was left, and is compared again under the lease."""
    order = Order().fail(stage)
    digest = look(stage, verb, **given).digest
    leave(stage, verb, execute=False, expects=digest, **given)
    other = Graph("order", Work)
    for name, body in (("charge", order.charge), ("send", order.send), ("bill", order.send)):
        other.node(name=name, idempotent=name != "charge")(body)
    changed = other.chain(START, "charge", "send", "bill", END).compile()
    works(stage, changed)
    ((told, error, reason),) = refused(stage)
    assert (told, error) == (verb, "PreviewStale")
    assert "the flow has changed" in reason
    assert waiting(stage) == []


def test_another_engine_that_executes_the_run_checks_a_request_too(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> tuple[str, Any]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gate["in"].wait()
        async with stage.engine(luck=random.Random(3)) as other:
            with pytest.raises(hf.PreviewStale, match="was not cancelled"):
                await other.cancel("r", expects="other")
            digest = (await other.preview("r", "cancel")).digest
            await other.cancel("r", expects=digest)
        with pytest.raises(hf.RunCancelled):
            await run
        return digest, await engine.get("r")

    _, run = stage.do(use, flow)
    assert run.status == "cancelled"
    assert [error for _, error, _ in refused(stage)] == ["PreviewStale"]


def test_a_run_that_merely_moves_on_makes_no_preview_stale(stage: Stage) -> None:
    """An edit, a refusal and a failed attempt are events after the preview; none changes what the resume does."""
    order = Order().fail(stage)
    digest = look(stage, "resume").digest
    order.broken = True
    stage.do(lambda engine: engine.edit("r", {"plain": "milk"}), order.flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(order.flow)
    order.broken = False
    assert stage.resume(order.flow, expects=digest).status == "completed"


def test_a_rewind_by_another_caller_makes_a_preview_stale(stage: Stage) -> None:
    order = Order().fail(stage)
    digest = look(stage, "resume").digest
    order.broken = True
    with pytest.raises(hf.RunFailed):
        stage.resume(order.flow, restart_at="charge", force=True)
    with pytest.raises(hf.PreviewStale):
        stage.resume(order.flow, expects=digest)


def test_a_run_that_is_over_by_now_is_refused_as_stale(stage: Stage) -> None:
    order = Order().fail(stage)
    digests = {verb: look(stage, verb).digest for verb in ("resume", "retry", "cancel")}
    edit_order(stage, order)
    with pytest.raises(hf.PreviewStale):
        stage.resume(order.flow, expects=digests["resume"])
    for verb in ("retry", "cancel"):
        with pytest.raises(hf.RunOver):
            stage.verb(order.flow, verb, expects=digests[verb])


def test_a_request_that_expects_nothing_is_stored_as_before() -> None:
    for request in (inbox.Cancel(), inbox.Retry(), inbox.Skip(node="a"), inbox.Resume()):
        stored = inbox.stored_form(request)
        assert "expects" not in stored.body
        named = msgspec.structs.replace(request, expects="x")
        assert inbox.read(inbox.stored_form(named)).expects == "x"  # type: ignore[union-attr]
        assert digest_request(stored) != digest_request(inbox.stored_form(named))
