"""Tokens as stores keep them, and their text."""

import pytest

from holdfast.storage import tokens
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.tokens import TokensConformance, make_token


class TestMemoryTokens(TokensConformance):
    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock).tokens


def test_a_new_token_has_an_id_and_a_secret_of_256_bits():
    token_id, secret = tokens.split(tokens.new_text())
    assert len(secret) == 43
    assert len(token_id) == 12
    assert tokens.new_text() != tokens.new_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".b",
        "abc",
        "a.short",
        "a b.0123456789abcdef",
        "a.0123456789abcdef.x",
        "é.0123456789abcdef",
        "a.0123456789abcdef\n",
    ],
)
def test_another_text_is_not_a_token(text):
    assert tokens.split(text) is None


def test_only_the_secret_of_a_token_fits_it():
    token = make_token(digest=tokens.digest_of("right"))
    assert token.fits("right")
    assert not token.fits("wrong")
    assert not token.fits("")
    assert not token.fits("\ud800")


def test_a_token_is_valid_until_it_expires_or_is_revoked():
    assert make_token().is_valid(1e12)
    assert make_token(expires_at=10.0).is_valid(9.9)
    assert not make_token(expires_at=10.0).is_valid(10.0)
    assert not make_token(revoked_at=3.0).is_valid(1.0)


def test_a_role_may_do_what_the_roles_before_it_may_do():
    for place, role in enumerate(tokens.ROLES):
        assert [tokens.allows(role, other) for other in tokens.ROLES] == [True] * (place + 1) + [False] * (
            len(tokens.ROLES) - place - 1
        )


def test_what_an_agent_does_is_recorded_as_its_own():
    assert make_token(name="ada").actor == "ada"
    assert make_token(name="scout", kind="agent").actor == "agent:scout"
