"""What a log, a snapshot or a definition does not say has its default. A default is therefore part of what is stored, and stays
what it is for ever: stored runs would be read differently. A new field gets a line here; a line that is here is never changed.
"""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import (
    budget,
    commands,
    definition,
    difference,
    event_encoding,
    events,
    graph,
    run_state,
    topology,
)
from holdfast.core.event_encoding import Encoded, decode, encode
from holdfast.core.events import KINDS, Changes

HEADER = {"execution": 1, "attempt": 1}
SAID = {"by": None, "reason": None}
EVENTS = {
    "RunCreated": {
        "schedule": "eager",
        "options": {},
        "labels": {},
        "by": None,
        "trace_parent": None,
        "caller": None,
        "plan": False,
    },
    "GuardEvaluated": {"execution": 1, "attempt": 1, "verdicts": {}, "reads": {}, "failure": None},
    "NodesSkipped": {"why": {}},
    "PolicyDecided": {
        "execution": 1,
        "attempt": 1,
        "stage": "pre",
        "verdict": "allow",
        "decisions": [],
        "failure": None,
    },
    "OutputVerified": {"execution": 1, "attempt": 1, "ok": True, "checks": []},
    "NodeReturned": {"execution": 1, "attempt": 1, "value": None, "artifacts": {}},
    "RunForked": {
        "lineage": None,
        "fresh": False,
        "visits": [],
        "repeat": {},
        "renewed": {},
        "labels": None,
        **SAID,
    },
    "RunClaimed": {"outlived": False},
    "RunResumed": {
        "holder": "",
        "nodes": None,
        "fresh": False,
        "force": False,
        "outlived": False,
        **SAID,
        "budget": None,
        "scope": None,
    },
    "RunRewound": {
        "executions": {},
        "crashes": {},
        "active_s": 0.0,
        "usd": 0.0,
        "tokens": 0,
        "fresh": {},
        "signals": {},
        "confirmed": [],
        "called": False,
        "children_usd": 0.0,
        "children_tokens": 0,
        "reported": None,
        **SAID,
        "budget": None,
        "scope": None,
    },
    "RunPaused": SAID,
    "RunInterrupted": {"reason": None},
    "RunCompleted": {},
    "RunFailed": {"node": None},
    "RunCancelled": {**SAID, "uncleaned": []},
    "RequestRefused": {"request": "", "error": "ResumeRefused", "about": None, "asked_at": None, "by": None},
    "ResumeRefused": {"by": None},
    "StateEdited": SAID,
    "StateUpgraded": {"inputs": {}},
    "FlowChanged": {"rename": {}, "by": None, "keeps_keys": False},
    "NodeScheduled": {**HEADER, "fresh": False, **SAID, "anew": []},
    "NodeStarted": {**HEADER, "took": 1, "woken": False},
    "NodeCompleted": {**HEADER, "changes": Changes(), "routes": None, "items": False, "artifacts": {}},
    "NodeFailed": {**HEADER, "retry_at": None},
    "NodeInterrupted": {**HEADER, "reason": "", "lost": False},
    "NodeSkipped": {
        **HEADER,
        "changes": Changes(),
        "routes": None,
        "took": 0,
        "warning": None,
        "caught": False,
        **SAID,
    },
    "NodeRouted": HEADER,
    "RoutingFailed": HEADER,
    "NodeWaiting": {**HEADER, "item": None},
    "NodeCheckpointed": {**HEADER, "item": None},
    "NodeStreamed": {**HEADER, "item": None, "spans": []},
    "StepCompleted": {**HEADER, "value": None, "item": None},
    "StepStarted": {**HEADER, "item": None, "result_schema": {}},
    "StepFailed": {**HEADER, "arguments": [], "retry_at": None, "item": None},
    "CostIncurred": {**HEADER, "usd": 0.0, "tokens": 0},
    "ItemsListed": {**HEADER, "labels": []},
    "ItemStarted": HEADER,
    "ItemCompleted": {**HEADER, "changes": Changes(), "artifacts": {}},
    "ItemFailed": {**HEADER, "retry_at": None},
    "LayerCompleted": {"changes": Changes(), "routes": {}},
    "QuestionAsked": {
        **HEADER,
        "options": [],
        "about": "interrupt",
        "answer_schema": {},
        "approving": [],
        "slot": "",
        "item": None,
        "until": None,
        "on_timeout": "fail",
        "partial": {},
    },
    "QuestionAnswered": {**HEADER, "refused": False, "confidence": None, **SAID, "stated": None},
    "TimerSet": {**HEADER, "item": None},
    "TimerFired": {**HEADER, "item": None},
    "SignalAwaited": {**HEADER, "until": None, "item": None, "payload_schema": {}, "takes": None},
    "SignalReceived": {"payload": None, **SAID},
    "SignalSetAside": {**HEADER, "item": None},
    "WaitWithdrawn": {**HEADER, "item": None, "returned": None},
    "ChildStarted": {**HEADER, "item": None, "cancels": False, "adopted": False},
    "ChildAwaited": {**HEADER, "until": None, "item": None, "anew": False, "abandons": False},
    "ChildEnded": {"values": None, "failure": None, "usd": 0.0, "tokens": 0, "state_version": None},
}
LIMITED = {"RunCreated": 2, "RunResumed": 2, "RunRewound": 2}
"""Version 2 of these has a budget or a scope, and is written only then."""
VERSIONS = {**LIMITED, "FlowChanged": 2, "QuestionAnswered": 2, "NodeScheduled": 2}
"""The kinds of which there is more than one version."""
PARTS = {
    events.StatedStep: {"result": None, "item": None},
    events.Changes: {"set": {}, "append": {}, "merge": {}, "add": {}, "reduce": {}, "unset": []},
    events.Failure: {"traceback": "", "child": "", "advice": "", "step": "", "item": None, "label": ""},
    budget.Budget: {"usd": None, "tokens": None, "active_s": None},
    events.Caller: {"depth": 1},
    events.Reported: {"seq": 0, "usd": 0.0, "tokens": 0, "usd_before": 0.0, "tokens_before": 0},
    events.Span: {"step": "", "step_try": 1},
    events.Begun: {"item": None, "result": None, "kept": False, "at": 0.0, "run": None},
    run_state.Items: {
        "begun": 0,
        "done": {},
        "running": {},
        "again": {},
        "failed": {},
        "attempts": {},
        "failures": {},
        "labels": [],
    },
    run_state.NodeState: {
        "status": "pending",
        "iteration": 0,
        "execution": 1,
        "attempt": 0,
        "failures": 0,
        "crashes": 0,
        "tries": 0,
        "seconds": 0.0,
        "started_at": 0.0,
        "ended_at": 0.0,
        "completed_seq": 0,
        "retry_at": None,
        "failure": None,
        "question": None,
        "input": None,
        "items": None,
        "routed": True,
        "kept": {},
        "parked": {},
        "withdrawn": {},
        "filled": {},
        "approved": False,
        "answer": None,
        "cut": "",
        "asked": 0,
        "fresh": 0,
        "streamed": 0,
        "usd": 0.0,
        "tokens": 0,
        "returned": None,
        "routes": None,
        "unhandled": False,
    },
    run_state.KeptResult: {"accepted": False, "artifacts": {}},
    run_state.Question: {
        "about": "interrupt",
        "answer_schema": {},
        "approving": [],
        "slot": "",
        "item": None,
        "until": None,
        "on_timeout": "fail",
        "partial": {},
    },
    run_state.Wait: {
        "item": None,
        "signal": None,
        "until": None,
        "payload_schema": {},
        "child": None,
        "abandons": False,
    },
    run_state.Child: {
        "item": None,
        "cancels": False,
        "ended": 0,
        "end": None,
        "is_final": False,
        "in_doubt": False,
    },
    run_state.SetAside: {},
    run_state.Warned: {},
    run_state.Held: {"items": [], "routes": None},
    run_state.BegunVisit: {"whole": None, "items": {}, "choice": None},
    run_state.RunState: {
        "status": "new",
        "seq": 0,
        "at": 0.0,
        "flow": "",
        "fingerprint": "",
        "state_version": 1,
        "schedule": "eager",
        "created_at": 0.0,
        "asked_at": 0.0,
        "labels": {},
        "options": {},
        "plan": False,
        "budget": None,
        "scope": None,
        "parent": None,
        "lineage": "",
        "origin": None,
        "depth": 0,
        "children": {},
        "called": False,
        "children_usd": 0.0,
        "children_tokens": 0,
        "reported": None,
        "begun": {},
        "values": {},
        "nodes": {},
        "open": {},
        "arrivals": {},
        "running": 0,
        "waiting": 0,
        "failed": {},
        "paused": False,
        "layer": 0,
        "held": {},
        "writers": {},
        "executions": {},
        "fresh": {},
        "questions": {},
        "waits": {},
        "signals": {},
        "aside": [],
        "warnings": [],
        "uncleaned": [],
        "usd": 0.0,
        "tokens": 0,
        "failure": None,
        "failure_node": None,
        "active_s": 0.0,
        "key_names": {},
        "path": [],
        "since": 1,
    },
    definition.QuestionOptions: {
        "text": "",
        "options": [],
        "answer_schema": {},
        "into": None,
        "timeout_s": None,
        "on_timeout": "fail",
    },
    definition.NodeOptions: {
        "join": "all",
        "each": False,
        "label": False,
        "limit": 16,
        "idempotent": True,
        "on_interrupt": "rerun",
        "timeout_s": None,
        "retry": {},
        "agent": "engine",
        "approve": None,
        "question": None,
        "safe_to_fail": False,
        "crash_limit": 3,
        "executor": "thread",
        "memory_limit": None,
        "calls": None,
        "on_error": [],
        "judged": [],
    },
    definition.Definition: {
        "edges": [],
        "branches": {},
        "schedule": "eager",
        "max_iterations": 1000,
        "max_parallel": 64,
        "state_version": 1,
        "state": {},
        "plan": {},
    },
}


def defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Field -> what it is where nothing is said; the others have to be given."""
    found = {}
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
        elif field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
    return found


def written_exactly(one: object, other: object) -> bool:
    """1, 1.0 and true are three things."""
    return one == other and msgspec.json.encode(one) == msgspec.json.encode(other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_event_does_not_say_stays_what_it_was(kind):
    assert written_exactly(defaults(KINDS[kind]), EVENTS[kind])
    assert VERSIONS.get(kind, 1) == KINDS[kind].VERSION, "a new version is told of here"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_what_a_snapshot_or_a_definition_does_not_say_stays_what_it_was(part):
    assert written_exactly(defaults(part), PARTS[part])


@pytest.mark.parametrize("kind", LIMITED)
def test_an_event_without_limits_is_written_as_before_there_were_any(kind):
    assert b'"v"' not in encode(without_limits(kind)).body


@pytest.mark.parametrize(
    "limit", [{"budget": budget.Budget(usd=5)}, {"scope": ["a"]}], ids=lambda one: next(iter(one))
)
@pytest.mark.parametrize("kind", LIMITED)
def test_an_event_with_a_limit_has_a_version_that_older_readers_refuse(kind, limit):
    plain = msgspec.to_builtins(limit)
    event = msgspec.structs.replace(
        without_limits(kind), **({"options": plain} if kind == "RunCreated" else limit)
    )
    encoded = encode(event)
    assert msgspec.json.decode(encoded.body)["v"] == 2
    assert decode(encoded) == event


def test_an_answer_that_states_a_step_has_a_version_that_older_readers_refuse():
    answer = KINDS["QuestionAnswered"](node="a", iteration=1, key="a.1.1.1", answer="happened")
    assert b'"v"' not in encode(answer).body
    stated = msgspec.structs.replace(answer, stated=events.StatedStep("charge", {"id": 7}))
    encoded = encode(stated)
    assert msgspec.json.decode(encoded.body)["v"] == 2
    assert decode(encoded) == stated


def without_limits(kind):
    needed = {"RunCreated": {"flow": "f", "fingerprint": "x", "state_version": 1, "input": {}, "starts": []}}
    return KINDS[kind](**needed.get(kind, {}), **({"to": 3} if kind == "RunRewound" else {}))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_what_has_its_default_is_not_written(part):
    assert part.__struct_config__.omit_defaults


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS.values(),
        events.Event,
        events.NodeEvent,
        events.Changes,
        events.Failure,
        events.Span,
        events.Stored,
        event_encoding.Encoded,
        definition.QuestionOptions,
        definition.NodeOptions,
        definition.Definition,
        commands.Command,
        *commands.AnyCommand.__args__,
        graph.Node,
        graph.Branch,
        graph.Retry,
        topology.Topology,
        topology.Loop,
        difference.Difference,
        difference.Changed,
        difference.OptionChanged,
        difference.BranchChanged,
    ],
    ids=lambda kind: kind.__name__,
)
def test_facts_definitions_commands_and_shapes_are_frozen(kind):
    assert kind.__struct_config__.frozen


BY_NAME = [
    *KINDS.values(),
    definition.QuestionOptions,
    definition.NodeOptions,
    definition.Definition,
    graph.Retry,
    difference.Difference,
]


@pytest.mark.parametrize("kind", BY_NAME, ids=lambda kind: kind.__name__)
def test_what_events_and_definitions_say_is_said_by_name(kind):
    with pytest.raises(TypeError, match="positional"):
        kind("anything")


def test_an_event_of_no_node_has_an_empty_header():
    assert encode(events.RunPaused()) == Encoded("RunPaused", None, 0, 0, 0, b"")


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (events.NodeStarted(node="a", iteration=1), {}),
        (events.NodeStarted(node="a", iteration=1, took=2), {"took": 2}),
        (events.NodeStarted(node="a", iteration=1, took=0), {"took": 0}),
        (events.NodeStarted(node="a", iteration=1, woken=True), {"woken": True}),
        (events.NodeStarted(node="a", iteration=1, took=0, woken=True), {"took": 0, "woken": True}),
        (events.NodeCompleted(node="a", iteration=1), {}),
        (events.NodeCompleted(node="a", iteration=1, items=True), {"items": True}),
        (events.NodeCompleted(node="a", iteration=1, artifacts={"f": "x"}), {"artifacts": {"f": "x"}}),
        (
            events.NodeCompleted(node="a", iteration=1, changes=Changes(set={"n": 1})),
            {"changes": {"set": {"n": 1}}},
        ),
        (
            events.NodeCompleted(node="a", iteration=1, changes=Changes(unset=["n"])),
            {"changes": {"unset": ["n"]}},
        ),
    ],
)
def test_the_two_most_frequent_events_are_written_as_any_other(event, body):
    encoded = encode(event)
    assert (msgspec.json.decode(encoded.body) if encoded.body else {}) == body
    assert decode(encoded) == event


def test_what_a_node_itself_has_kept_stands_under_the_number_that_snapshots_know():
    assert run_state.NODE_LEVEL == -1


def test_a_retry_that_resumes_no_child_is_written_as_before_there_were_any():
    header = {"node": "a", "iteration": 1, "execution": 1, "attempt": 1, "why": "retry"}
    plain, anew = events.NodeScheduled(**header), events.NodeScheduled(**header, anew=["r.1"])
    assert b'"v"' not in encode(plain).body
    assert (msgspec.json.decode(encode(anew).body)["v"], decode(encode(anew))) == (2, anew)
