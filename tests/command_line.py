"""The command line as tests call it: in this process, in a folder of its own, without the settings of whoever runs the tests."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli import flow_files
from holdfast.cli.commands import app


class Ended(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ended]


def furnish(folder: Path, monkeypatch: pytest.MonkeyPatch, **flows: str) -> Path:
    """Be in a folder with these files of flows (`work` becomes work.py), where the shell finds this very `holdfast`."""
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


def caller(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls a command as if it were a process of its own."""

    def call(*words: str) -> Ended:
        capsys.readouterr()
        _forget_modules()
        with pytest.raises(SystemExit) as left:
            app(list(words), prog_name="holdfast")
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return Ended(left.value.code if isinstance(left.value.code, int) else 0, seen.out, seen.err)

    return call


def _forget_modules() -> None:
    """Nothing of what an earlier command has loaded from this folder, or an earlier test from its own, is there."""
    flow_files._loaded.clear()
    folder = str(Path.cwd().parent)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
