"""Processes that tests of this folder start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service_process import Service, Start


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[Start]:
    """Starts services on one store, and ends those that are left."""
    started: list[Service] = []

    def start(form: str, *arguments: str) -> Service:
        started.append(Service(form, tmp_path, *arguments))
        return started[-1]

    yield start
    for service in started:
        service.close()
