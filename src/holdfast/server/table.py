"""The table of routes: method, path, role, input, output and handler of everything that the server offers.

It is the only source of routing, of roles, of the OpenAPI document and of the test matrix. A path is matched part by part, as it
was sent: a part that was percent-encoded is never taken for a word of the table or for a separator, and there are no redirects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.validate import NODE_ID, RUN_ID
from holdfast.core.verb_options import options_of
from holdfast.reading import pages
from holdfast.reading.comparison import Comparison
from holdfast.reading.node_visits import NodeVisit
from holdfast.reading.picture import PictureStates
from holdfast.reading.previews import Preview
from holdfast.reading.relatives import FamilyTree
from holdfast.reading.timeline import Timeline
from holdfast.server import (
    administration,
    batch_requests,
    board,
    drawings,
    health,
    live,
    logs,
    overview,
    page_files,
    questions,
    run_files,
    run_nodes,
    run_plans,
    runs,
    starts,
    store_rows,
    verb_inputs,
    verbs,
)
from holdfast.server.calls import EVENTS, JSON, ApiRoute
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import refuse
from holdfast.server.verb_headers import IF_MATCH, KEY, LAST_EVENT, PREFER, TRACE
from holdfast.storage.contract import RunRow
from holdfast.storage.http import row_format
from holdfast.storage.queues import Board, Queue
from holdfast.storage.tokens import Role
from holdfast.storage.upkeep import Facts
from holdfast.upkeep.retention import Deleted, Pruned

API = "/api/v1"
REST = "{path}"
"""The last part of a path, if it stands for one or more parts."""

VALUES: dict[str, re.Pattern[str]] = {
    "id": RUN_ID,
    "node": NODE_ID,
    "queue": RUN_ID,
    "token": re.compile(r"[0-9A-Za-z_-]{1,64}"),
    "fingerprint": re.compile(r"[0-9a-f]{64}"),
    "path": re.compile(r"[^\x00-\x1f\x7f\\]{1,1000}"),
}
"""Name of a variable part -> what it may be."""
_MEANINGS = {
    "id": "the id of a run",
    "node": "the name of a node",
    "queue": "the name of a queue",
    "token": "the id of a token",
    "fingerprint": "the fingerprint of a flow",
    "path": "the name of a file",
}


def _rows(
    path: str,
    handler: Callable[[Any], Any],
    output: Any,
    *,
    query: type[msgspec.Struct] = NoQuery,
    role: Role = "read",
) -> ApiRoute:
    """Return a route that gives rows of the store; without a type of output, it gives bytes."""
    media_type = JSON if output is not None else run_files.BINARY
    path = f"{API}/store{path}"
    return ApiRoute(
        method="GET", path=path, role=role, handler=handler, query=query, output=output, media_type=media_type
    )


def _verb(name: str, handler: Callable[[Any], Any], path: str = "") -> ApiRoute:
    """Return the route of a verb. It leaves a request in the inbox of a run, or it makes a run."""
    record = (RECORDS | MAKING)[name]
    traits = record.traits
    more = (IF_MATCH,) if traits.previewed else (TRACE,) if "trace_parent" in options_of(record) else ()
    return ApiRoute(
        method="POST",
        path=path or f"{API}/runs/{{id}}/{name}",
        role=traits.role,
        handler=handler,
        headers=(KEY, PREFER, *more),
        query=verbs.VerbQuery if traits.previewed else NoQuery,
        preview=Preview if traits.previewed else None,
        body=verb_inputs.BODIES[name],
        output=runs.ShownRun if traits.makes_run else verbs.SentRequest,
        statuses=(200, 201) if traits.makes_run else (200, 202),
    )


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        method="GET", path=f"{API}/openapi.json", role="read", handler=overview.get_document, output=dict
    ),
    ApiRoute(method="GET", path=f"{API}/meta", role="read", handler=overview.get_meta, output=overview.About),
    ApiRoute(
        method="GET",
        path=f"{API}/runs",
        role="read",
        handler=runs.list_runs,
        query=runs.RunsQuery,
        output=runs.RunPage,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}",
        role="read",
        handler=runs.get_run,
        query=runs.RunQuery,
        output=runs.ShownRun,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/family",
        role="read",
        handler=runs.get_family,
        query=runs.FamilyQuery,
        output=FamilyTree,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/events",
        role="read",
        handler=logs.list_events,
        query=logs.EventsQuery,
        output=logs.EventPage,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/checkpoints",
        role="read",
        handler=logs.list_checkpoints,
        query=logs.CheckpointsQuery,
        output=logs.CheckpointPage,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/ledger",
        role="read",
        handler=logs.get_ledger,
        query=logs.LedgerQuery,
        output=logs.LedgerPage,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/plan",
        role="read",
        handler=run_plans.get_plan,
        query=run_plans.PlanQuery,
        output=run_plans.PlanOfRun,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/state",
        role="read",
        handler=logs.get_state,
        query=logs.StateQuery,
        output=logs.StateAt,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/diff",
        role="read",
        handler=logs.get_diff,
        query=logs.DiffQuery,
        output=logs.Diff,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/timeline",
        role="read",
        handler=drawings.get_timeline,
        query=drawings.TimelineQuery,
        output=Timeline,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/picture",
        role="read",
        handler=drawings.get_picture,
        query=drawings.PictureQuery,
        output=PictureStates,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/nodes/{{node}}",
        role="read",
        handler=run_nodes.get_visit,
        query=run_nodes.VisitQuery,
        output=NodeVisit,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/questions",
        role="read",
        handler=questions.list_questions_of_run,
        query=questions.QuestionsOfRunQuery,
        output=questions.QuestionsOfRun,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/requests",
        role="read",
        handler=runs.list_requests,
        output=runs.RequestsOfRun,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/receipts",
        role="read",
        handler=run_files.list_receipts,
        query=run_files.ReceiptsQuery,
        output=run_files.ReceiptList,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/artifacts",
        role="read",
        handler=run_files.list_artifacts,
        output=run_files.ArtifactList,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/artifacts/{{node}}/{{path}}",
        role="read",
        handler=run_files.get_artifact,
        media_type=run_files.BINARY,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/archive",
        role="read",
        handler=run_files.get_archive,
        media_type=run_files.BINARY,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/compare",
        role="read",
        handler=logs.get_comparison,
        query=logs.CompareQuery,
        output=Comparison,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/questions",
        role="read",
        handler=questions.list_questions,
        query=questions.QuestionsQuery,
        output=pages.QuestionPage,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/pictures/{{fingerprint}}",
        role="read",
        handler=drawings.get_flow_picture,
        query=drawings.FlowPictureQuery,
        output=drawings.FlowPicture,
        statuses=(200, 304),
    ),
    ApiRoute(
        method="GET", path=f"{API}/flows", role="read", handler=overview.list_flows, output=overview.FlowList
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/plans/schema",
        role="read",
        handler=run_plans.get_plan_schema,
        query=run_plans.PlanSchemaQuery,
        output=dict,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/queues",
        role="read",
        handler=overview.list_queues,
        output=overview.QueueList,
    ),
    ApiRoute(
        method="GET", path=f"{API}/workers", role="read", handler=board.list_workers, output=board.WorkerList
    ),
    ApiRoute(method="GET", path=f"{API}/board", role="read", handler=board.get_board, output=board.BoardView),
    ApiRoute(
        method="GET",
        path=f"{API}/doctor",
        role="read",
        handler=overview.get_doctor,
        query=overview.DoctorQuery,
        output=overview.Examination,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/live",
        role="read",
        handler=live.get_live,
        headers=(LAST_EVENT,),
        query=live.LiveQuery,
        media_type=EVENTS,
    ),
    _verb("start", starts.start_run, f"{API}/runs"),
    ApiRoute(
        method="POST",
        path=f"{API}/plans/check",
        role="start",
        handler=run_plans.check_plan,
        body=run_plans.PlanInput,
        output=run_plans.CheckedPlan,
    ),
    _verb("resume", verbs.resume_run),
    _verb("retry", verbs.retry_run),
    _verb("skip", verbs.skip_node),
    _verb("cancel", verbs.cancel_run),
    _verb("fork", starts.fork_run),
    _verb("pause", verbs.pause_run),
    _verb("edit", verbs.edit_run),
    _verb("answer", verbs.answer_question),
    _verb("signal", verbs.send_signal),
    ApiRoute(
        method="POST",
        path=f"{API}/requests",
        role="operate",
        handler=batch_requests.ask_runs,
        headers=(KEY,),
        query=verbs.VerbQuery,
        body=batch_requests.BatchInput,
        output=batch_requests.BatchAnswer,
        statuses=(200, 202),
    ),
    ApiRoute(
        method="POST",
        path=f"{API}/runs/{{id}}/prune",
        role="admin",
        handler=administration.prune_run,
        query=verbs.VerbQuery,
        body=administration.PruneInput,
        output=Pruned,
    ),
    ApiRoute(
        method="DELETE",
        path=f"{API}/runs/{{id}}",
        role="admin",
        handler=administration.delete_run,
        output=Deleted,
    ),
    ApiRoute(
        method="POST",
        path=f"{API}/queues/{{queue}}",
        role="admin",
        handler=administration.limit_queue,
        body=administration.QueueInput,
        output=Queue,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/tokens",
        role="admin",
        handler=administration.list_tokens,
        output=administration.TokenList,
    ),
    ApiRoute(
        method="POST",
        path=f"{API}/tokens",
        role="admin",
        handler=administration.create_token,
        headers=(KEY,),
        body=administration.TokenInput,
        output=administration.NewToken,
        statuses=(201,),
    ),
    ApiRoute(
        method="DELETE",
        path=f"{API}/tokens/{{token}}",
        role="admin",
        handler=administration.revoke_token,
        output=administration.TokenView,
    ),
    ApiRoute(
        method="GET", path="/metrics", role="read", handler=health.get_metrics, media_type=health.METRICS_TYPE
    ),
    ApiRoute(method="GET", path="/healthz", role=None, handler=health.get_health, media_type=health.TEXT),
    ApiRoute(
        method="GET",
        path="/readyz",
        role=None,
        handler=health.get_readiness,
        media_type=health.TEXT,
        statuses=(200, 503),
    ),
    _rows("", store_rows.get_store, row_format.StoreAbout),
    _rows("/runs", store_rows.get_stored_runs, row_format.StoredRuns, query=store_rows.WantedQuery),
    _rows("/runs/{id}", store_rows.get_stored_run, RunRow),
    _rows("/runs/{id}/events", store_rows.get_stored_events, row_format.StoredEvents, query=store_rows.WantedQuery),
    _rows("/tails", store_rows.get_stored_tails, row_format.StoredTails, query=store_rows.WantedQuery),
    _rows("/runs/{id}/snapshot", store_rows.get_stored_snapshot, row_format.StoredSnapshot, query=store_rows.StoredSnapshotQuery),
    _rows("/runs/{id}/inbox", store_rows.get_stored_inbox, row_format.StoredRequests),
    _rows("/runs/{id}/upkeep", store_rows.get_stored_upkeep, row_format.StoredUpkeep),
    _rows("/runs/{id}/streams", store_rows.get_stored_streams, row_format.StoredStreams),
    _rows("/definition", store_rows.get_stored_definition, row_format.StoredDefinition, query=store_rows.FingerprintQuery),
    _rows("/blob", store_rows.get_stored_blob, None, query=store_rows.BlobQuery),
    _rows("/holders", store_rows.get_stored_holders, row_format.StoredHolders),
    _rows(
        "/waiting", store_rows.get_stored_waiting, row_format.StoredRequests, query=store_rows.WantedQuery
    ),
    _rows(
        "/refusals", store_rows.get_stored_refusals, row_format.StoredRefusals, query=store_rows.WantedQuery
    ),
    _rows("/offers", store_rows.get_stored_offers, row_format.StoredOffers),
    _rows("/board", store_rows.get_stored_board, Board),
    _rows("/facts", store_rows.get_stored_facts, Facts),
    _rows("/check", store_rows.check_store, row_format.Damage, role="admin"),
)  # fmt: skip

_VARIABLE = re.compile(r"\{(\w+)\}")


@dataclass
class _Place:
    """A part of the tree of paths."""

    words: dict[str, _Place] = field(default_factory=dict)
    variable: tuple[str, _Place] | None = None
    routes: dict[str, ApiRoute] = field(default_factory=dict)


class Table:
    """The routes of the API and the files of the page, found by method and raw path."""

    def __init__(
        self, routes: Iterable[ApiRoute] = ROUTES, page: Iterable[ApiRoute] = page_files.ROUTES
    ) -> None:
        self.routes = tuple(routes)
        self._root = _Place()
        matched = (*self.routes, *page)
        for route in matched:
            self._add(route)
        self.open_paths = frozenset(route.path for route in matched if route.role is None)

    def _add(self, route: ApiRoute) -> None:
        place = self._root
        for part in route.path.split("/")[1:]:
            found = _VARIABLE.fullmatch(part)
            if found is None:
                place = place.words.setdefault(part, _Place())
                continue
            if route.role is None:
                raise ValueError(f"{route.path}: a path that needs no token has no variable part")
            if place.variable is None:
                place.variable = (found[1], _Place())
            assert place.variable[0] == found[1], f"{route.path}: this part has another name in another route"
            place = place.variable[1]
        assert route.method not in place.routes, f"{route.method} {route.path} is in the table twice"
        place.routes[route.method] = route

    def match(self, method: str, path: str) -> tuple[ApiRoute, dict[str, str]]:
        """Return the route for a raw path, and the values of its variable parts. Raises `Refused`."""
        place, values = self._find(path)
        if place is None or not place.routes:
            raise refuse("not-found", "This server has no such path.")
        route = place.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*place.routes, *(["HEAD"] if "GET" in place.routes else [])}))
            raise refuse("wrong-method", f"This path has the methods {allowed}.", headers={"Allow": allowed})
        return route, {name: _read_value(name, raw) for name, raw in values.items()}

    def _find(self, path: str) -> tuple[_Place | None, dict[str, str]]:
        place, values = self._root, dict[str, str]()
        parts = path.split("/")[1:]
        for number, part in enumerate(parts):
            if part in place.words:
                place = place.words[part]
                continue
            if place.variable is None or not part:
                return None, {}
            name, place = place.variable
            if name == "path":
                values[name] = "/".join(parts[number:])
                return place, values
            values[name] = part
        return place, values


def _read_value(name: str, raw: str) -> str:
    try:
        value = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        value = ""
    if not VALUES[name].fullmatch(value):
        raise refuse("bad-parameter", f"A part of the path is not {_MEANINGS[name]}.")
    return value
