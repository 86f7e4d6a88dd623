"""The reverse proxy of docs/server.md: nginx, with the configuration of that page, in front of the server."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from app_client import SECRET, TOKENS
from live_client import LiveClient
from served_flows import flow, run_order

import holdfast as hf
from holdfast.server import connection
from holdfast.server.asgi import asgi
from holdfast.storage.memory.store import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
NAME = "holdfast.example.com"
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
NGINX, OPENSSL = (
    os.environ.get("HOLDFAST_TEST_NGINX") or shutil.which("nginx", path=PATH),
    shutil.which("openssl"),
)
PATIENCE_S = 30.0

pytestmark = pytest.mark.skipif(
    NGINX is None or OPENSSL is None,
    reason="NOT TESTED BEHIND A PROXY: there is no nginx or no openssl here. Install them (Debian: nginx-light, openssl), or "
    "name nginx in HOLDFAST_TEST_NGINX",
)
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""


def configuration(folder: Path, port: int, server_port: int) -> str:
    """The configuration of the page, with other ports and a certificate of its own."""
    (text,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for old, new in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/holdfast.pem", f"{folder}/cert.pem"),
        ("/etc/ssl/holdfast.key", f"{folder}/key.pem"),
        ("http://127.0.0.1:8765;", f"http://127.0.0.1:{server_port};"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return AROUND.format(folder=folder, server=text)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Proxy:
    """Sends requests to nginx over TLS."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.trust.check_hostname, self.trust.verify_mode = False, ssl.CERT_NONE

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname=NAME)

    async def open(
        self, method: str, path: str, *headers: str, host: str = NAME, body: bytes = b""
    ) -> LiveClient:
        """Send a request, and read the head of the answer, and the body if it has a length."""
        client = LiveClient(*await self.connect())
        lines = [
            f"{method} /api/v1/{path} HTTP/1.1",
            f"Host: {host}",
            f"Authorization: Bearer admin.{SECRET}",
        ]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
        client.writer.write("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        async with asyncio.timeout(PATIENCE_S):
            await client._read_head()
        return client

    async def ask(
        self, method: str, path: str, *headers: str, host: str = NAME, body: bytes = b""
    ) -> tuple[int, bytes]:
        client = await self.open(method, path, *headers, host=host, body=body)
        client.close()
        return client.status, client.body


def make_certificate(folder: Path) -> None:
    subprocess.run(
        [str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", f"/CN={NAME}", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


@asynccontextmanager
async def proxied(folder: Path):
    """A server with a run that asks, and nginx in front of it."""
    async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
        await run_order(engine, "r1", asks=True)
        app = asgi(engine, tokens=TOKENS, public_urls=[f"https://{NAME}"])
        listening = connection.listen("127.0.0.1", 0)
        host = connection.Host(app, listening)
        serving = asyncio.ensure_future(host.host())
        proxy = Proxy(free_port())
        (folder / "nginx.conf").write_text(configuration(folder, proxy.port, listening.getsockname()[1]))
        nginx = await asyncio.create_subprocess_exec(
            str(NGINX), "-p", folder, "-c", folder / "nginx.conf", stderr=subprocess.DEVNULL
        )
        try:
            await _listens(proxy, nginx, folder)
            yield proxy, engine
        finally:
            nginx.terminate()
            await nginx.wait()
            app.stop()
            host.stop()
            await serving


async def _listens(proxy: Proxy, nginx: asyncio.subprocess.Process, folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert nginx.returncode is None, (folder / "error.log").read_text()
            try:
                (await proxy.connect())[1].close()
            except OSError:
                await asyncio.sleep(0.02)
            else:
                return


def test_requests_and_live_events_pass_the_proxy_of_the_page(tmp_path):
    make_certificate(tmp_path)

    async def main() -> None:
        async with proxied(tmp_path) as (proxy, engine):
            assert (await proxy.ask("GET", "meta"))[0] == 200
            assert (await proxy.ask("GET", "meta", f"Origin: https://{NAME}", "Sec-Fetch-Site: same-origin"))[
                0
            ] == 200
            assert (await proxy.ask("GET", "meta", "Origin: https://evil.com"))[0] == 403
            assert (await proxy.ask("GET", "meta", host="evil.com"))[0] == 421
            assert (await proxy.ask("GET", "meta", host="127.0.0.1:8765"))[0] == 421
            assert (await proxy.ask("POST", "runs", body=b" " * 5_000_000))[0] == 413
            assert (await proxy.ask("POST", "runs", body=b'{"flow":"order","run_id":"r2"}'))[0] == 201

            async with await proxy.open("GET", "live?run=r1") as live:
                assert live.status == 200
                seen = [await live.next("event")]
                while seen[-1].id < engine.store.run("r1").seq:
                    seen.append(await live.next("event"))
                # The stream is open and has nothing to send: what happens now must not wait for a buffer to fill.
                status, body = await proxy.ask("POST", "runs/r1/cancel", body=b'{"reason":"no stock"}')
                assert (status, msgspec.json.decode(body)["run"]["status"]) == (202, "cancelled")
                while seen[-1].data["kind"] != "RunCancelled":
                    seen.append(await live.next("event"))
                assert [frame.id for frame in seen] == list(range(1, len(seen) + 1))
                assert (await live.next("over")).data["status"] == "cancelled"

    asyncio.run(main())
