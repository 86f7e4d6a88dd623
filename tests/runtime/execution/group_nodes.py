"""Nodes that start further processes, in a process of their own that imports this file. Each of them says so into the pipe that
the state names, and keeps it open: whoever reads it to its end knows that all of them are dead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

_STUBBORN = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    "deep = int(sys.argv[2])\n"
    "if deep: __import__('subprocess').Popen([sys.executable, sys.argv[0], sys.argv[1], str(deep - 1)])\n"
    "pipe = os.open(sys.argv[1], os.O_WRONLY); os.write(pipe, b'.')\n"
    "while True: signal.pause()\n"
)


@dataclass
class Family:
    pipe: str = ""
    program: str = ""
    done: bool = False


def write_program(path: str) -> str:
    with open(path, "w") as file:
        file.write(_STUBBORN)
    return path


def starts_a_family(state: Family) -> None:
    """A child and a grandchild that hear no polite word, and this process itself, which does nothing more."""
    subprocess.Popen([sys.executable, state.program, state.pipe, "1"])
    pipe = os.open(state.pipe, os.O_WRONLY)
    os.write(pipe, b".")
    while True:
        pass


def leaves_a_family(state: Family) -> dict[str, Any]:
    """The same, and it is done before they are."""
    subprocess.Popen([sys.executable, state.program, state.pipe, "1"])
    pipe = os.open(state.pipe, os.O_WRONLY)
    os.write(pipe, b".")
    os.close(pipe)
    return {"done": True}


def dies_before_its_family(state: Family) -> None:
    subprocess.Popen([sys.executable, state.program, state.pipe, "1"])
    pipe = os.open(state.pipe, os.O_WRONLY)
    os.write(pipe, b".")
    os._exit(3)
