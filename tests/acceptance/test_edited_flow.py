"""A flow file that was edited and is run at once is what it is now, whatever Python has kept of it."""

import os
import sys

import pytest

import forked

FLOW = """
import holdfast as hf
from holdfast import END, START, Graph

graph = Graph("edited", dict)

@graph.node(OPTIONS)
def NAME(state):
    return {"by": "NAME"}

flow = graph.chain(START, "NAME", END).compile()
"""


@pytest.mark.parametrize("options", ["", 'executor="process"'])
def test_a_flow_file_of_the_same_size_and_second_is_read_again(tmp_path, options):
    file = tmp_path / "work.py"
    written = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for name in ("one", "two"):
        file.write_text(FLOW.replace("NAME", name).replace("OPTIONS", options), "utf-8")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        command = [sys.executable, "-m", "holdfast.cli", "run", "work.py", "--run-id", f"r-{name}", "--json"]
        done = forked.run(
            command, cwd=tmp_path, env=written, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert f'"{name}"' in done.stdout
