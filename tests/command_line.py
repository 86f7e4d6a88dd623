"""Call the command line from a test: in the test's process and folder, without the settings of the developer's machine."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import suggestions
from holdfast.cli import flow_files
from holdfast.cli.app import app


class Ended(NamedTuple):
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ended]


def furnish(folder: Path, monkeypatch: pytest.MonkeyPatch, **flows: str) -> Path:
    """Write these flow files into the folder (`work` becomes work.py), make it the working directory, and put the `holdfast`
    under test on the PATH.
    """
    for name, text in flows.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    (folder / "pyproject.toml").write_text("", "utf-8")
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(flow_files, "_loaded", {})
    return folder


def caller(capsys: pytest.CaptureFixture[str], *, tries_suggestions: bool = True) -> Cli:
    """Return a function that calls a command in this process, as if it were a new process."""

    def call(*words: str) -> Ended:
        capsys.readouterr()
        _forget_modules()
        with pytest.raises(SystemExit) as left:
            app(list(words), prog_name="holdfast")
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err or "--debug" in words
        if tries_suggestions and words and "--help" not in words:
            suggestions.try_all(seen.out, seen.err, words)
        return Ended(left.value.code if isinstance(left.value.code, int) else 0, seen.out, seen.err)

    return call


def _forget_modules() -> None:
    """Unload all modules that earlier commands and earlier tests have loaded from test folders."""
    flow_files._loaded.clear()
    folder = str(Path.cwd().parent)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
