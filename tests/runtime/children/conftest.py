"""A stage on each store: memory, SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from harness import Stage

from postgres_server import shared_url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    stage.close()


class OnServer(Stage):
    """A stage in a schema of its own, of the PostgreSQL server that the tests share."""

    def __init__(self, folder: Path) -> None:
        super().__init__("memory", folder)
        self.store.close()
        self.kind, self.url = "postgres", f"{shared_url()}&schema=s{uuid.uuid4().hex}"
        self.store = self.open(self.url)
