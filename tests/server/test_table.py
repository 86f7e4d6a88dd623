"""The matrix of routes, credentials, hosts, origins and methods, generated from the table: no success without the right.

The guard knows no route, so the matrix has pairs instead of all products: each route meets one wrong token, host, origin and
site, another one than the route before it, and each of these meets a route that reads, one that writes and one that is open.
"""

from __future__ import annotations

import asyncio
import re
from itertools import cycle

import pytest
from app_client import HOST, SECRET, TOKENS, Caller, Reply, make_token
from served_flows import flow, opened, run_order
from served_plans import ORDER, shop

from holdfast.server.asgi import asgi
from holdfast.server.calls import ApiRoute
from holdfast.server.problems import Refused
from holdfast.server.table import ROUTES, Table
from holdfast.storage.blobs import Blob
from holdfast.storage.tokens import ROLES, allows

VALUES = {
    "id": "ok",
    "node": "charge",
    "path": "a.txt",
    "queue": "slow",
    "token": "t0",
    "fingerprint": flow.fingerprint,
}
BODIES = {
    "/runs": b'{"flow": "order", "run_id": "ok"}',
    "/skip": b'{"node": "charge"}',
    "/edit": b'{"fields": {"item": "desk"}}',
    "/answer": b'{"question": "ship", "answer": "approve"}',
    "/signal": b'{"name": "go"}',
    "/requests": b'{"verb": "resume", "where": {"flow": "order"}}',
    "/queues/slow": b'{"limit": 3}',
    "/plans/check": b'{"flow": "shop", "plan": {}}',
    "/tokens": b'{"name": "bob"}',
}
"""How a path ends -> a body that fits it; the other routes that take one need none."""
BLOB = Blob.of(b"kept beside the log")
QUERIES = {
    "/api/v1/runs/{id}/diff": "?from=2",
    "/api/v1/compare": "?a=ok&b=ok",
    "/api/v1/live": "?run=ok",
    "/api/v1/plans/schema": "?flow=shop",
    "/api/v1/store/definition": "?fingerprint=unknown",
    "/api/v1/store/blob": f"?digest={BLOB.digest}",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X")
WRONG_TOKENS = {
    "none": [],
    "empty": [("authorization", "")],
    "no secret": [("authorization", "Bearer admin.")],
    "wrong secret": [("authorization", "Bearer admin.wrongwrongwrongwrong")],
    "unknown id": [("authorization", f"Bearer nobody.{SECRET}")],
    "other scheme": [("authorization", f"Basic admin.{SECRET}")],
    "expired": [("authorization", f"Bearer expired.{SECRET}")],
    "revoked": [("authorization", f"Bearer revoked.{SECRET}")],
    "two": [("authorization", f"Bearer admin.{SECRET}")] * 2,
    "cookie": [("cookie", f"token=admin.{SECRET}")],
    "other header": [("x-token", f"admin.{SECRET}")],
}
WRONG_HOSTS = (
    "evil.com",
    "127.0.0.1.evil.com",
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost:8765@evil",
    "localhost.:8765",
    "[::1]:8765",
    "0.0.0.0:8765",
    "127.0.0.1:8765:8765",
    "127.1:8765",
    "2130706433:8765",
    "127.0.0.1:08765",
    "",
    " ",
    "127.0.0.1:8765, evil.com",
    "holdfast.example.com.evil.com",
)
WRONG_ORIGINS = (
    "null", "http://evil.com", "https://localhost.evil", "https://127.0.0.1:8765", "http://127.0.0.1", "http://127.0.0.1:1",
    "http://127.0.0.1:8765.evil.com", "file://", "", "http://user@127.0.0.1:8765", "https://holdfast.example.com.evil.com",
)  # fmt: skip
WRONG_SITES = ("cross-site", "same-site", "", "x")
OWN_ORIGINS = {
    "127.0.0.1:8765": "http://127.0.0.1:8765",
    "localhost:8765": "http://localhost:8765",
    "holdfast.example.com": "https://holdfast.example.com",
    "holdfast.example.com:443": "https://holdfast.example.com",
}
FEW = [
    next(route for route in ROUTES if (route.method, route.path) == chosen)
    for chosen in (("GET", "/api/v1/runs/{id}"), ("POST", "/api/v1/runs/{id}/edit"), ("GET", "/healthz"))
]
"""A route that reads, one that writes and one that needs no token."""


def path_of(route: ApiRoute) -> str:
    values = VALUES | ({"id": "planned"} if route.path.endswith("/plan") else {})
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], route.path) + QUERIES.get(route.path, "")


