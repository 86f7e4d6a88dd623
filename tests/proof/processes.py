"""Pairs of zygotes, and the disks they work on: the code that crash points and power loss share.

A `Pair` is one zygote with the shim, whose children fail, and one without, whose children inspect the disk. Pairs work in
parallel, one per core, each in its own folder, in memory if the machine offers that: a killed process loses nothing that it has
written, whatever the disk, and power loss is computed, not real.

The amount of work is limited by processor time (`Pair.cpu_s`), not by wall time: so a busy machine tries as much as a quiet one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import shim

from holdfast.storage.files.disk import ALLOW_NETWORK

Contents = dict[str, bytes | None]

AT_ONCE = max(1, min(os.cpu_count() or 1, 4))
ZYGOTE = Path(__file__).with_name("zygote.py")
RAM = Path("/dev/shm")
RAM_BYTES_MIN = 500_000_000
LAST_DAY = 9


class Known:
    """A set of names. Processes can share it, so that what one of them has checked is not checked again by another."""

    def __init__(self) -> None:
        self._mine: set[str] = set()
        self._folder: Path | None = None

    def share(self, folder: Path) -> None:
        """Share the set with all processes that name this folder: it has an empty file for each name."""
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def add(self, name: str) -> None:
        self._mine.add(name)
        if self._folder is not None:
            os.close(os.open(f"{self._folder}/{name}", os.O_CREAT, 0o600))

    def __contains__(self, name: str) -> bool:
        if name not in self._mine and self._folder is not None and os.path.exists(f"{self._folder}/{name}"):
            self._mine.add(name)
        return name in self._mine


class Zygote:
    """A process that forks a child for each request. It shares what it has found to be right in the folder `known`."""

    def __init__(self, known: Path, preload: Path | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment[ALLOW_NETWORK] = "1"  # so that the file system is not checked again for every store
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        self._process = subprocess.Popen(
            [sys.executable, str(ZYGOTE), str(known)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",  # so that no project settings are read
        )
        self.cpu_s = 0.0
        """The processor time that the zygote and its children had used at its last answer."""

    def call(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(request, enc_hook=str) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a zygote died during the request {request}")
        answer: dict[str, Any] = msgspec.json.decode(line)
        self.cpu_s = answer.pop("cpu_s")
        return answer

    def close(self) -> None:
        self._process.communicate()


class Pair:
    """Two zygotes with one disk: one with the shim, to fail, and one without, to inspect the disk."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        folder.mkdir()
        known = folder.parent / "known"
        self.failing = Zygote(known, library)
        self.looking = Zygote(known)
        self._randomness = [self._random(f"randomness-{number}", number) for number in range(3)]
        self._bases: dict[str, tuple[Contents, list[str]]] = {}

    @property
    def cpu_s(self) -> float:
        return self.failing.cpu_s + self.looking.cpu_s

    def _random(self, name: str, number: int) -> Path:
        file = self.folder / name
        file.write_bytes(hashlib.shake_256(b"%d" % number).digest(4096))
        return file

    def base(self, operation: str) -> tuple[Contents, list[str]]:
        """Return the disk before an operation, and the reports of the process that prepared it."""
        if operation not in self._bases:
            lay({}, self.disk)
            made = self.fail("prepare", operation, day=0)
            assert made["status"] == 0, made
            assert not any('"defect"' in line for line in made["said"]), made
            self._bases[operation] = (contents(self.disk), made["said"])
        return self._bases[operation]

    def fail(
        self, do: str, operation: str, *, day: int, point: int = 0, mode: str = shim.COUNT, **more: Any
    ) -> Any:
        """Perform an operation on the disk with the shim armed. A child does it if it will be killed (unless the kill is
        simulated: `played`), leaves its store open, or is recorded.
        """
        return self.failing.call(
            do=do, operation=operation, disk=self.disk, day=day, point=point, mode=mode, armed=True,
            fork=do == "prepare" or "record" in more or (mode in shim.KILLS and not more.get("played")),
            randomness=self._randomness[min(day, 2)], **more,
        )  # fmt: skip

    def look(self, operation: str, accounts: list[list[str]], *, carry_on: bool) -> list[str]:
        """Return the problems of the disk, given the reports of the processes that wrote to it. With `carry_on`, also resume its
        runs to their end, and inspect the disk again.
        """
        seen = self.looking.call(
            do="inspect", operation=operation, disk=self.disk, day=LAST_DAY, accounts=accounts, finish=carry_on
        )  # fmt: skip
        problems: list[str] = seen.get("problems", ["the process that inspected the disk died"])
        return problems + [line for line in seen["said"] if '"defect"' in line]

    def close(self) -> None:
        self.failing.close()
        self.looking.close()


@contextmanager
def workshop() -> Iterator[Path]:
    """Make a temporary folder: in memory if there is room, otherwise in the usual place for temporary files."""
    in_memory = RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > RAM_BYTES_MIN
    with tempfile.TemporaryDirectory(prefix="holdfast-proof-", dir=RAM if in_memory else None) as folder:
        yield Path(folder).resolve()


def contents(disk: Path) -> Contents:
    """Return everything on a disk: name -> content, or None for a folder."""
    found: Contents = {}
    root = len(str(disk)) + 1
    for folder, _, names in os.walk(disk):
        if len(folder) > root:
            found[folder[root:]] = None
        for name in names:
            path = f"{folder}/{name}"
            with open(path, "rb", buffering=0) as file:
                found[path[root:]] = file.read()
    return found


def lay(what: Contents, disk: Path) -> None:
    """Replace everything on a disk by these contents."""
    shutil.rmtree(disk, ignore_errors=True)
    os.mkdir(disk)
    for name in sorted(what):
        content = what[name]
        path = f"{disk}/{name}"
        if content is None:
            os.mkdir(path)
        else:
            with open(path, "wb", buffering=0) as file:
                file.write(content)


def digest(what: Contents) -> str:
    """Return a digest of a disk, without shared memory (-shm) and without the names of temporary files."""
    parts = []
    for name, content in what.items():
        folder, _, own = name.rpartition("/")
        if not own.endswith("-shm"):
            known = "" if content is None else hashlib.sha256(content).hexdigest()
            parts.append((f"{folder}/." if own.startswith(".") else name, known))
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()
