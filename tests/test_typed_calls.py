"""Type checkers know every option of every verb, although the functions take them as `**options`: mypy accepts the calls that are
right, and names what is wrong with the others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

RIGHT = """
hf.resume("r")
hf.resume("r", restart_at="a", confirm=["a"], store="runs.db")
hf.resume("r", checkpoint="12", rename={"a": "b"}, budget=hf.Budget(usd=5), execute=False, id="once")
hf.resume("r", edit=lambda state: state, validate=print, on_change="compatible")
hf.retry("r", "node", fresh=True, flows=[])
hf.skip("r", "node", {"n": 1}, expects="digest")
hf.cancel("r", "why", by="ann")
hf.answer("r", "question", True, confidence=0.5, result=None)
connection.resume("r", restart_at="a", scope=["*"])
connection.fork("r", repeat={"a": "run"}, labels={"team": "red"}).upper()
client.resume("r", restart_at="a", wait=5)
client.start("flow", {"n": 1}, priority=3, begin_at=None)
"""
WRONG = {
    'hf.resume("r", restrat_at="a")': 'Unexpected keyword argument "restrat_at"',
    'hf.resume("r", on_change="maybe")': "on_change",
    'hf.resume("r", replay="yes")': "replay",
    "hf.resume(17)": 'incompatible type "int"',
    'hf.retry("r", confirm=17)': "confirm",
    'hf.cancel("r", execute=False)': 'Unexpected keyword argument "execute"',
    'hf.answer("r", "question")': 'Missing positional argument "value"',
    'hf.fork("r", repeat="never")': "repeat",
    'connection.resume("r", forse=True)': 'Unexpected keyword argument "forse"',
    'client.resume("r", validate=print)': 'Unexpected keyword argument "validate"',
    'client.resume("r", edit=print)': "edit",
    'client.signal("r", "go", wait="long")': "wait",
}
HEAD = """import holdfast as hf

connection = hf.connect("runs.db")
client = hf.BlockingClient("http://127.0.0.1:1", "token")
"""


def test_mypy_accepts_right_calls_and_names_what_is_wrong_with_others(tmp_path: Path) -> None:
    program = tmp_path / "calls.py"
    program.write_text(HEAD + RIGHT.lstrip() + "\n".join(WRONG) + "\n", encoding="utf-8")
    cache = Path(__file__).resolve().parent.parent / ".mypy_cache"
    said, errors, _ = api.run(["--strict", "--no-error-summary", f"--cache-dir={cache}", str(program)])
    assert not errors, errors
    lines = program.read_text("utf-8").splitlines()
    found = {
        lines[int(number) - 1]: text for number, text in re.findall(r"calls\.py:(\d+): error: (.+)", said)
    }
    assert [call for call in RIGHT.splitlines() if call in found] == [], said
    assert {call for call, wanted in WRONG.items() if wanted not in found.get(call, "")} == set(), said
