"""Texts that are refused before anything is made of them: equal keys, and what would end, fill or occupy the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import plan_shop as shop
import pytest
from hostile_texts import TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import plan
from holdfast.plan.texts import TOO_DEEP, size_problem

PROGRAM = Path(__file__).parent / "hostile_texts.py"
SECONDS_MAX = 15.0
"""How much CPU a text may take. A list of 3.8 MB, which takes most, took 3 seconds where this was written."""


class Reader:
    """A process with little memory that reads plans."""

    def __init__(self) -> None:
        path = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip

    def read(self, data: bytes) -> tuple[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"%d\n%s" % (len(data), data))
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the process that read the plan ended with {self.process.wait()}")
        told, seconds = json.loads(line)
        return told, seconds


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.process.communicate()
    assert reader.process.returncode == 0


@pytest.mark.parametrize(("depth", "told"), [(100, False), (101, True)])
def test_plain_data_that_is_nested_too_deeply_is_refused(depth: int, told: bool) -> None:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    assert (size_problem(value) == TOO_DEEP) is told


@pytest.mark.rotating
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_ends_fills_or_occupies_the_process_that_reads_it(reader: Reader, name: str) -> None:
    make, told = TEXTS[name]
    found, seconds = reader.read(make())
    assert told in found
    assert (found == "read") == (told == "read")
    assert seconds < SECONDS_MAX


def problem_of(source: Any) -> str:
    with pytest.raises(plan.PlanError) as refused:
        plan.read(source)
    (problem,) = refused.value.problems
    return str(problem)


YAML = """holdfast: plan/1
policies:
- {id: limit, rule: 'false'}
tasks:
- id: a
  capability: any@1
policies: []
"""


def test_a_plan_with_two_equal_keys_is_refused_with_both_lines() -> None:
    told = "policies: the object has this key twice, on lines 2 and 7; remove one of the two"
    assert problem_of(YAML) == told
    as_json = '{"holdfast": "plan/1",\n"policies": [{"id": "limit", "rule": "false"}],\n"tasks": [],\n"policies": []}'
    assert problem_of(as_json) == told.replace("7", "4")
    assert shop.anything().check(plan.read(YAML.replace("policies: []\n", ""))) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tasks:\n- id: a\n- id: b\n  title: x\n  id: c\n", "tasks[1].id: the object has this key twice, on lines 3 and 5"),
        ("a: {b: [1, {c: 1, d: 2, c: 3}]}\n", "a.b[1].c: the object has this key twice, on line 1"),
        ("'a': 1\n\"\\x61\": 2\n", "a: the object has this key twice, on lines 1 and 2"),
        ("? a\n: 1\n? a\n: 2\n", "a: the object has this key twice, on lines 1 and 3"),
        ("1: a\n0x1: b\n", "[1]: the object has this key twice, on lines 1 and 2"),
        ("on: 1\nyes: 2\n", "[True]: the object has this key twice, on lines 1 and 2"),
        ('{"a": {"b": 1,\n"\\u0062": 2}}', "a.b: the object has this key twice, on lines 1 and 2"),
        (
            '{"a": [{}, {"two words": 1,\n\n"two words": "}{"}]}',
            "a[1]['two words']: the object has this key twice, on lines 1 and 3",
        ),
        ('{"a": "{\\"x\\": 1, \\"x\\": 2}",\n"b": {"a": 1},\n"b": 2}', "b: the object has this key twice, on lines 2 and 3"),
    ],
)  # fmt: skip
def test_two_equal_keys_are_refused_at_any_place_and_in_any_spelling(text: str, told: str) -> None:
    assert problem_of(text.encode()) == f"{told}; remove one of the two"


def test_equal_keys_are_refused_however_deep_a_value_is_that_one_of_them_replaces() -> None:
    for depth in range(900, 1000):  # some of these depths are too deep for one parser only
        deep = "[" * depth + "]" * depth
        told = problem_of(f'{{"policies": ["limit"], "x": {deep}, "x": 1, "policies": []}}'.encode())
        assert "twice" in told or "deeper than" in told, (depth, told)


@pytest.mark.parametrize(
    "text", ["a: {b: 1}\nc: {b: 1}\n", "- {a: 1}\n- {a: 2}\n", '{"a": {"b": 1}, "b": {"a": 1}}']
)
def test_equal_keys_of_different_objects_are_no_problem(text: str) -> None:
    assert "twice" not in (
        problem_of(text.encode()) if text.startswith("-") else str(plan.read(text.encode()))
    )


def test_yaml_is_read_as_before() -> None:
    text = b"""
a: [1, -2, 0x1F, 0o7, 017, 1_000, 1:30, 1.5, -.5, .inf, 1e3, 1.0e+3, ~, null, yes, off, 'yes', "\\u00e4", !!str 5, !!int '7']
b: {? x : 1, y, 'z': &n 3, w: *n}
c: |
  two
  lines
d: >-
  one
  line
e: &key text
*key : 1
f:
- - 1
- [[], {}]
"""
    read = plan.read(b"holdfast: plan/1\n" + text)
    assert read.pop("holdfast") == "plan/1"
    assert read == msgspec.yaml.decode(text)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=10), plain, max_size=5))
@settings(max_examples=150, deadline=None)
def test_what_is_written_as_json_or_yaml_is_read_as_it_was(value: dict[str, Any]) -> None:
    assert plan.read(json.dumps(value, indent=1).encode()) == value
    written = msgspec.yaml.encode(value)
    if not written.lstrip().startswith(b"{"):
        assert plan.read(written) == value


SIGNS = st.lists(
    st.sampled_from([*'[]{}:,-?&*!|>%@#"\'`<=~ \n\t\\ax10._\0\ufeff\x85',
                     "<<: ", "- ", ": ", "a: ", "? ", "---\n", "&a ", "*a", "!!int ",
                     '"a": ', "{", "\\u00", "2001-01-01", "0x", "1:1", "'"]),
    max_size=60,
).map("".join)  # fmt: skip


@given(st.binary(max_size=200) | SIGNS.map(str.encode) | SIGNS.map(lambda text: b"{" + text.encode()))
@settings(max_examples=1_500, deadline=None)
def test_any_bytes_are_a_plan_or_a_problem(data: bytes) -> None:
    with suppress(plan.PlanError):
        assert isinstance(plan.read(data), dict)
