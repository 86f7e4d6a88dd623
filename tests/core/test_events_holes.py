"""Versions of stored events. Mutants that nobody had looked at got past the tests here (docs/mutants.md)."""

from __future__ import annotations

import pytest

from holdfast.core import events
from holdfast.errors import SchemaTooNew


def stored(version: int) -> events.Encoded:
    return events.Encoded("RunPaused", None, 0, 0, 0, b'{"v":%d,"by":"ann"}' % version)


def test_an_event_that_says_the_version_which_is_known_is_read():
    assert events.decode(stored(events.RunPaused.VERSION)) == events.RunPaused(by="ann")


def test_an_event_of_a_later_version_is_refused():
    with pytest.raises(SchemaTooNew, match="version 2 of 'RunPaused'; this Holdfast knows 1"):
        events.decode(stored(events.RunPaused.VERSION + 1))
