"""How the command line starts: what needs no engine does not import it, and the catalogue says what the modules define.

What was imported is asked of a process of its own; how long that takes is measured by `make bench`.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from holdfast import cli
from holdfast.cli.app import DEFINED, app
from holdfast.cli.catalogue import BY_NAME, CATALOGUE, FAMILIES

DRIVER = """
import json, sys
from holdfast.cli import main
try:
    main()
finally:
    with open(sys.argv[0] + ".imported", "w") as file:
        json.dump(sorted(sys.modules), file)
"""
ENGINE = ("apsw", "asyncio", "rich", "zstandard", "holdfast.runtime", "holdfast.storage", "holdfast.server")
SERVER = (
    "holdfast.server",
    "starlette",
    "uvicorn",
    "httptools",
    "uvloop",
    "aiohttp",
    "http.client",
    "holdfast.storage.http",
)


class Started:
    """A `holdfast` that was called with these words, and has ended."""

    def __init__(self, folder: Path, *words: str) -> None:
        driver = folder / "holdfast"
        driver.write_text(DRIVER)
        self.done = subprocess.run(
            [sys.executable, str(driver), *words], cwd=folder, capture_output=True, text=True, check=False
        )
        imported = set(json.loads((folder / "holdfast.imported").read_text()))
        self.engine = [name for name in ENGINE if name in imported]
        self.commands = sorted(
            {entry.module for entry in CATALOGUE if f"holdfast.cli.{entry.module}" in imported}
        )


def commands() -> dict[str, Any]:
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


# --- what is imported --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--help",), 0, "Take care of a store:"),
        (("-h",), 0, "Take care of a store:"),
        ((), 2, "Take care of a store:"),
        (("--version",), 0, "holdfast "),
        (("nonsense",), 2, "No such command 'nonsense'."),
        (("statt",), 2, "Did you mean"),
        (("statt", "--json"), 2, "Did you mean"),
        (("--nonsense",), 2, "No such option: --nonsense"),
    ],
    ids=lambda given: " ".join(given) or "nothing" if isinstance(given, tuple) else None,
)
def test_what_calls_no_command_waits_for_no_engine(
    tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    started = Started(tmp_path, *words)
    assert started.done.returncode == code, started.done.stderr
    assert told in started.done.stdout + started.done.stderr
    assert started.engine == []
    assert started.commands == []


def test_a_program_that_uses_no_server_does_not_import_it() -> None:
    program = (
        "import sys, holdfast as hf; hf.Engine('memory://'); "
        f"print([name for name in {SERVER} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli"])
def test_the_command_is_also_a_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("holdfast ")


def test_importing_holdfast_exposes_only_public_names() -> None:
    program = (
        "import holdfast; hidden = [name for name in vars(holdfast) if not name.startswith('_')]; "
        "print(sorted({*hidden} - {*holdfast.__all__})); "
        "print(dir(holdfast) == sorted([*holdfast.__all__, '__version__']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['core', 'errors']\nTrue\n"  # packages, which Python binds when they are imported


def test_the_help_of_a_command_imports_that_command_and_no_other(tmp_path: Path) -> None:
    started = Started(tmp_path, "runs", "--help")
    assert started.done.returncode == 0, started.done.stderr
    assert "List runs, and show which of them crashed." in started.done.stdout
    assert started.commands == ["listing"]


def test_a_command_is_imported_when_it_is_called(tmp_path: Path) -> None:
    started = Started(tmp_path, "version", "--json")
    assert "holdfast" in json.loads(started.done.stdout), started.done.stderr
    assert started.commands == ["listing"]
    assert "asyncio" in started.engine  # so that what the other tests look for is the name it is imported by


def test_what_goes_wrong_inside_a_module_is_not_told_as_a_command_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import_module("holdfast.cli.care")
    monkeypatch.delitem(DEFINED, "doctor")
    with pytest.raises(KeyError, match="doctor"):
        app(["doctor"], prog_name="holdfast")


# --- the catalogue -----------------------------------------------------------------------------------


def test_the_catalogue_lists_what_the_modules_define_in_their_order() -> None:
    for module in pkgutil.iter_modules(cli.__path__):
        if module.name != "__main__":
            import_module(f"holdfast.cli.{module.name}")
    defined: dict[str, list[tuple[str, str]]] = {}
    for name, (family, call) in DEFINED.items():
        defined.setdefault(call.__module__.rpartition(".")[2], []).append((family, name))
    listed: dict[str, list[tuple[str, str]]] = {}
    for entry in CATALOGUE:
        listed.setdefault(entry.module, []).append((entry.family, entry.name))
    assert listed == defined


def test_the_catalogue_tells_of_a_command_what_its_docstring_begins_with() -> None:
    for name, command in commands().items():
        assert BY_NAME[name].summary == command.get_short_help_str(70), name
        assert command.help.startswith(BY_NAME[name].summary), name


def test_families_stand_together_in_the_catalogue() -> None:
    assert [name for names in FAMILIES.values() for name in names] == [entry.name for entry in CATALOGUE]
    assert len(BY_NAME) == len(CATALOGUE)


def test_help_lists_every_command_under_its_family(tmp_path: Path) -> None:
    heads: dict[str, list[str]] = {}
    for line in Started(tmp_path, "--help").done.stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heads[line.removesuffix(":")] = []
        elif line[:3].strip() and line.strip().partition("  ")[0] in BY_NAME:
            heads[list(heads)[-1]].append(line.strip().partition("  ")[0])
    assert {head: names for head, names in heads.items() if names} == FAMILIES
