"""The route that shows one visit of a node."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.documents import artifacts
from holdfast.errors import did_you_mean, end_sentence
from holdfast.reading import history
from holdfast.reading.node_visits import NodeVisit, VisitWanted, show_visit
from holdfast.server.calls import HttpCall
from holdfast.server.plan_inputs import input_of
from holdfast.server.problems import refuse
from holdfast.server.runs import Limit, Seq

Number = Annotated[int, Meta(ge=1, le=2**31)]
Position = Annotated[int, Meta(ge=0, le=2**31)]


class VisitQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which visit; default: the latest."""

    iteration: Number | UnsetType = UNSET
    execution: Number | UnsetType = UNSET
    item: Position | UnsetType = UNSET
    """Show the attempts, steps and chunks of this item of a fan-out."""
    at: Seq | UnsetType = UNSET
    """Show the visit as it was after this event."""
    items_from: Position = 0
    """How many items to skip, to page through a large fan-out."""
    items: Limit = 100


def get_visit(call: HttpCall[VisitQuery, None]) -> NodeVisit:
    """Show a visit of a node: input, output, attempts, steps, chunks, items and cause."""
    backend, query = call.backend, call.query
    store, run_id, node = backend.store, call.values["id"], call.values["node"]
    row = store.run(run_id)
    if query.at is not UNSET and not 1 <= query.at <= row.seq:
        raise history.outside(store, row, query.at)
    definition = backend.reader.definition(row)
    wanted = VisitWanted(
        iteration=query.iteration or None,
        execution=query.execution or None,
        item=None if query.item is UNSET else query.item,
        upto=None if query.at is UNSET else query.at,
        items_from=query.items_from,
        items=query.items,
    )
    base = backend.engine.settings.run_base
    files = artifacts.left(base, run_id, row.flow, node) if base else []
    visit = show_visit(store, row, definition, node, wanted, files)
    if visit is None:
        raise refuse(
            "not-found", "The node has no such visit.", remedy="Leave out `iteration` and `execution`."
        )
    if not visit.visits and node not in definition.nodes:
        known = did_you_mean(node, definition.nodes)
        raise refuse(
            "not-found",
            end_sentence(f"The flow of run {run_id!r} has no node {node!r}{known}"),
            remedy=f"GET /api/v1/runs/{run_id} lists the nodes that the run has reached.",
        )
    if wanted.item is not None and wanted.item >= visit.items_all:
        raise refuse(
            "not-found",
            f"This visit has {visit.items_all} items, counted from 0.",
            remedy="Leave out `item`.",
        )
    if not definition.plan:
        return visit
    state = history.load(store, run_id, wanted.upto, row=row)
    return msgspec.structs.replace(
        visit,
        input=input_of(definition, state, node) if visit.attempts or visit.status == "waiting" else None,
    )
