"""What the documents say runs: every Python snippet, every command, every link, and what a snippet is said to print.

The snippets of a document are one program, from top to bottom. One that begins with the comment `# name.py` is a file of its
own, and the commands `python name.py` of the document run it, in their order. The comment behind a `print`, or behind such a
command, is what comes out; `…` stands for anything, and what follows a colon is an explanation. A snippet that is marked
`python theirs` is a program of another system: it must parse, and is not run.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench import house

import holdfast as hf
from holdfast import errors
from holdfast.core import events
from holdfast.core.definition import NodeOptions
from holdfast.reading import views
from holdfast.runtime.settings import Settings
from test_architecture import ROOMS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
REFERENCE = (ROOT / "docs" / "api.md").read_text("utf-8")
FILE = re.compile(r"# (\w+\.py)\n")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
ENVIRONMENT |= {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"}


def blocks(document: Path, language: str) -> list[str]:
    return fenced(document.read_text("utf-8"), language)


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def ran(file: str, folder: Path) -> tuple[int, str, str]:
    """How a program ended, and what it told; one that was killed says so, as in a shell."""
    done = subprocess.run(
        [sys.executable, file],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    killed = "Killed\n" if done.returncode == -signal.SIGKILL else ""
    return done.returncode, done.stdout + killed, done.stderr


def says(told: str, output: str) -> bool:
    """Whether the parts of what a comment tells come out, one behind the other."""
    parts = (re.escape(part.strip()).replace(r"\ ", r"\s+") for part in told.split("…"))
    return re.search(".*".join(parts), output, re.DOTALL) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_snippet_runs_and_prints_what_it_says(document: Path, tmp_path: Path) -> None:
    snippets = [snippet for snippet in blocks(document, "python") if not FILE.match(snippet)]
    if not snippets:
        return
    (tmp_path / "snippets.py").write_text("\n".join(snippets), "utf-8")
    code, output, trouble = ran("snippets.py", tmp_path)
    assert code == 0, trouble
    promised = re.findall(r"^ *print\(.*\) +# (.+)$", "\n".join(snippets), re.MULTILINE)
    wrong = [told for told in promised if not (says(told, output) or says(told.partition(": ")[0], output))]
    assert not wrong, f"{document.name} tells {wrong}; what came out:\n{output}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_snippet_that_is_a_file_does_what_its_commands_say(document: Path, tmp_path: Path) -> None:
    if document.name in ("recipes.md", "tutorial.md"):
        return  # tests/acceptance/test_recipes.py and test_tutorial.py do what they say
    files = {found[1]: snippet for snippet in blocks(document, "python") if (found := FILE.match(snippet))}
    for name, snippet in files.items():
        (tmp_path / name).write_text(snippet, "utf-8")
    commands = re.findall(r"^python (\w+\.py) +# (.+)$", "\n".join(blocks(document, "sh")), re.MULTILINE)
    assert {name for name, _ in commands} == set(files)
    for name, told in commands:
        code, output, trouble = ran(name, tmp_path)
        assert code in (0, -signal.SIGKILL), trouble
        assert says(told, output), f"{document.name}: python {name} tells {told!r}, this came out:\n{output}"


def anchors(document: Path) -> set[str]:
    """What a link into a document may name: its headings, as they are spelt there."""
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text("utf-8")):
        if "://" not in target:
            place = (document.parent / target) if target else document
            assert place.exists(), f"{document.name} links to {target}"
            assert not anchor or anchor in anchors(place), f"{document.name} links to {target}#{anchor}"


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


def test_the_reference_names_everything_that_is_public() -> None:
    told = set(re.findall(r"\w+", REFERENCE))
    assert [name for name in hf.__all__ if name not in told] == []


def test_the_reference_names_every_option() -> None:
    named = set(re.findall(r"`(\w+)`", REFERENCE)) | set(re.findall(r"(\w+)=", REFERENCE))
    of_nodes = {
        name.removesuffix("_s") for name in NodeOptions.__struct_fields__ if name not in ("question", "calls")
    }
    assert [name for name in (*Settings.__struct_fields__, *sorted(of_nodes)) if name not in named] == []
    for name in Settings.__struct_fields__:
        assert f"`HOLDFAST_{name.upper()}`" in REFERENCE


@pytest.mark.parametrize("kind", [hf.Context, hf.BlockingContext, hf.Engine])
def test_the_reference_names_every_method(kind: type) -> None:
    methods = [name for name in dir(kind) if not name.startswith("_")]
    assert [name for name in methods if not re.search(rf"\b{name}\b", REFERENCE)] == []


@pytest.mark.parametrize("kind", [hf.Run, views.NodeView])
def test_the_reference_has_a_table_of_every_field(kind: type) -> None:
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.+?) \|", REFERENCE, re.MULTILINE))))
    assert [name for name in kind.__struct_fields__ if name not in named] == []


def test_the_reference_names_every_event_and_every_exception() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = [kind.__name__ for kind in kinds if issubclass(kind, errors.HoldfastError)][1:]
    listed = set(re.findall(r"`(\w+)`", REFERENCE))
    assert raised[0] == "GraphError"
    assert [name for name in (*events.KINDS, *raised) if name not in listed] == []


def test_the_schema_of_the_events_is_what_the_code_says() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "schema.py"))
    assert made["FILE"].read_text("utf-8") == made["schema"](), "run `python docs/schema.py`"


def test_the_options_of_the_verbs_are_what_the_records_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "options.py"))
    document = made["FILE"].read_text("utf-8")
    assert made["with_table"](document) == document, "run `python docs/options.py`"


# --- coming from another system ----------------------------------------------------------------------------

SYSTEMS = ("LangGraph", "DBOS", "Temporal", "Restate", "Prefect", "Burr")
PROGRAM_LINES_MAX = 40


def lines_of_code(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_reader_from_another_system_finds_its_words_both_programs_and_what_to_leave_there(
    system: str,
) -> None:
    text = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    part = text.partition(f"\n## From {system}\n")[2].partition("\n## ")[0]
    (words,) = re.findall(rf"^\| {system} \| Holdfast \|\n\|---\|---\|\n((?:\|.*\|\n)+)", part, re.MULTILINE)
    assert len(words.splitlines()) >= 10
    (theirs,) = fenced(part, "python theirs")
    ast.parse(theirs)
    (ours,) = fenced(part, "python")
    assert FILE.match(ours), "a program of Holdfast is a file, so that it is run"
    assert max(lines_of_code(theirs), lines_of_code(ours)) <= PROGRAM_LINES_MAX
    assert f"\n### Better left with {system}\n" in part


# --- the map of the source --------------------------------------------------------------------------------

SOURCE = ROOT / "src" / "holdfast"
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")
READING_ORDER = (
    "core/events", "core/fold", "core/decide", "runtime/runner", "runtime/journal", "runtime/perform", "runtime/outcomes",
    "storage/contract", "storage/writer",
)  # fmt: skip
PICTURES = {"step": "The path of one step", "resume": "The path of one resume"}


def is_module(name: str) -> bool:
    return (SOURCE / f"{name}.py").exists() or (SOURCE / name / "__init__.py").exists()


def on_the_map() -> dict[str, set[str]]:
    """Room, or folder of a room -> who may import it, as the table of the design says."""
    rows = re.findall(r"^\| `([\w/]+)` \| .+ \| (.*?) ?\|$", DESIGN, re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", importers)) for room, importers in rows}


def section(heading: str) -> str:
    return DESIGN.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def drawn(heading: str) -> set[str]:
    """The modules in the picture of a section: the first word of each of its lines."""
    (picture,) = re.findall(r"^```text\n(.*?)^```", section(heading), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^[│├└─ ]*(\w+/[\w/]+)  ", picture, re.MULTILINE))


def test_every_package_is_on_the_map_and_nothing_else() -> None:
    packages = {file.parent.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*/__init__.py")}
    assert set(on_the_map()) == packages | {"errors"}


def test_the_map_says_who_may_import_a_room() -> None:
    there = {name for name in on_the_map() if "/" not in name}
    for room in there:
        allowed = {other for other in there if room in ROOMS[other]}
        assert on_the_map()[room] == allowed, f"{room} may be imported by {sorted(allowed)}"


@pytest.mark.parametrize("part", PICTURES)
def test_every_module_in_a_picture_is_on_the_path_that_it_draws(part: str) -> None:
    """Measured on the real engine, so a picture cannot fall behind the code."""
    measured = set(house.measure(ROOT, part)["named"])
    found = drawn(PICTURES[part])
    assert len(found) > 10
    assert [name for name in sorted(found) if not is_module(name)] == []
    assert found - measured == set(), f"not on the path of a {part}; it leads through {sorted(measured)}"
    assert {name.partition("/")[0] for name in measured} == {name.partition("/")[0] for name in found}


def test_the_reading_order_is_the_same_everywhere_and_leads_through_files_that_exist() -> None:
    told = " → ".join(f"`{name}`" for name in READING_ORDER)
    for document in ("CONTRIBUTING.md", "docs/design.md"):
        assert told in " ".join((ROOT / document).read_text("utf-8").split()), document
    assert all(map(is_module, READING_ORDER))


# --- recipes -----------------------------------------------------------------------------------------------

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
RECIPES = (
    "an event",
    "a command of `decide`",
    "a store",
    "a new form of a stored event",
    "a column, a table or another part of an append",
    "an option of a verb",
    "a verb",
    "an option of a node",
    "a CLI command",
    "an executor",
    "a kind of wait",
    "a condition on where a run goes",
    "a rule about visits",
    "a listener",
    "a view of runs",
    "a route of the server",
    "a screen of the web page",
)


def recipes() -> dict[str, list[tuple[str, str]]]:
    """What is added -> the places that its recipe names, as path and symbol."""
    found = re.findall(r"^\*\*Add (.+?)\.\*\*(.*?)(?=^\*\*|\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    place = re.compile(r"`((?:src|tests|docs|bench)/[\w./-]*)(?::(\w+(?:\.\w+)*))?`")
    return {what: place.findall(text) for what, text in found}


def symbols(file: Path) -> set[str]:
    """Everything that a file defines at its top or in a class: `Engine.run`, `TABLE`."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{node.name}.")
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    walk(ast.parse(file.read_text("utf-8")).body, "")
    return found


def test_there_is_a_recipe_for_everything_that_is_often_added() -> None:
    assert tuple(recipes()) == RECIPES
    assert all(len(places) >= 3 for places in recipes().values())


@pytest.mark.parametrize("what", RECIPES)
def test_every_place_of_a_recipe_exists(what: str) -> None:
    for path, symbol in recipes()[what]:
        assert (ROOT / path).exists(), f"{what}: there is no {path}"
        assert not symbol or symbol in symbols(ROOT / path), f"{what}: {path} has no {symbol}"