def body_of(method: str, path: str) -> bytes:
    """Return a body that fits a path."""
    found = (body for ending, body in BODIES.items() if path.partition("?")[0].endswith(ending))
    return next(found, b"") if method == "POST" else b""


def is_refused(reply: Reply) -> bool:
    return (
        reply.status in (400, 401, 403, 405, 415, 421)
        and reply.headers["content-type"] == "application/problem+json"
    )


@pytest.fixture(scope="module")
def ask():
    """Sends requests to an application with one run, all in one event loop."""
    loop = asyncio.new_event_loop()
    opening = opened(flows=(flow, shop))
    engine, _ = loop.run_until_complete(opening.__aenter__())
    loop.run_until_complete(run_order(engine, "ok"))
    loop.run_until_complete(engine.run(shop.plan(ORDER), run_id="planned"))
    engine.store.blobs.put(BLOB.digest, BLOB.body)
    expired, revoked = (
        make_token(token_id="expired", expires_at=1.0),
        make_token(token_id="revoked", revoked_at=1.0),
    )
    app = asgi(engine, tokens=[*TOKENS, expired, revoked], public_urls=["https://holdfast.example.com"])
    count = 0

    def send(method: str, path: str, *, role: str = "admin", **options: object) -> Reply:
        nonlocal count
        count += 1  # each from another address, because wrong tokens are counted by address
        client = f"10.{count >> 16 & 255}.{count >> 8 & 255}.{count & 255}"
        if body := body_of(method, path):
            headers = options.get("headers") or []
            listed = list(headers.items() if isinstance(headers, dict) else headers)
            options |= {"body": body, "headers": [*listed, ("content-type", "application/json")]}
        return loop.run_until_complete(Caller(app, role=role).send(method, path, client=client, **options))

    yield send
    app.stop()
    loop.run_until_complete(opening.__aexit__(None, None, None))
    loop.close()


each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@each_route
def test_a_caller_with_the_role_gets_an_answer(ask, route):
    reply = ask(route.method, path_of(route), role=route.role or "read")
    if route.method == "GET":
        missing = route.path.endswith("{path}")
        assert reply.status == (404 if missing else 200), reply.body
        assert reply.headers["content-type"] == ("application/problem+json" if missing else route.media_type)
    else:  # the run is completed, and there is no such token
        assert reply.status in (*route.statuses, 404 if "{token}" in route.path else 409), reply.body
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers
    assert "set-cookie" not in reply.headers


@each_route
def test_a_role_that_is_too_low_is_refused(ask, route):
    for role in ROLES:
        if route.role is not None:
            allowed = allows(role, route.role)
            assert (ask(route.method, path_of(route), role=role).status != 403) == allowed


def check_wrong_token(ask, route, wrong):
    reply = ask(route.method, path_of(route), token=None, headers=WRONG_TOKENS[wrong])
    if route.role is None:
        assert reply.status == 200
    else:
        assert reply.status == 401, reply.body
        assert reply.headers["www-authenticate"] == "Bearer"
        assert SECRET.encode() not in reply.body


def check_token_in_query(ask, route):
    path = path_of(route)
    more = f"{'&' if '?' in path else '?'}token=admin.{SECRET}"
    assert ask(route.method, path + more, token=None).status == (401 if route.role else 400)
    assert ask(route.method, path + more).status == 400


def check_wrong_host(ask, route, host):
    for method in METHODS:
        assert ask(method, path_of(route), host=host).status == 421


def check_number_of_hosts(ask, route):
    for method in METHODS:
        assert ask(method, path_of(route), host=None).status == 400
        assert ask(method, path_of(route), headers=[("host", HOST)]).status == 400
        assert ask(method, path_of(route), headers=[("host", "evil.com")]).status == 400


def check_wrong_origin(ask, route, origin):
    for method in METHODS:
        reply = ask(method, path_of(route), headers={"origin": origin})
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers


def check_own_origin(ask, route, host):
    reply = ask(route.method, path_of(route), host=host, headers={"origin": OWN_ORIGINS[host]})
    assert reply.status in (*route.statuses, 404, 409), reply.body


def check_wrong_site(ask, route, site):
    for method in METHODS:
        reply = ask(method, path_of(route), headers={"sec-fetch-site": site})
        assert reply.status == 403 or (route.role is None and method in ("GET", "HEAD"))


BY_TURNS = (WRONG_TOKENS, WRONG_HOSTS, WRONG_ORIGINS, OWN_ORIGINS, WRONG_SITES)


