"""Run pytest in a process of its own on a folder, with Holdfast's plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FLOW = """
import asyncio
import pytest
import holdfast as hf
from holdfast import END, START, Graph

sent = []

def flow(send=lambda: None):
    graph = Graph("flow", dict)
    @graph.node
    async def mail(state, ctx):
        send()
        await ctx.sleep(3600)
        return {"mailed": True}
    return graph.chain(START, "mail", END).compile()
"""


def pytest_on(tests: str, folder: Path, *options: str) -> tuple[int, str]:
    """Run these tests with the plugin, whether or not it is installed here. Return the exit code and the output."""
    (folder / "test_it.py").write_text(FLOW + tests, "utf-8")
    plugins = ("no:holdfast", "holdfast.testing.plugin", "no:cacheprovider", "no:asyncio", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", *(part for plugin in plugins for part in ("-p", plugin))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [*command, "--strict-markers", "-W", "error", "-q", *options, "test_it.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr
