"""Fifty processes resume one run at once: one executes it, and the others get an error that names its holder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crowd
import pytest

import holdfast as hf
from postgres_server import drop_schema, schema_for, shared_url

COUNT = 50


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema, server = schema_for(tmp_path), shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


def test_of_fifty_processes_that_resume_a_run_at_once_one_executes_it(url: str) -> None:
    hf.start(crowd.flow, {}, run_id="r1", store=url)
    asked = json.dumps({"store": url, "run": "r1", "count": COUNT})
    with subprocess.Popen(
        [sys.executable, crowd.__file__, asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        said = [process.stdout.readline().split(maxsplit=1) for _ in range(COUNT)]
        told = Counter(what.strip() for _, what in said)
        assert told == {"executes": 1, "held": COUNT - 1}
        process.stdin.close()
        rest = process.stdout.read().split()
    (executor,) = (pid for pid, what in said if what.strip() == "executes")
    assert rest == [executor, "completed"]
    run = hf.get("r1", store=url)
    assert (run.status, run.state) == ("completed", {"by": [int(executor)]})
    kinds = [event.kind for event in hf.events("r1", store=url)]
    assert (kinds.count("NodeStarted"), kinds.count("NodeCompleted")) == (1, 1)