@pytest.mark.parametrize(
    ("route", "wrong", "host", "origin", "own", "site"),
    list(zip(ROUTES, *map(cycle, BY_TURNS), strict=False)),
    ids=[f"{route.method} {route.path}" for route in ROUTES],
)
def test_every_route_is_guarded(ask, route, wrong, host, origin, own, site):
    check_wrong_token(ask, route, wrong)
    check_token_in_query(ask, route)
    check_wrong_host(ask, route, host)
    check_number_of_hosts(ask, route)
    check_wrong_origin(ask, route, origin)
    check_own_origin(ask, route, own)
    check_wrong_site(ask, route, site)


@pytest.mark.parametrize("wrong", WRONG_TOKENS)
def test_nobody_gets_in_with_a_wrong_token(ask, wrong):
    for route in FEW:
        check_wrong_token(ask, route, wrong)


@pytest.mark.parametrize("host", WRONG_HOSTS)
def test_another_host_is_refused_for_every_method(ask, host):
    for route in FEW:
        check_wrong_host(ask, route, host)


@pytest.mark.parametrize("origin", WRONG_ORIGINS)
def test_another_origin_is_refused_for_every_method(ask, origin):
    for route in FEW:
        check_wrong_origin(ask, route, origin)


@pytest.mark.parametrize("host", OWN_ORIGINS)
def test_our_own_origins_are_accepted(ask, host):
    for route in FEW:
        check_own_origin(ask, route, host)


@pytest.mark.parametrize("site", WRONG_SITES)
def test_a_request_that_another_site_sends_is_refused(ask, site):
    for route in FEW:
        check_wrong_site(ask, route, site)


@each_route
def test_other_methods_are_refused(ask, route):
    offered = {other.method for other in ROUTES if other.path == route.path}
    for method in METHODS:
        if method not in offered and not (method == "HEAD" and "GET" in offered):
            reply = ask(method, path_of(route))
            assert reply.status == 405
            assert set(reply.headers["allow"].split(", ")) == offered | (
                {"HEAD"} if "GET" in offered else set()
            )
            assert is_refused(ask(method, path_of(route), token=None))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/api/runs/x-health",
        "/api/vars/ready",
        "//api/v1/runs",
        "/api/v1/runs/%2e%2e/health",
        "/API/V1/RUNS",
        "/healthz/",
        "/healthz;x",
        "/healthz%20",
        "/%68ealthz",
        "/healthz/../api/v1/runs",
        "/api/v1/runs;healthz",
        "/api/v1//runs",
        "/x?/healthz",
        "/readyz\\",
        "/metrics/",
        "/api/v1",
        "/docs",
        "/.git/config",
        "/api/v1/openapi.json/",
    ],
)
def test_any_other_path_needs_a_token_and_is_not_found(ask, path):
    assert ask("GET", path, token=None).status == 401
    assert ask("GET", path).status in (400, 404)
    assert "location" not in ask("GET", path).headers


@pytest.mark.parametrize(
    "run_id",
    [
        "..",
        ".",
        "%2e%2e",
        "%2e%2e%2f%2e%2e%2fetc",
        "..%5c",
        "%00",
        "x%00",
        "-x",
        "a%2Fb",
        "a" * 129,
        "%ff",
        "a b",
        "a%20b",
        "%E2%80%A4",
        "x%0d%0aX",
        "%u2215",
    ],
)
def test_a_hostile_id_is_refused_as_an_id(ask, run_id):
    for rest in ("", "/events", "/archive", "/artifacts/charge/a.txt"):
        reply = ask("GET", f"/api/v1/runs/{run_id}{rest}")
        assert reply.status in (400, 404), reply.body


def test_the_document_lists_exactly_the_routes(ask):
    paths = ask("GET", "/api/v1/openapi.json").json["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}


def test_every_route_says_what_it_does():
    for route in ROUTES:
        assert re.fullmatch(r"[A-Z].+\.", route.summary), route.path


def test_only_exact_paths_may_need_no_token():
    route = ApiRoute(method="GET", path="/x/{id}", role=None, handler=print)
    with pytest.raises(ValueError, match="no variable part"):
        Table([route])


def test_a_path_is_matched_as_it_was_sent():
    table = Table(ROUTES)
    route, values = table.match("GET", "/api/v1/runs/a/artifacts/n/x/y%20z.txt")
    assert route.path.endswith("{path}")
    assert values == {"id": "a", "node": "n", "path": "x/y z.txt"}
    with pytest.raises(Refused):
        table.match("GET", "/api/v1/runs%2Fa")
