"""The table of routes: method, path, role, input, output and handler of everything that the server offers.

It is the only source of routing, of roles, of the OpenAPI document and of the test matrix. A path is matched part by part, as it
was sent: a part that was percent-encoded is never taken for a word of the table or for a separator, and there are no redirects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from holdfast.core.validate import NODE_ID, RUN_ID
from holdfast.server import health, logs, node_visits, overview, page_files, run_files, runs
from holdfast.server.calls import ApiRoute
from holdfast.server.problems import refuse

API = "/api/v1"
REST = "{path}"
"""The last part of a path, if it stands for one or more parts."""

VALUES: dict[str, re.Pattern[str]] = {
    "id": RUN_ID,
    "node": NODE_ID,
    "path": re.compile(r"[^\x00-\x1f\x7f\\]{1,1000}"),
}
"""Name of a variable part -> what it may be."""

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
        path=f"{API}/runs/{{id}}/events",
        role="read",
        handler=logs.list_events,
        query=logs.EventsQuery,
        output=logs.EventPage,
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
        path=f"{API}/runs/{{id}}/state",
        role="read",
        handler=logs.get_state,
        query=logs.StateQuery,
        output=logs.StateAt,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/diff",
        role="read",
        handler=logs.get_diff,
        query=logs.DiffQuery,
        output=logs.Diff,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/runs/{{id}}/nodes/{{node}}",
        role="read",
        handler=node_visits.get_visit,
        query=node_visits.VisitQuery,
        output=node_visits.NodeVisit,
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
        handler=logs.compare_runs,
        query=logs.CompareQuery,
        output=logs.Comparison,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/questions",
        role="read",
        handler=overview.list_questions,
        query=overview.QuestionsQuery,
        output=overview.QuestionList,
    ),
    ApiRoute(
        method="GET", path=f"{API}/flows", role="read", handler=overview.list_flows, output=overview.FlowList
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/queues",
        role="read",
        handler=overview.list_queues,
        output=overview.QueueList,
    ),
    ApiRoute(
        method="GET",
        path=f"{API}/doctor",
        role="read",
        handler=overview.get_doctor,
        query=overview.DoctorQuery,
        output=overview.Examination,
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
)

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
        what = {"id": "the id of a run", "node": "the name of a node"}.get(name, "the name of a file")
        raise refuse("bad-parameter", f"A part of the path is not {what}.")
    return value
