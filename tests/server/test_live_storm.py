"""Live events while connections are cut and processes are killed: a small form of what `make prove` does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import live_storm


def test_every_client_gets_every_event_once_through_cuts_and_kills(tmp_path: Path) -> None:
    found = asyncio.run(
        live_storm.rage(tmp_path, 18, seconds=1.6, runs=1, clients=8, pause_s=0.03, kill_every_s=0.8)
    )
    assert found.violations == []
    assert found.chunks > 0
    assert found.cuts > 3
    assert found.kills >= 2


def test_a_signal_ends_a_server_with_many_streams_at_once(tmp_path: Path) -> None:
    seconds, code = asyncio.run(live_storm.end_by_signal(tmp_path, 100))
    assert code == 0
    assert seconds < 5.0
