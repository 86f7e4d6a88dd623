"""Hostile input over raw sockets, by area: each gets the answer that it must get, and afterwards the server still answers.

What a client may send before there is a request (heads, hosts, lengths) is in `test_connection`; the matrix of routes, tokens,
hosts, origins and methods is in `test_table`; what bodies and queries may be is in `test_input`.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
from urllib.parse import quote

import msgspec
import pytest
from app_client import SECRET
from raw_client import hosted, request, say, status_of

REFUSED = (400, 404, 413, 415, 422)
DATA = {
    "constructor": {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}},
    "type": {"__type__": "os.system"},
    "object": {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["id"]]},
    "reference": {"$ref": "file:///etc/passwd"},
    "pickle": base64.b64encode(pickle.dumps(print)).decode(),
    "template": "{{7*7}} ${7*7} <img src=x onerror=alert(1)>",
    "yaml": "!!python/object/apply:os.system ['id']",
}


def post(path: str, body: bytes, *more: str, type: str = "application/json") -> bytes:
    return request(
        f"/api/v1/{path}",
        f"Content-Type: {type}",
        f"Content-Length: {len(body)}",
        *more,
        method="POST",
        body=body,
    )


def get(path: str) -> bytes:
    return request(f"/api/v1/{path}")


def start(input: bytes) -> bytes:
    return post("runs", b'{"flow":"order","input":' + input + b"}")


HOSTILE: dict[str, dict[str, tuple[bytes, tuple[int, ...]]]] = {
    "websocket": {
        "without a token": (request("/api/v1/runs", "Upgrade: websocket", "Connection: Upgrade", token=None), (401,)),
        "from another site": (
            request("/api/v1/runs", "Upgrade: websocket", "Connection: Upgrade", "Origin: http://evil.com"), (403,),
        ),
    },
    "forms of another site": {
        method: (
            request(
                "/api/v1/runs/ok/cancel", "Sec-Fetch-Site: cross-site", "Content-Type: application/json", "Content-Length: 2",
                method=method, body=b"{}",
            ),
            (403,),
        )
        for method in ("POST", "PUT", "PATCH", "DELETE")
    } | {
        "form-encoded": (post("runs", b"flow=order", type="application/x-www-form-urlencoded"), (415,)),
        "many parts": (post("runs", b"--x\r\n\r\n\r\n" * 100_000, type="multipart/form-data; boundary=x"), (0, 415)),
        "text with JSON": (post("runs", b'{"flow":"order"}', type="text/plain"), (415,)),
        "another charset": (post("runs", b'{"flow":"order"}', type="application/json; charset=utf-7"), (415,)),
    },
    "identity": {
        "another run in the body": (post("runs/ok/cancel", b'{"run_id":"other"}'), (400, 409, 422)),
        "who asks, in the body": (post("runs/ok/cancel", b'{"by":"admin"}'), (400, 422)),
        "who asks, in a header": (post("runs/ok/cancel", b"{}", "Holdfast-For: a\tb<script>"), (400,)),
        "an unknown filter": (get("runs?tenant=1"), (400,)),
        "an unknown filter of many runs": (post("requests", b'{"verb":"cancel","where":{"tenant":"1"}}'), (400, 422)),
    },
    "SQL": {
        text: (get(f"runs?{text}"), (400,))
        for text in ("x%27%29+OR+1%3D1+--=1", "%24.a%27+UNION+SELECT+1=1", "sort=%28select+1%29", "limit=-1",
                     "limit=1000000000000000000")
    } | {
        "a label": (get(f"runs?label={quote(chr(39) + ') or 1=1 --=x')}"), (200, 400)),
        "a pattern": (get(f"runs?flow={quote('%')}"), (200,)),
        "another pattern": (get("runs?flow=_____"), (200,)),
    },
    "data that asks to be more": {
        name: (start(msgspec.json.encode({"item": value})), (201, 400, 422)) for name, value in DATA.items()
    },
    "JSON": {
        "not a number": (start(b"NaN"), (400,)),
        "equal keys": (start(b'{"item":"a","item":"b"}'), (400,)),
        "half a character": (start(b'{"item":"\\ud800"}'), (400,)),
        "many digits": (start(b'{"quantity":' + b"9" * 5000 + b"}"), (400, 422)),
        "depth": (start(b"[" * 100_000 + b"]" * 100_000), (400,)),
        "NUL": (start(b'{"item":"\\u0000"}'), (201, 400, 422)),
        "not UTF-8": (start(b'{"item":"\xff"}'), (400,)),
        "two documents": (post("runs", b'{"flow":"order"}{"flow":"order"}'), (400,)),
        "nothing": (post("runs", b""), REFUSED),
    },
    "ids and paths": {
        name: (get(f"runs/{name}/artifacts/charge/{name}"), (400, 404))
        for name in (
            "..%2f..%2fetc%2fpasswd", "%2e%2e%2f", "..%5c", "%2fabs", "C:%5c", "x%00", "a" * 5000, "CON",
            "%EF%BC%8E%EF%BC%8E%EF%BC%8F",
        )
    } | {
        "a new run": (post("runs", b'{"flow":"order","run_id":"../../etc/passwd"}'), (422,)),
        "a long new run": (post("runs", msgspec.json.encode({"flow": "order", "run_id": "a" * 5000})), (422,)),
    },
    "commands": {
        name: (post("runs", msgspec.json.encode({"flow": "order", "run_id": name})), (422,))
        for name in ("; rm -rf ~", "$(id)", "-oProxyCommand=x", "a\nb", "`id`", "--help")
    },
    "terminals": {
        "title": (post("runs/ok/cancel", msgspec.json.encode({"reason": "\x1b]0;x\x07"})), (400, 409, 422)),
        "lines": (get("runs/x%0d%0aHTTP%2F1.1%20200"), (400,)),
        "direction": (get(f"runs/{quote(chr(0x202E))}"), (400,)),
    },
    "size": {
        "a page": (get("runs?limit=1000000000"), (400,)),
        "a long wait": (get("runs/ok?wait=1000000000"), (400,)),
        "an endless body": (
            request("/api/v1/runs", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST",
                    body=b"100000\r\n" + b" " * 0x100000 + (b"\r\n100000\r\n" + b" " * 0x100000) * 5),
            (0, 413),
        ),
        "a compressed body": (post("runs", b"\x1f\x8b" + b"\0" * 50, "Content-Encoding: gzip"), (415,)),
        "a slow pattern": (get(f"runs?flow={'a' * 127}!"), (200,)),
        "a long filter": (get(f"runs?flow={'a' * 5000}"), (400,)),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, bytes]]:
    """The answers to everything, of one server that must answer as usual after each area."""

    async def main() -> dict[str, dict[str, bytes]]:
        async with hosted() as port:
            found: dict[str, dict[str, bytes]] = {}
            for area, requests in HOSTILE.items():
                found[area] = {
                    name: await say(port, sent.replace(b"PORT", str(port).encode()))
                    for name, (sent, _) in requests.items()
                }
                assert status_of(await say(port, request(host=f"127.0.0.1:{port}"))) == 200, area
            return found

    return asyncio.run(main())


@pytest.mark.parametrize("area", HOSTILE)
def test_hostile_input_gets_the_answer_that_it_must_get(answers, area):
    wrong = {
        name: (allowed, answers[area][name][:300])
        for name, (_, allowed) in HOSTILE[area].items()
        if status_of(answers[area][name]) not in allowed
    }
    assert wrong == {}


def test_no_answer_repeats_a_secret_or_a_control_character_or_lets_a_browser_run_it(answers):
    for area, of_area in answers.items():
        for name, answer in of_area.items():
            head, _, body = answer.partition(b"\r\n\r\n")
            assert SECRET.encode() not in answer, (area, name)
            assert not any(byte < 32 and byte not in b"\r\n" for byte in body), (area, name)
            assert b"set-cookie" not in head.lower()
            assert b"access-control-allow-origin" not in head.lower()
            if b"content-type: application/" in head.lower():
                assert b"x-content-type-options: nosniff" in head.lower(), (area, name)


def test_data_that_asks_to_be_more_stays_data(answers):
    for name, answer in answers["data that asks to be more"].items():
        if status_of(answer) == 201:
            run = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
            assert (run["status"], run["state"]["item"]) == ("pending", DATA[name])
