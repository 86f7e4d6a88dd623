"""A PostgreSQL URL with a slip in its beginning is no path: its password becomes no file name, and is not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingError
from holdfast.storage import urls


@pytest.mark.parametrize(
    "url",
    [
        "postgresql//me:geheim@host/db",
        "postgres//me:geheim@host/db",
        "//me:geheim@host/db",
        "me:geheim@host/db",
    ],
)
def test_an_address_that_lacks_its_scheme_is_refused_untold(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ask in (urls.open_store, urls.is_there):
        with pytest.raises(SettingError, match="looks like a database address") as refusal:
            ask(url)
        assert "geheim" not in str(refusal.value)
    assert urls.shown(url) == "URL"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["//var/runs.db", "postgres/runs.db", "/srv/a:b@c/runs.db"])
def test_a_path_that_only_resembles_one_is_a_path(path: str) -> None:
    assert urls.sqlite_path(path) == urls.shown(path) == path
