"""Restate: a server that keeps a journal of every step, and a Python service that it calls. Both are started for each question,
and the server's data is in the folder that is measured. It stores no state of a run except the results of its steps.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.peers.asked import Answer, Asked, Clock, answer

_SERVERS = "npm/node_modules/@restatedev/restate-server-*/bin/restate-server"
_PATIENCE_S = 60

service = restate.Service("bench")


def one(number: int) -> int:
    return number + 1


@service.handler()
async def counting(ctx: restate.Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.run_typed("one", one, number=number)
    return number


def _call(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as told:
        return json.loads(told.read() or b"null")


def _free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


def _serve(port: int) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "error"
    asyncio.run(serve(restate.app([service]), config, shutdown_trigger=asyncio.Event().wait))


(_HANDLERS,) = _free_ports(1)


@contextmanager
def _server(asked: Asked) -> Iterator[tuple[int, dict[str, Any]]]:
    """The port of the server, and the durability of its journal."""
    program = next(Path(sys.prefix).glob(_SERVERS), None)
    if program is None:
        sys.exit("its server is installed with npm, which is missing or failed")
    fabric, ingress, admin = _free_ports(3)
    environment = {
        **os.environ,
        "RESTATE_BASE_DIR": str(asked.path.parent),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(fabric),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    settings, version = (
        subprocess.run(
            [program, asked_for], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for asked_for in ("--dump-config", "--version")
    )
    synced = "rocksdb-disable-wal-fsync = true" not in settings
    durable = {"synchronous": 2 if synced else 0, "journal": "WAL of RocksDB", "note": f", {version.strip()}"}
    with subprocess.Popen(
        [program, "--no-logo"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _until_up(admin)
            yield ingress, durable
        finally:
            process.kill()


def _until_up(admin: int) -> None:
    """Wait for the server, and register the service with it."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError):
            _call(admin, "/deployments", {"uri": f"http://127.0.0.1:{_HANDLERS}"})
            return
        if time.monotonic() > until:
            sys.exit(f"its server did not start within {_PATIENCE_S} s")
        time.sleep(0.1)


def chain(asked: Asked) -> Answer:
    with _server(asked) as (ingress, durable):
        for _ in range(2):
            with Clock() as clock:
                assert _call(ingress, "/bench/counting", asked.steps) == asked.steps
    return Answer(clock.wall_s, asked.steps, **durable)


def fleet(asked: Asked) -> Answer:
    with _server(asked) as (ingress, durable), ThreadPoolExecutor(asked.runs) as callers:
        _call(ingress, "/bench/counting", 100)
        with Clock() as clock:
            calls = [
                callers.submit(_call, ingress, "/bench/counting", asked.steps) for _ in range(asked.runs)
            ]
            assert all(call.result() == asked.steps for call in calls)
    return Answer(clock.wall_s, asked.steps * asked.runs, **durable)


if __name__ == "__main__":
    threading.Thread(target=_serve, args=(_HANDLERS,), daemon=True).start()
    answer({"chain": chain, "fleet": fleet}, "restate-sdk")
