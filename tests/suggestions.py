"""Every command that Holdfast suggests is run once, as it was printed, in a copy of the folder and the store that it was about.

`Suggestions.try_all` finds the commands in what a command printed, and fails if one of them is refused. Commands of the same
form, about runs in the same state, are run once per test process, so that all of this takes a few seconds. A command runs in a
process that `suggestion_server` forks: a node may kill it, and it may wait for longer than the test has time.

What only the user knows (a placeholder in capital letters) is filled in where any value will do; a command with another one is
only parsed.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.cli.catalogue import BY_NAME
from holdfast.cli.exits import Exit
from holdfast.errors import HoldfastError
from holdfast.reading import history
from holdfast.runtime import settings
from holdfast.storage import urls

_NAMES = "|".join(sorted(BY_NAME, key=len, reverse=True))
_MENTIONED = re.compile(rf"(?<![\w./`-])holdfast (?:{_NAMES})\b|`holdfast (?:{_NAMES})\b")
_FORMS = (
    re.compile(r"^\s*\$ (holdfast .+?)(?:   # .*)?$"),
    re.compile(r"`(holdfast [^`]+)`"),
    re.compile(r": (holdfast [^`]+)$"),
    re.compile(r"^\s+(holdfast [^`]+)$"),
    re.compile(r"^Try '(holdfast [^']+)' for help\.$"),
)
_IN_JSON = ("command", "resumes", "executes")
_WORKS = {Exit.OK, Exit.FAILED, Exit.WAITS, Exit.CANCELLED, Exit.STUCK, Exit.DAMAGED, Exit.INTERRUPTED}
_EXECUTES = {"run", "resume", "retry", "skip", "worker"}
_FILLED = {
    "DIR": "base",
    "NUMBER": "1",
    "TEXT": "text",
    "VALUE": "1",
    "[…]": "[]",
    '{"FIELD": "VALUE"}': "{}",
}
_FILLED_INSIDE = {"NUMBER": "1", "VALUE": "1", "[…]": "[]"}
_INSIDE = re.compile(r"\bNUMBER\b|(?<!\")\bVALUE\b|\[…\]")
_UNKNOWN = re.compile(r"\b(?:RUN|SEQ|NEW|QUESTION|NODE|NAME|ID|PLAN)\b|…")
_PATIENCE_S = 60.0
"""How long another command may take: it must end, also on a busy machine."""
_SECONDS = 2.0
_tried: set[tuple[Any, ...]] = set()


def found_in(text: str) -> Iterator[str]:
    """The commands that a text suggests. Every command in it must be where it can be told from the sentence around it."""
    for line in text.splitlines():
        if line.startswith("Usage: "):
            continue
        spans = [found.span(1) for form in _FORMS for found in form.finditer(line)]
        for mention in _MENTIONED.finditer(line):
            inside = [span for span in spans if span[0] <= mention.end() <= span[1]]
            assert inside, (
                f"where does the command end? Put it between backticks, or at the end of its line: {line}"
            )
        yield from dict.fromkeys(line[start:end] for start, end in spans)


def found_in_json(value: Any) -> Iterator[str]:
    """The commands that a JSON document suggests: those of its remedies, and those in its messages."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _IN_JSON and isinstance(inner, str):
                yield inner
            elif name in ("remedies", "error", "findings") or isinstance(inner, (dict, list)):
                yield from found_in_json(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from found_in_json(inner)


class _Known(NamedTuple):
    """The run that a command is about."""

    status: str = ""
    held: bool = False
    nodes: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    """Node -> what decides about what can be done with it."""


def try_all(out: str, err: str, words: tuple[str, ...]) -> None:
    """Run every command that was suggested, unless one like it was run before."""
    commands = list(found_in(err)) if "--json" in words else [*found_in(out), *found_in(err)]
    if "--json" in words:
        commands += [command for line in _documents(out) for command in found_in_json(line)]
    for command in dict.fromkeys(commands):
        _try(command, words)


def _documents(out: str) -> list[Any]:
    try:
        return [json.loads(out)]
    except ValueError:
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def _try(command: str, printed_by: tuple[str, ...]) -> None:
    program, verb, *rest = shlex.split(command)
    assert program == "holdfast"
    words = [verb, *(_filled(verb, word) for word in rest)]
    if any(_UNKNOWN.search(word) or word == "FILE.py" for word in words):
        return
    known = _run_of(words)
    if known is None or known.held:
        return
    form = _form(words, known)
    if form in _tried:
        return
    _tried.add(form)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        try:
            _copy(Path.cwd(), copy)
        except (sqlite3.Error, OSError):
            return  # a store that a test has damaged
        here = str(Path.cwd())
        asked = [word.replace(here, str(copy)) for word in words]
        asked += ["--until-idle"] if verb == "worker" and "--until-idle" not in words else []
        code, said = _server().ask(asked, copy)
    too_long = code is None and verb in _EXECUTES
    assert too_long or code in _WORKS, (
        f"`holdfast {shlex.join(printed_by)}` suggests `{command}`, which ends with {code}:\n{said}"
    )


def _filled(verb: str, word: str) -> str:
    if word == "FILE.py" and verb != "run":  # a run may need an input, which only the user knows
        files = [file.name for file in Path.cwd().glob("*.py")]
        return files[0] if len(files) == 1 else word
    if word.startswith("{"):  # a value inside an object is JSON
        word = _INSIDE.sub(lambda found: _FILLED_INSIDE[found[0]], word)
    return _FILLED.get(word, word)


def _form(words: list[str], known: _Known) -> tuple[Any, ...]:
    """The command without what is different in every test: verb and options, the kinds of its other words, and the run."""
    kinds = (_kind(word, known) for word in words[1:])
    return (words[0], *kinds, known.status, tuple(sorted(set(known.nodes.values()))))


def _kind(word: str, known: _Known) -> Any:
    if word.startswith("--"):
        return word
    if word in known.nodes:
        return known.nodes[word]
    return "file" if ".py" in word else "json" if word[:1] in "{[" else "place" if "@" in word else "word"


def _run_of(words: list[str]) -> _Known | None:
    """The run that a command names, or nothing in particular; None: its store cannot be copied, or read."""
    store = next((value for name, value in pairwise(words) if name == "--store"), None)
    url = settings.resolve({"store": store}).store
    path = urls.sqlite_path(url)
    if path is None or not os.path.abspath(path).startswith(str(Path.cwd())):
        return None
    if not os.path.exists(path):
        return _Known() if words[0] in ("run", "start") else None
    try:
        opened = urls.open_store(url)
    except HoldfastError:
        return None
    try:
        for word in words[1:]:
            try:
                row = opened.run(word.partition("@")[0])
            except HoldfastError:
                continue
            state = history.load(opened, row.run_id, row=row)
            nodes = {
                name: (node.status, node.routed, bool(node.question)) for name, node in state.nodes.items()
            }
            return _Known(row.status, row.held, nodes)
    except HoldfastError:
        return None
    finally:
        opened.close()
    return _Known()


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder; a database as SQLite copies it, with what is still in its write-ahead log."""
    ignored = shutil.ignore_patterns("*-wal", "*-shm", "__pycache__", "*.db")
    shutil.copytree(folder, to, ignore=ignored, symlinks=True)
    for file in folder.rglob("*.db"):
        with (
            sqlite3.connect(f"file:{file}?mode=ro", uri=True) as original,
            sqlite3.connect(to / file.relative_to(folder)) as copied,
        ):
            original.backup(copied)
        original.close()
        copied.close()


class _Server:
    """The process that runs commands in children of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("suggestion_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, words: list[str], folder: Path) -> tuple[int | None, str]:
        """How a command ended (None: not within its time), and what it printed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = {
            "words": words,
            "folder": str(folder),
            "environment": dict(os.environ),
            "seconds": _SECONDS if words[0] in _EXECUTES else _PATIENCE_S,
        }
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        return answer["code"], answer["said"]

    def close(self) -> None:
        self._process.communicate()


_servers: list[_Server] = []


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server())
    return _servers[0]
