"""The suite that the tokens of every store must pass: the rules of `holdfast.storage.tokens` as tests.

    from holdfast.testing.tokens import TokensConformance

    class TestMyTokens(TokensConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test: each call must open the
same data.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import SettingError, StoreUnusable
from holdfast.storage.contract import Store
from holdfast.storage.failpoints import FAILPOINTS, OF_TOKENS
from holdfast.storage.tokens import Token, digest_of
from holdfast.testing.appends import KilledAtFailpoint, Time, hooked, in_threads, kill_at, raises

HOSTILE = ("'", '"', "a' or '1'='1", "%", "\\", " ", "\n", "é", "日本", "🐙", "null", "--", "")


def make_token(token_id: str = "t1", **changes: Any) -> Token:
    """Make a token that is stored in no store yet."""
    given: dict[str, Any] = {"name": "ada", "role": "read", "digest": digest_of("secret"), "created_at": 5.5}
    return Token(id=token_id, **{**given, **changes})


class TokensConformance:
    """Tests for everything that the tokens of a store promise. Subclass it, name the class `Test…` and implement `open`."""

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.clock = Time()
        self.opened: list[Store] = []
        self.store = self.open_again()
        self.tokens = self.store.tokens

    def open_again(self) -> Store:
        """Open the store of the test once more; it is closed at the end."""
        self.opened.append(self.open(self.folder, self.clock))
        return self.opened[-1]

    def teardown_method(self) -> None:
        for store in self.opened:
            store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def test_a_token_is_returned_as_it_was_stored(self) -> None:
        token = make_token(kind="agent", role="operate", created_by="root", expires_at=99.25)
        self.tokens.add(token)
        assert self.tokens.get("t1") == token
        assert self.open_again().tokens.get("t1") == token

    def test_there_is_no_token_with_another_id(self) -> None:
        self.tokens.add(make_token("t1"))
        for other in ("t2", "T1", "t", "t1 ", "t1\0", "\ud800", *HOSTILE):
            assert self.tokens.get(other) is None, other
            assert not self.tokens.revoke(other, 7.0), other

    def test_hostile_names_are_stored_unchanged(self) -> None:
        for number, name in enumerate(HOSTILE):
            self.tokens.add(make_token(f"t{number}", name=name, created_by=name))
        assert [token.name for token in self.tokens.all()] == [
            HOSTILE[int(token.id[1:])] for token in self.tokens.all()
        ]

    def test_two_tokens_may_have_one_name(self) -> None:
        self.tokens.add(make_token("t1"))
        self.tokens.add(make_token("t2"))
        assert [token.id for token in self.tokens.all()] == ["t1", "t2"]

    def test_an_id_is_used_once(self) -> None:
        self.tokens.add(make_token("t1"))
        with raises(SettingError, "'t1'"):
            self.tokens.add(make_token("t1", name="eve", digest=digest_of("other"), role="admin"))
        found = self.tokens.get("t1")
        assert found is not None
        assert (found.name, found.role) == ("ada", "read")

    def test_tokens_are_listed_oldest_first(self) -> None:
        for token_id, at in (("b", 3.0), ("a", 3.0), ("c", 1.0)):
            self.tokens.add(make_token(token_id, created_at=at))
        assert [token.id for token in self.tokens.all()] == ["c", "a", "b"]

    def test_a_token_is_revoked_once_and_stays(self) -> None:
        self.tokens.add(make_token("t1"))
        self.tokens.add(make_token("t2"))
        assert self.tokens.revoke("t1", 7.0)
        assert not self.tokens.revoke("t1", 8.0)
        assert not self.tokens.revoke("t9", 8.0)
        found = self.open_again().tokens.get("t1")
        assert found is not None
        assert found.revoked_at == 7.0
        assert self.tokens.get("t2") == make_token("t2")

    def test_of_many_that_add_the_same_id_one_succeeds(self) -> None:
        won: list[str] = []

        def add(name: str) -> None:
            try:
                self.tokens.add(make_token("t1", name=name))
            except SettingError:
                return
            won.append(name)

        in_threads(4, lambda: add("one"), lambda: add("two"))
        assert len(won) == 1
        found = self.tokens.get("t1")
        assert found is not None
        assert found.name == won[0]

    def test_every_write_passes_its_failpoints(self) -> None:
        reached: list[str] = []
        for write in (lambda: self.tokens.add(make_token("t1")), lambda: self.tokens.revoke("t1", 7.0)):
            with hooked(reached.append):
                write()
            assert reached == [name for name in FAILPOINTS if name.startswith(OF_TOKENS)]
            reached.clear()

    def test_a_crash_before_the_commit_leaves_nothing_and_one_after_it_everything(self) -> None:
        for place, kept in (("token.before", False), ("token.committed", True)):
            with raises(KilledAtFailpoint), hooked(kill_at(place)):
                self.tokens.add(make_token(place))
            assert (self.tokens.get(place) is not None) is kept

    def test_a_closed_store_keeps_no_tokens(self) -> None:
        self.store.close()
        for call in (
            lambda: self.tokens.add(make_token("t1")),
            lambda: self.tokens.get("t1"),
            self.tokens.all,
            lambda: self.tokens.revoke("t1", 7.0),
        ):
            with raises(StoreUnusable):
                call()
