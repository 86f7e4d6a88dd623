"""A node that a test calls in a process of its own."""

import gc
from typing import Any


def look(state: dict[str, Any]) -> dict[str, Any]:
    return {"frozen": gc.get_freeze_count()}
