from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gates import Gate
from harness import Stage


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1])
    yield found
    found.close()


@pytest.fixture(params=["approve", "node"])
def gate(request: Any) -> Gate:
    return Gate(request.param)
