"""Run the peers as programs in their own environment, and collect their results.

The environment is `bench/peers/.venv`. It is made from `bench/peers/requirements.txt` on first use, and again when that file
changes. A peer that cannot be installed, or that fails, is reported with the reason; the others continue.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "peers"
_REQUIREMENTS = FOLDER / "requirements.txt"
_TIMEOUT_S = 600


class Absent(Exception):
    """A peer gave no result; the text says why."""


class Incapable(Absent):
    """The library does not support the workload. This is not a failure, and is not reported."""


@dataclass(frozen=True)
class Peer:
    """A library, and how it opens its database."""

    name: str
    program: str
    mode: str = "shipped"


PEERS = (
    Peer("DBOS", "dbos_peer"),
    Peer("LangGraph", "langgraph_peer"),
    Peer("Burr", "burr_peer"),
    Peer("DBOS with WAL", "dbos_peer", "wal"),
    Peer("Burr with WAL", "burr_peer", "wal"),
)
"""Each library with its default settings; and, if its SQLite journal mode is not WAL, which Holdfast uses, also with WAL."""

SERVERS = (Peer("Restate", "restate_peer"),)
"""Peers that need a server of their own. The server takes seconds to start, so they are measured only with `--full`."""

ON_POSTGRES = (Peer("DBOS", "dbos_peer", "postgres"), Peer("LangGraph", "langgraph_peer", "postgres"))


class _Program(NamedTuple):
    """The process of a peer. It keeps running for the next workload, because some libraries take long to import."""

    process: subprocess.Popen[str]
    errors: IO[str]

    @classmethod
    @contextmanager
    def started(cls, command: list[str]) -> Iterator[Self]:
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            ) as process,
        ):
            try:
                yield cls(process, errors)
            finally:
                process.kill()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the program to run a workload. Raises `Absent` if it ends without an answer, or takes too long and is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        limit = threading.Timer(_TIMEOUT_S, self.process.kill)
        limit.start()
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            overdue = not limit.is_alive()
            limit.cancel()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise Absent(
                f"did not end within {_TIMEOUT_S} s"
                if overdue
                else f"failed: {_last_line(self.errors.read())}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Environment:
    """The environment in which the peers are installed, and their programs, each started on first use."""

    folder: Path = FOLDER / ".venv"
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of the peers that have answered."""
    _programs: dict[Peer, _Program] = field(default_factory=dict)
    _started: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def install(self) -> None:
        """Install the peers, if they are not installed yet. Raises `Absent`."""
        stamp = self.folder / "installed"
        wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return
        try:
            venv.create(self.folder, clear=True, with_pip=True)
            pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run(
                [*pip, "--requirement", str(_REQUIREMENTS)], check=True, capture_output=True, text=True
            )
        except subprocess.CalledProcessError as fault:
            raise Absent(f"the peers cannot be installed: {_last_line(fault.stderr)}") from fault
        except OSError as fault:
            raise Absent(f"the peers cannot be installed: {fault}") from fault
        self._install_servers()
        stamp.write_text(wanted, encoding="utf-8")

    def _install_servers(self) -> None:
        """Install the servers of peers with npm. If that fails, the peer reports it when it is run."""
        npm = shutil.which("npm")
        if npm is not None:
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(self.folder / "npm")]
            subprocess.run([*command, "@restatedev/restate-server"], check=False, capture_output=True)

    def ask(
        self,
        peer: Peer,
        folder: Path,
        workload: str,
        *,
        steps: int,
        runs: int = 1,
        size: int = 0,
        url: str = "",
    ) -> dict[str, Any]:
        """Run a workload of a peer once, in its own process. Raises `Absent`."""
        question = {
            "workload": workload,
            "steps": steps,
            "runs": runs,
            "size": size,
            "mode": peer.mode,
            "folder": str(folder),
            "url": url,
        }
        program = self._programs.get(peer)
        if program is None:
            command = [str(self._python), "-m", f"bench.peers.{peer.program}"]
            program = self._programs[peer] = self._started.enter_context(_Program.started(command))
        try:
            answer = program.ask(question)
        except Absent as absent:
            del self._programs[peer]
            raise Absent(f"{peer.name} {absent}") from absent
        if "cannot" in answer:
            raise Incapable(answer["cannot"])
        self.versions.update(answer["versions"])
        return answer

    @property
    def _python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _last_line(text: str | None) -> str:
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
