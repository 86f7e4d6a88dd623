"""Raw bytes on loopback: what a client may send before there is a request, and what a hostile one gets for it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from app_client import SECRET
from raw_client import TOKEN, hosted, request, say, status_of

from holdfast.server import asgi, connection, guard
from holdfast.server.calls import ApiRoute
from holdfast.server.table import Table

ATTACKS = {
    "no token": (request(token=None), 401),
    "wrong token": (request(token="admin.wrongwrongwrongwrong"), 401),
    "rebinding": (request(host="evil.com"), 421),
    "rebinding with our port": (request(host="evil.com:PORT"), 421),
    "suffix of our name": (request(host="127.0.0.1.evil.com:PORT"), 421),
    "userinfo": (request(host="localhost:PORT@evil"), 421),
    "IPv6 on an IPv4 server": (request(host="[::1]:PORT"), 421),
    "any address": (request(host="0.0.0.0:PORT"), 421),
    "two hosts": (request("/api/v1/meta", "Host: evil.com"), 400),
    "no host": (request(host=None), 400),
    "absolute target": (request("http://evil.com/api/v1/meta"), 400),
    "absolute target to us": (request("http://127.0.0.1:PORT/api/v1/meta"), 400),
    "fragment": (request("/healthz#/../api/v1/meta", token=None), 400),
    "asterisk": (request("*", method="OPTIONS"), 400),
    "authority": (request("127.0.0.1:PORT", method="CONNECT"), 400),
    "other site": (request("/api/v1/meta", "Origin: http://evil.com"), 403),
    "no origin": (request("/api/v1/meta", "Origin: null"), 403),
    "cross-site": (request("/api/v1/meta", "Sec-Fetch-Site: cross-site"), 403),
    "cross-site delete": (request("/api/v1/runs/ok", "Sec-Fetch-Site: cross-site", method="DELETE"), 403),
    "form": (request("/api/v1/runs", "Content-Type: text/plain", "Content-Length: 2", method="POST", body=b"{}"), 415),
    "two slashes": (request("//api/v1/runs", token=None), 401),
    "dots": (request("/healthz/../api/v1/runs", token=None), 401),
    "encoded dots": (request("/api/v1/runs/%2e%2e/health", token=None), 401),
    "upper case": (request("/API/V1/RUNS", token=None), 401),
    "semicolon": (request("/api/v1/runs;healthz", token=None), 401),
    "smuggling": (
        request("/api/v1/runs", "Content-Length: 4", "Transfer-Encoding: chunked", method="POST", body=b"0\r\n\r\n"),
        400,
    ),
    "two codings": (
        request("/api/v1/runs", "Content-Type: application/json", "Transfer-Encoding: gzip, chunked", method="POST",
                body=b"2\r\n{}\r\n0\r\n\r\n"),
        400,
    ),
    "two lengths": (request("/api/v1/runs", "Content-Length: 1", "Content-Length: 2", method="POST", body=b"ab"), 400),
    "negative length": (request("/api/v1/runs", "Content-Length: -1", method="POST"), 400),
    "folded header": (request("/api/v1/meta", "X: a\r\n b", token=None), 400),
    "space before the colon": (request("/api/v1/meta", f"Authorization : Bearer {TOKEN}", token=None), 400),
    "line feed only": (b"GET /api/v1/meta HTTP/1.1\nHost: 127.0.0.1:PORT\n\n", 400),
    "NUL in a header": (request("/api/v1/meta", "X: a\0b"), 400),
    "NUL in the target": (request("/api/v1/\0"), 400),
    "not ASCII": (request("/api/v1/\xff"), 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, 400),
    "other version": (b"GET / HTTP/3.7\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
    "upgrade": (request("/api/v1/meta", "Upgrade: websocket", "Connection: Upgrade", token=None), 401),
    "large header": (request("/api/v1/meta", "X: " + "a" * 40_000), 431),
    "long target": (request("/" + "a" * 40_000), 431),
    "many headers": (request("/api/v1/meta", *(f"X-{number}: a" for number in range(200))), 431),
    "large body": (request("/api/v1/runs", "Content-Length: 999999999", "Content-Type: application/json", method="POST"), 413),
    "body of a GET": (request("/api/v1/meta", "Content-Length: 2", body=b"{}"), 400),
    "gzip": (
        request("/api/v1/runs", "Content-Type: application/json", "Content-Encoding: gzip", "Content-Length: 1", method="POST",
                body=b"x"),
        415,
    ),
    "trailing token": (
        request("/api/v1/runs", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST", token=None,
                body=f"0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()),
        401,
    ),
    "terminal escapes": (request("/api/v1/runs/%1b%5d0;x%07"), 400),
    "header injection": (request("/api/v1/runs/x%0d%0aSet-Cookie:%20a=b"), 400),
}  # fmt: skip


def test_every_attack_gets_its_answer_and_the_server_goes_on():
    async def main() -> None:
        async with hosted() as port:
            wrong = {}
            for name, (sent, expected) in ATTACKS.items():
                answer = await say(port, sent.replace(b"PORT", str(port).encode()))
                if status_of(answer) != expected:
                    wrong[name] = (expected, answer[:200])
                assert b"Set-Cookie" not in answer
                assert SECRET.encode() not in answer
                assert b"\x1b" not in answer
            assert wrong == {}
            assert status_of(await say(port, request(host=f"127.0.0.1:{port}"))) == 200

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n", b"\r\n\r\n\r\n", b"G"])
def test_a_slow_head_is_cut_off(monkeypatch, sent):
    monkeypatch.setattr(connection, "HEAD_S", 0.3)

    async def main() -> None:
        async with hosted() as port:
            began = asyncio.get_running_loop().time()
            answer = await say(
                port, sent, *([b"X: y\r\n"] * 2 if sent.endswith(b"1.1\r\n") else []), rest_s=0.05
            )
            assert asyncio.get_running_loop().time() - began < 5
            assert status_of(answer) == 408

    asyncio.run(main())


def test_a_slow_head_is_cut_off_however_steadily_it_comes(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.5)

    async def main() -> None:
        async with hosted() as port:
            answer = await say(port, b"GET /healthz HTTP/1.1\r\n", *[b"X: y\r\n"] * 100, rest_s=0.02)
            assert answer == b"" or status_of(answer) == 408

    asyncio.run(main())


def test_the_second_head_of_a_connection_has_a_deadline_too(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.3)

    async def main() -> None:
        async with hosted() as port:
            whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            answer = await say(port, whole, whole, b"GET /healthz HTTP/1.1\r\nX:", rest_s=0.05)
            assert answer.count(b"HTTP/1.1 200") == 2
            assert answer.count(b"HTTP/1.1 408") == 1

    asyncio.run(main())


def test_a_connection_that_is_kept_may_rest_longer_than_a_head(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)

    async def main() -> None:
        async with hosted() as port:
            whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
            answer = await say(port, whole + b"\r\n", whole + b"Connection: close\r\n\r\n", rest_s=0.5)
            assert answer.count(b"HTTP/1.1 200") == 2

    asyncio.run(main())


def test_a_head_without_end_is_cut_off_by_its_size():
    async def main() -> None:
        async with hosted() as port:
            answer = await say(port, b"GET /healthz HTTP/1.1\r\nX: ", *[b"a" * 8000] * 8)
            assert answer == b"" or status_of(answer) == 431

    asyncio.run(main())


@pytest.mark.parametrize(("beyond", "status"), [(0, 200), (1, 431)])
def test_a_head_may_be_exactly_as_large_as_its_limit(monkeypatch, beyond, status):
    """The target, and each name and value with `: ` and the end of the line."""

    async def main() -> None:
        async with hosted() as port:
            lines = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n"
            monkeypatch.setattr(connection, "HEAD_BYTES_MAX", len("/healthz" + lines) - beyond)
            answer = await say(port, f"GET /healthz HTTP/1.1\r\n{lines}\r\n".encode())
            assert status_of(answer) == status

    asyncio.run(main())


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_does_not_read_is_dropped(monkeypatch, reads):
    monkeypatch.setattr(connection, "WRITE_S", 0.3)
    asked = 400

    async def main() -> None:
        async with hosted() as port:
            one = len(await say(port, request("/api/v1/openapi.json", host=f"127.0.0.1:{port}")))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            sent = request("/api/v1/openapi.json", host=f"127.0.0.1:{port}").replace(
                b"Connection: close\r\n", b""
            )
            writer.write(sent * asked)
            if not reads:
                await asyncio.sleep(1.0)
            got = 0
            try:
                while got < (one - 100) * asked and (part := await reader.read(65536)):
                    got += len(part)
            except ConnectionError:
                pass
            writer.close()
            assert (got >= (one - 100) * asked) is reads

    asyncio.run(main())


class Echoed(msgspec.Struct):
    """What a route of these tests takes and answers."""

    a: int


def echo(call):
    """Answer with the body."""
    return call.body


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b'{"a": ', b"1}"], 200), ([b'{"a": ', b""], 408), ([b'{"a": 1,', b'"a": 2}'], 400), ([b"[" * 100, b"]" * 100], 400),
        ([b" " * 3_000_000, b" " * 3_000_000], 413),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_is_read_up_to_its_limits_of_time_and_size(monkeypatch, parts, expected, chunked):
    monkeypatch.setattr(guard, "BODY_SECONDS_MAX", 0.4)
    route = ApiRoute(method="POST", path="/echo", role="admin", handler=echo, body=Echoed, output=Echoed)

    async def main() -> None:
        async with hosted(Table([route])) as port:
            length = sum(map(len, parts)) + (10 if expected == 408 else 0)
            how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
            head = request(
                "/echo", "Content-Type: application/json", how, method="POST", host=f"127.0.0.1:{port}"
            )
            sent = (
                [b"%x\r\n%s\r\n" % (len(part), part) if part else b"" for part in parts] if chunked else parts
            )
            end = b"0\r\n\r\n" if chunked and expected != 408 else b""
            answer = await say(port, head, *sent, end, rest_s=0.02)
            assert status_of(answer) == expected or (answer == b"" and expected == 413)

    asyncio.run(main())


def test_the_bodies_of_all_requests_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(asgi, "BODIES_BYTES_MAX", 3000)
    route = ApiRoute(method="POST", path="/echo", role="admin", handler=echo, body=Echoed, output=Echoed)
    body = b'{"a": 1' + b" " * 1990 + b"}"

    async def main() -> None:
        async with hosted(Table([route])) as port:
            length = f"Content-Length: {len(body)}"
            head = request(
                "/echo", "Content-Type: application/json", length, method="POST", host=f"127.0.0.1:{port}"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body[:-1])
            while status_of(refused := await say(port, head, body)) != 503:  # the first was not received yet
                pass
            assert b"too-many-bodies" in refused
            writer.write(body[-1:])
            assert status_of(await reader.read()) == 200
            writer.close()
            assert status_of(await say(port, head, body)) == 200

    asyncio.run(main())


def test_pipelined_requests_are_each_checked():
    async def main() -> None:
        async with hosted() as port:
            good = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            bad = request(token=None, host=f"127.0.0.1:{port}")
            answer = await say(port, good + bad)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"HTTP/1.1 401" in answer

    asyncio.run(main())


def test_the_server_stops_while_clients_wait():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with hosted() as port:
            waiting = request("/api/v1/runs/ok?wait=60&after=999", host=f"127.0.0.1:{port}")
            clients = [asyncio.ensure_future(say(port, waiting)) for _ in range(20)]
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            await asyncio.sleep(0.2)
            began = loop.time()
        assert loop.time() - began < 4
        await asyncio.gather(*clients)
        for _, writer in idle:
            writer.close()

    asyncio.run(main())
