"""A stage in memory: a preview only reads, and reading is the same on every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    stage = Stage("memory", tmp_path)
    yield stage
    stage.close()
