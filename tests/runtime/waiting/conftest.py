from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stage


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A stage with a clock that only the test moves, for both `async def` and `def` nodes."""
    found = Stage(request.param[0], tmp_path, request.param[1], still=True)
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A stage with a clock that jumps over every wait."""
    found = Stage(request.param, tmp_path)
    yield found
    found.close()
