"""A stage on each store: memory, SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import OnServer, Stage


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    stage.close()
