"""What a fresh clone promises beside its code: the commands, the papers, and nothing of the machine it was written on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from holdfast.storage.contract import RunStatus

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("demo", "test", "test-all", "check", "bench", "format", "clean")

# Written so that these lines do not match themselves.
TRACES = {
    "a path of the machine it was written on": re.compile(
        r"(?<![\w.$})-])/(?:work|root)/|(?<![\w.$})-])/(?:home|Users)/(?!you/|me/|user/|runner/)\w+/|/opt/(?:pypi|wheels)"
    ),
    "a package registry": re.compile(
        r"\bpypi\.(?:org|python\.org)|pythonhosted\.(?:org|com)|\bregistry\.npmjs\.|\bartifactory\b|\bjfrog\.io"
        r"|\b(?:ghcr|quay|gcr)\.io\b|\bdocker\.io\b|--(?:extra-)?index-url",
        re.IGNORECASE,
    ),
}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def files(root: Path) -> list[Path]:
    """What git keeps, and what it would keep if it were added now."""
    listing = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in names.split("\0") if name and (root / name).is_file()]


def traces(root: Path) -> Iterator[str]:
    for file in files(root):
        text = file.read_text(encoding="utf-8", errors="replace")
        for what, pattern in TRACES.items():
            for found in pattern.finditer(text):
                number = text.count("\n", 0, found.start()) + 1
                yield f"{file.relative_to(root)}:{number}: {what}: {found[0]}"


def test_every_file_that_make_test_starts_with_exists() -> None:
    listed = re.search(r"^LONG = \((.*?)^\)", read("tests/conftest.py"), re.DOTALL | re.MULTILINE)
    assert listed is not None
    names = re.findall(r'"(.+?)"', listed[1])
    there = {"/".join(file.parts[-2:]) for file in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in names if name not in there] == []


def test_ci_runs_the_command_that_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert commands[-1] == "make test"
    assert os.access(script, os.X_OK)


def test_make_alone_lists_every_target_with_a_line() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    listed = subprocess.run(["make"], cwd=ROOT, env=plain, check=True, capture_output=True, text=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    assert set(TARGETS) <= {target for _, target, _ in lines}
    assert all(command == "make" and text for command, _, text in lines)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_never_taken_for_a_file(target: str) -> None:
    phony = next(line for line in read("Makefile").splitlines() if line.startswith(".PHONY:"))
    assert target in phony.split()


def test_the_licence_is_apache_2_and_whole() -> None:
    licence = read("LICENSE")
    assert re.match(r"\s*Apache License\s+Version 2\.0, January 2004\s", licence)
    assert all(f"\n   {clause}. " in licence for clause in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in licence
    assert tomllib.loads(read("pyproject.toml"))["project"]["license"] == "Apache-2.0"


def test_the_changelog_tells_of_this_version() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    headings = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert headings
    assert headings[0] in {"Unreleased", version}


def test_the_extra_all_has_every_extra_of_users() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"holdfast[{','.join(sorted(set(extras) - {'all', 'dev', 'night'}))}]"


def test_users_get_our_types() -> None:
    assert (ROOT / "src/holdfast/py.typed").is_file()


def test_the_glossary_names_every_status_of_a_run() -> None:
    glossary = read("docs/concepts.md")
    assert [status for status in get_args(RunStatus) if f"`{status}`" not in glossary] == []


VAGUE = re.compile(
    r"\b(so many (?!as\b|that\b)|those of them that|what came of|the how-manieth|(read|made|begin|begins|opened|computed) anew)\b"
)
"""Phrases that stand for a noun or a number: the sentence says more with the noun or the number itself."""


def test_no_sentence_has_a_phrase_in_place_of_a_noun() -> None:
    texts = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.js"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in texts
        for match in VAGUE.finditer(file.read_text("utf-8"))
    }
    assert found == set()


def test_every_rule_that_ruff_leaves_out_has_its_reason() -> None:
    lint = read("pyproject.toml").partition("[tool.ruff.lint]")[2]
    left_out = re.findall(r'^ +"[A-Z]+\d*",.*$', lint, re.MULTILINE)
    assert left_out
    assert [line for line in left_out if not re.search(r",\s+# \S", line)] == []


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    found = list(traces(ROOT))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "trace",
    [
        "store = '/w~ork/main/runs.db'",
        "see /r~oot/.cache",
        "cd /h~ome/ada/holdfast",
        "https://pypi~.org/simple",
        "files.python~hosted.org",
        "pip install --extra-~index-url x",
    ],
)
def test_a_trace_of_a_machine_is_found(trace: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "notes.md").write_text("# Notes\n" + trace.replace("~", "") + "\n", encoding="utf-8")
    (found,) = traces(tmp_path)
    assert found.startswith("notes.md:2: ")


@pytest.mark.parametrize(
    "text", ["docs/work/1", "https://example.com/work/1", "$HOME/work/x", "a /workshop/", "/home/you/x"]
)
def test_what_only_looks_like_a_trace_is_left_alone(text: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "notes.md").write_text(text, encoding="utf-8")
    assert list(traces(tmp_path)) == []


# --- Python ------------------------------------------------------------------------------------------

HANGS = {
    "at 100 % of a core": "def test_it():\n    while True: pass\n",
    "in a lock": "import threading\ndef test_it():\n    threading.Event().wait()\n",
    "on an event loop": "import asyncio\nasync def hang():\n    await asyncio.Event().wait()\n"
    "def test_it():\n    asyncio.run(hang())\n",
    "where no signal gets through": "from signal import *\ndef test_it():\n    pthread_sigmask(SIG_BLOCK, {SIGALRM})\n"
    "    __import__('threading').Event().wait()\n",
}


@pytest.mark.parametrize("text", HANGS.values(), ids=HANGS)
def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads(text: str, tmp_path: Path) -> None:
    """Failed by a signal; where that does not get through, its process is ended later."""
    beside = "import threading\ndef wait_beside(): threading.Event().wait()\n"
    beside += "threading.Thread(target=wait_beside, daemon=True).start()\n"
    (tmp_path / "test_hangs.py").write_text(beside + text, encoding="utf-8")
    limits = ["-o", "timeout=0.5", "-o", "faulthandler_timeout=2"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), *limits, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    assert "Timeout" in told
    assert "wait_beside" in told
    assert "test_it" in told


def test_every_python_that_is_promised_is_listed() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    listed = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert listed == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={listed[0]}"
    assert f"VERSIONS := {' '.join(listed)}" in read("Makefile")


def test_a_platform_that_is_not_supported_says_what_holdfast_needs() -> None:
    ask = "import sys; sys.modules['fcntl'] = None\nimport holdfast"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: Holdfast needs a POSIX system")
    assert "WSL" in done.stderr
