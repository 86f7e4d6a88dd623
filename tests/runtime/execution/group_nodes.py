"""Nodes that start further processes; they run in a process of their own, which imports this file. Each process writes to the
pipe that the state names, and keeps it open: a test that reads the pipe to its end knows that all of them are dead.
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
    """Start a child and a grandchild that ignore SIGTERM and SIGHUP, and then loop for ever."""
    subprocess.Popen([sys.executable, state.program, state.pipe, "1"])
    pipe = os.open(state.pipe, os.O_WRONLY)
    os.write(pipe, b".")
    while True:
        pass


def leaves_a_family(state: Family) -> dict[str, Any]:
    """Start a child and a grandchild that ignore SIGTERM and SIGHUP, and return while they still run."""
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
