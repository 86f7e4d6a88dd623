"""The bank of the shop: a table of cards that it declines."""

from __future__ import annotations

from typing import ClassVar


class CardDeclined(Exception):
    """The bank refuses to pay."""


class Bank:
    """Declines some cards, and does not always answer."""

    declined: ClassVar = {"tok_51c8f2": 51}
    outages = 0
    """How many of the next calls find nobody at the other end."""

    def pay(self, cents: int, card: str) -> dict[str, int | str]:
        if self.outages:
            self.outages -= 1
            raise ConnectionError("the bank did not answer")
        return {"declined": self.declined[card]} if card in self.declined else {"receipt": "ch_3PzK1"}


BANK = Bank()


def charge_card(cents: int, card: str) -> str:
    """Charge a card, and return the receipt."""
    reply = BANK.pay(cents, card)
    if code := reply.get("declined"):
        raise CardDeclined(f"insufficient funds (decline code {code})")
    return str(reply["receipt"])
