"""A server process for `bench.server`: `holdfast serve` itself, or one bare route of starlette to compare it with.

    python -m bench.server_process BYTES     a bare route that answers with this many bytes, on the same HTTP server

It prints its port, and ends when its stdin is closed.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOKEN = "bench00000ff.0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class ServerProcess:
    """A server that listens on loopback."""

    process: Any
    port: int

    def resident_mb(self) -> float:
        """Return the memory of the process, in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def holdfast_server(url: str, *files: str) -> Iterator[ServerProcess]:
    """Run `holdfast serve` with a store. It executes no run."""
    words = ["-m", "holdfast.cli", "serve", *files, "--store", url, "--no-work", "--port", "0"]
    with _process(words, r"http://127\.0\.0\.1:(\d+)/") as server:
        yield server


@contextmanager
def bare_server(size: int) -> Iterator[ServerProcess]:
    """Run one route of starlette that answers with `size` bytes, and does nothing else."""
    with _process(["-m", "bench.server_process", str(size)], r"(\d+)") as server:
        yield server


@contextmanager
def _process(words: list[str], ready: str) -> Iterator[ServerProcess]:
    path = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "HOLDFAST_TOKEN": TOKEN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            found = re.match(ready, process.stdout.readline())
            assert found is not None, "the server did not start"
            yield ServerProcess(process, int(found[1]))
        finally:
            process.kill()


def _serve_bare(size: int) -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from holdfast.server import connection

    body = b"x" * size

    async def answer(request: Request) -> Response:
        return Response(body, media_type="application/json")

    listening = connection.listen("127.0.0.1", 0)
    host = connection.Host(Starlette(routes=[Route("/bare", answer)]), listening)

    async def main() -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), host.stop)
        print(listening.getsockname()[1], flush=True)
        await host.host()

    connection.run(main)


if __name__ == "__main__":
    _serve_bare(int(sys.argv[1]))
