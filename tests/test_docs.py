"""What the documents say runs: every Python snippet, every command, every link."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_snippet_runs(document: Path, tmp_path: Path) -> None:
    snippets = blocks(document, "python")
    if not snippets:
        return
    program = tmp_path / "snippets.py"
    program.write_text("\n".join(snippets), "utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    if document.name == "README.md":
        assert "completed ['try 1', 'try 2']" in done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_make_target_and_command_that_is_named_exists() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "--help"], capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        shell = "\n".join(blocks(document, "sh"))
        for target in re.findall(r"^make ([a-z-]+)", shell, re.MULTILINE):
            assert target in targets, f"{document.name}: make {target}"
        for command in re.findall(r"^holdfast ([a-z-]+)", shell, re.MULTILINE):
            assert re.search(rf"\b{command}\b", listed), f"{document.name}: holdfast {command}"


def test_the_schema_of_the_events_is_what_the_code_says() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "schema.py"))
    assert made["FILE"].read_text("utf-8") == made["schema"](), "run `python docs/schema.py`"
