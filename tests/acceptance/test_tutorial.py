"""The tutorial does what it says: its files are written into an empty folder, and its commands run there, in their order.

The comment after a command is what it prints; `…` stands for anything. A command that goes on (a run, a worker, the server) is
followed until it has printed that, and is killed where the page kills it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import forked

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
INSTALLATION, *SCRIPTS = [text for language, text in BLOCKS if language == "sh"]
FILES = {text.split("\n", 1)[0].removeprefix("# "): text for language, text in BLOCKS if language == "python"}
GOES_ON = ("holdfast run", "holdfast worker", "holdfast serve")
PROGRAMS = {"holdfast": [sys.executable, "-m", "holdfast.cli"], "python": [sys.executable]}


class Terminal:
    """The folder of the tutorial, and what was started in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST"))
        }
        self._environment = kept | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
        }
        self.going: dict[str, subprocess.Popen[str]] = {}
        """Command -> its process, if it goes on."""

    def type(self, command: str, told: str) -> None:
        """Run a command, and wait until it has printed what the page says."""
        first, *rest = shlex.split(command)
        if first == "pkill":
            self.kill(rest[-1])
            return
        if " serve " in command:
            rest += ["--port", "0"]  # another test may listen at the usual one
        process = forked.Popen(
            [*PROGRAMS.get(first, [first]), *rest],
            cwd=self._folder,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        told = told.replace("8765", "…")
        pattern = ".*".join(re.escape(part.strip()).replace(r"\ ", r"\s+") for part in told.split("…"))
        if not command.startswith(GOES_ON):
            printed, _ = process.communicate(timeout=100)
            assert re.search(pattern, printed, re.DOTALL), f"{command}\nprinted:\n{printed}\nand not: {told}"
            return
        self.going[command] = process
        printed = ""
        while not re.search(pattern, printed, re.DOTALL):
            line = process.stdout.readline()
            assert line, f"{command}\nprinted:\n{printed}\nand not: {told}"
            printed += line
        # Ctrl-C ends the server, as the page says: it would execute what a worker is to execute.
        if " serve " in command:
            process.send_signal(signal.SIGINT)
            del self.going[command]
            process.communicate(timeout=30)
            assert process.returncode == 0

    def kill(self, words: str) -> None:
        """Kill what `pkill -9 -f` would kill, of the processes of this terminal alone."""
        chosen = [command for command in self.going if words in command]
        assert chosen, f"{words!r} is in no command that goes on: {list(self.going)}"
        for command in chosen:
            process = self.going.pop(command)
            process.kill()
            assert process.wait(30) == -signal.SIGKILL, f"{command} had ended before it was killed"
            process.stdout.close()

    def leave(self) -> None:
        for process in self.going.values():
            process.kill()
            process.wait(30)
            process.stdout.close()


def test_the_installation_is_that_of_a_clone() -> None:
    assert 'pip install "$HOME/holdfast[server]" pytest' in INSTALLATION


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    lines = [line for script in SCRIPTS for line in script.splitlines()]
    terminal = Terminal(tmp_path)
    try:
        for line in lines:
            command, _, told = line.partition("    # ") if "    # " in line else line.partition("  # ")
            terminal.type(command.strip(), told.strip())
        sent = (tmp_path / "sent.txt").read_text("utf-8").splitlines()
    finally:
        terminal.leave()
    assert sent == [
        "This week: news of alpha, news of beta, news of gamma",
        "This week: news of delta, news of epsilon",
    ]
