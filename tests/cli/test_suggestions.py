"""Commands that are suggested can be pasted: they name the file, the store, the place and the options that they need."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import suggestions
from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit

WORK = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

@graph.node
def first(state):
    return {"n": 1}

@graph.node
def second(state):
    raise ValueError("no luck")

flow = graph.chain(START, first, second, END).compile()
"""
LONGER = WORK.replace("second, END", "second, 'more', END").replace(
    "flow =", "graph.node(name='more')(lambda state: {})\nflow ="
)
ROUTED = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

@graph.node
def first(state):
    return {"n": 1}

def choose(state):
    return {}["nothing"]

flow = graph.edge(START, first).branch(first, choose, [END]).compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, work=WORK)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def suggested(text: str, verb: str) -> list[str]:
    return [command for command in suggestions.found_in(text) if command.split()[1] == verb]


def test_a_run_remembers_the_file_that_its_flow_was_loaded_from(cli: Cli, place: Path) -> None:
    cli("run", "work.py:flow", "--run-id", "r")
    cli("start", "work.py", "--run-id", "s")
    assert suggested(cli("show", "r").out, "resume") == ["holdfast resume r work.py:flow"]
    assert suggested(cli("show", "s").out, "resume") == ["holdfast resume s work.py"]
    for command in ("recover", "runs"):
        assert suggested(cli(command).out, "resume") == ["holdfast resume s work.py"]
    for command in ("recover", "show", "doctor"):
        told = cli(command, *(["s"] if command == "show" else [])).out
        assert suggested(told, "worker") == ["holdfast worker work.py"]


def test_the_file_is_named_as_it_is_found_from_the_folder_of_the_command(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "work.py", "--run-id", "r")
    (place / "inside").mkdir()
    monkeypatch.chdir(place / "inside")
    shown = cli("show", "r", "--store", str(place / ".holdfast/runs.db")).out
    assert suggested(shown, "resume")[0].startswith(f"holdfast resume r {place / 'work.py'} --store ")


def test_a_file_that_is_not_here_is_a_placeholder_and_a_file_that_the_project_lists_is_left_out(
    cli: Cli, place: Path
) -> None:
    cli("run", "work.py", "--run-id", "r")
    (place / "other.py").write_text(WORK.replace('"work"', '"other"'), "utf-8")
    for listed, resumes in (("work.py", "resume r"), ("other.py", "resume r work.py")):
        (place / "pyproject.toml").write_text(f'[tool.holdfast]\nflows = ["{listed}"]\n', "utf-8")
        assert suggested(cli("show", "r").out, "resume") == [f"holdfast {resumes}"]
    (place / "pyproject.toml").write_text("", "utf-8")
    (place / "work.py").rename(place / "moved.py")
    assert suggested(cli("show", "r").out, "resume") == ["holdfast resume r FILE.py"]


def test_the_file_is_text_and_is_never_imported_because_of_that(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = caller(capsys, tries_suggestions=False)
    cli("run", "work.py", "--run-id", "r")
    (place / "work.py").write_text("raise SystemExit('imported')", "utf-8")
    for words in (
        ("show", "r"),
        ("runs",),
        ("doctor",),
        ("fork", "r"),
        ("resume", "r"),
        ("checkpoints", "r"),
    ):
        ended = cli(*words)
        assert "imported" not in ended.out + ended.err


def test_a_router_that_failed_is_not_to_be_skipped(cli: Cli, place: Path) -> None:
    (place / "work.py").write_text(ROUTED, "utf-8")
    failed = cli("run", "work.py", "--run-id", "r")
    assert suggested(failed.err, "skip") == []
    assert suggested(failed.err, "resume") == ["holdfast resume r work.py"]
    (place / "work.py").write_text(ROUTED.replace('{}["nothing"]', "END"), "utf-8")
    assert cli("resume", "r", "work.py").code == Exit.OK


def test_a_fork_without_a_file_is_suggested_with_its_place_and_its_edit(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r")
    refused = cli("fork", "r@3", "--edit", '{"n": "two words"}', "--run-id", "f")
    (again,) = suggested(refused.err, "fork")
    assert shlex.split(again)[1:] == [
        "fork",
        "r@3",
        "--edit",
        '{"n": "two words"}',
        "--run-id",
        "f",
        "work.py",
    ]
    assert cli(*shlex.split(again)[1:]).code == Exit.OK


def test_a_fork_whose_flow_has_changed_is_resumed_with_the_option_that_it_needs(
    cli: Cli, place: Path
) -> None:
    cli("run", "work.py", "--run-id", "r")
    (place / "work.py").write_text(LONGER.replace('raise ValueError("no luck")', "return {}"), "utf-8")
    (resumes,) = suggested(cli("fork", "r", "work.py").out, "resume")
    assert resumes.endswith(" work.py --on-change compatible")
    assert cli(*shlex.split(resumes)[1:]).code == Exit.OK


def test_a_password_is_left_out_of_a_command_that_is_typed_again(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r")
    from holdfast.cli import program
    from holdfast.cli.suggestions import typed_again

    program.note_typed(["fork", "r", "--store=postgresql://me:secret@host/db"])
    assert typed_again("work.py") == "holdfast fork r --store=postgresql://me@host/db work.py"
    program.note_typed(["fork", "r", "--store", "postgresql://me:secret@host/db"])
    assert typed_again("work.py") == "holdfast fork r --store postgresql://me@host/db work.py"
    assert program.spell("`holdfast runs`") == "`holdfast runs --store postgresql://me@host/db`"


def test_a_command_for_the_machine_of_a_server_does_not_name_the_address_of_the_server() -> None:
    from holdfast.cli import program

    program.note_typed(["show", "r", "--store", "http://127.0.0.1:8765"])
    assert program.spell("`holdfast runs`").endswith("holdfast runs --store http://127.0.0.1:8765`")
    assert program.spell("`holdfast token create NAME`").endswith("holdfast token create NAME`")
    assert program.spell("that `holdfast serve` runs there").endswith("holdfast serve` runs there")


# --- the harness --------------------------------------------------------------------------------------


def test_the_harness_finds_every_form_of_a_suggestion() -> None:
    text = (
        "  $ holdfast resume r work.py   # resume it\n"
        "  resume it with: holdfast resume r work.py --force\n"
        "`holdfast runs` lists the runs, and `holdfast show r` says why.\n"
        "Try 'holdfast run -h' for help.\n"
        "  holdfast resume s\n"
    )
    assert list(suggestions.found_in(text)) == [
        "holdfast resume r work.py",
        "holdfast resume r work.py --force",
        "holdfast runs",
        "holdfast show r",
        "holdfast run -h",
        "holdfast resume s",
    ]
    with pytest.raises(AssertionError, match="where does the command end"):
        list(suggestions.found_in("use holdfast resume r to continue"))


def test_the_harness_fails_for_a_suggestion_that_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "work.py", "--run-id", "r")
    monkeypatch.setattr(suggestions, "_tried", set())
    suggestions.try_all("  $ holdfast skip r second work.py", "", ("show", "r"))
    with pytest.raises(AssertionError, match=r"suggests `holdfast skip r first work.py`, which ends with 4"):
        suggestions.try_all("  $ holdfast skip r first work.py", "", ("show", "r"))
    assert cli("show", "r", "--json").json["status"] == "failed"
