"""Families on real processes and stores: three workers, of which two are killed at every failpoint in turn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from holdfast.testing.checker import check
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "family.py"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema = schema_for(tmp_path)
    server = shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


def test_a_caller_completes_though_two_of_three_workers_are_killed_at_a_failpoint(url: str) -> None:
    last, step = (40, 2) if "://" not in url else (40, 6)
    command = [sys.executable, str(PROGRAM), url, "1", str(last), str(step)]
    said = forked.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=110, check=False)
    told = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(told) == len(range(1, last, step)), said.stderr[-2000:]
    assert [one for one in told if (one["status"], one["paid"]) != ("completed", [0, 2, 10, 20, 99])] == []
    assert sum(one["killed"] for one in told) >= len(told)
    assert check(url) == []
