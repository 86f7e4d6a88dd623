"""Routes about plans: check one, describe those that a set of capabilities can execute, and show that of a run.

A plan is data of its author. It can only name capabilities that this server knows, and the policies that were registered with
these apply to it. Checking a plan calls none of them, and records nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.graph import Flow
from holdfast.errors import FlowNotFound, Problem
from holdfast.plan import Capabilities
from holdfast.reading import history
from holdfast.reading.plan_documents import plan_document
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.entity_tags import answer_tagged, tag_of_event, tag_of_run
from holdfast.server.problems import FAULTS_MAX, Fault, Refused, refuse
from holdfast.server.runs import Name, Seq

Plan = dict[str, Any]
"""A plan as plain data. What is wrong with it is reported with all other problems, so its fields are not declared here."""


class PlanInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan to check."""

    flow: Name
    """The name of the capabilities."""
    plan: Plan


class CheckedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a plan."""

    flow: str
    ok: bool
    """True if the plan can be executed."""
    problems: list[Fault]
    """At most 1,000 problems, each with its path in the plan."""
    problems_all: int
    """How many problems there are."""


class PlanSchemaQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which capabilities."""

    flow: Name
    """The name of the capabilities."""


class PlanOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run after the event `seq`, with the context and the budget that the run has there."""

    run_id: str
    seq: int
    flow: str
    fingerprint: str
    plan: Plan


class PlanQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At which event."""

    at: Seq | UnsetType = UNSET
    """The seq of an event; default: the end of the log."""


async def check_plan(call: HttpCall[Any, PlanInput]) -> CheckedPlan:
    """Check a plan: list all its problems, each with its path. Nothing is recorded or executed."""
    source = capabilities(call.backend, call.body.flow)
    async with call.backend.plan_turns:
        problems: list[Problem] = await call.backend.read(source.check, call.body.plan)
    return CheckedPlan(
        flow=source.name,
        ok=not problems,
        problems=[Fault(one.path, one.message) for one in problems[:FAULTS_MAX]],
        problems_all=len(problems),
    )


def get_plan_schema(call: HttpCall[PlanSchemaQuery, None]) -> dict[str, Any]:
    """Get the JSON Schema of the plans that a set of capabilities can execute, with the input of each capability."""
    return capabilities(call.backend, call.query.flow).schema()


def get_plan(call: HttpCall[PlanQuery, None]) -> Answer:
    """Get the plan of a run, as a document that can be executed again."""
    backend, at = call.backend, call.query.at
    row = backend.store.run(call.values["id"])
    tag = tag_of_run(row) if at is UNSET or at == row.seq else tag_of_event(backend.store, row, at)

    def make() -> PlanOfRun:
        state = history.load(backend.store, row.run_id, None if at is UNSET else at, row=row)
        definition = backend.reader.definition(row, state.fingerprint)
        plan = plan_document(definition, state.values, state.budget)
        if plan is None:
            raise refuse(
                "not-found",
                f"Run {row.run_id!r} has no plan: its flow is a graph in code.",
                remedy=f"GET /api/v1/runs/{row.run_id}/picture shows its flow.",
            )
        return PlanOfRun(
            run_id=row.run_id, seq=state.seq, flow=state.flow, fingerprint=state.fingerprint, plan=plan
        )

    return answer_tagged(call, tag, make)


async def flow_to_start(backend: Backend, name: str, given: Any, plan: Plan | None) -> Flow[Any]:
    """Return the flow of a run that is to be started: one that this server knows, or that of a plan. Raises `PlanError`,
    `FlowNotFound` and `Refused`.
    """
    known = backend.engine.flows.get(name)
    if known is None:
        raise FlowNotFound(name, backend.engine.flows)
    if isinstance(known, Flow):
        if plan is not None:
            raise _misfit("plan", f"{name!r} is a graph in code, which takes no plan; give its `input`")
        return known
    if plan is None:
        raise _misfit("plan", f"{name!r} executes plans; send one in `plan`")
    if given is not None:
        raise _misfit("input", "a plan brings its own input, in its `context`; leave `input` out")
    source = capabilities(backend, name)
    async with backend.plan_turns:
        return await backend.read(source.plan, plan)


def capabilities(backend: Backend, name: str) -> Capabilities:
    """Return the capabilities with this name. Raises `FlowNotFound` and `Refused`."""
    flows = backend.engine.flows
    found = flows.get(name)
    if isinstance(found, Capabilities):
        return found
    known = {one: flow for one, flow in flows.items() if isinstance(flow, Capabilities)}
    if found is None:
        raise FlowNotFound(name, known)
    others = f" These flows execute plans: {', '.join(sorted(known))}." if known else ""
    raise refuse(
        "bad-body",
        f"{name!r} is a graph in code, which executes no plans.{others}",
        remedy="GET /api/v1/flows lists the capabilities of each flow.",
        faults=(Fault("flow", "it executes no plans"),),
    )


def _misfit(field: str, why: str) -> Refused:
    return refuse("bad-body", f"The body does not fit: {why}.", faults=(Fault(field, why),))
