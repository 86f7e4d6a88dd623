"""Slots: their stored text never changes, and every text that a log may hold parses into the slot that it is."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.slots import (
    CHECKPOINT,
    Slot,
    SlotKind,
    begun_steps,
    begun_text,
    labels,
    parse,
    raised_text,
    step_text,
    try_text,
)

STORED = [
    (Slot.step("charge"), "step:charge", "charge", None),
    (Slot.step("charge", "EUR"), "step:charge:EUR", "charge", "EUR"),
    (Slot.step("charge", 7), "step:charge:7", "charge", "7"),
    (Slot.step("charge", ""), "step:charge:", "charge", ""),
    (Slot.step("pay: card", "a:b"), "step:pay:: card:a:b", "pay: card", "a:b"),
    (Slot.step("pay:", "a"), "step:pay:::a", "pay:", "a"),
    (Slot.step("page[3]", "0f"), "step:page[3]:0f", "page[3]", "0f"),
    (Slot("raised", "charge:EUR"), "raised:charge:EUR", "charge", "EUR"),
    (Slot("begun", "pay:: card"), "begun:pay:: card", "pay: card", None),
    (Slot("try", "charge:2"), "try:charge:2", "charge", "2"),
    (Slot("try", "pay:: card:EUR:3"), "try:pay:: card:EUR:3", "pay: card", "3"),
    (Slot("checkpoint"), "checkpoint", "", None),
    (Slot.sleep(1), "sleep:1", "", "1"),
    (Slot.sleep("before the retry"), "sleep:before the retry", "", "before the retry"),
    (Slot.signal("paid", 1), "signal:paid:1", "paid", "1"),
    (Slot.signal("order:paid", 2), "signal:order:paid:2", "order:paid", "2"),
    (Slot.child("pay", 1), "child:pay:1", "pay", "1"),
    (Slot.child("pay:EUR", 2), "child:pay:EUR:2", "pay:EUR", "2"),
    (Slot.ask("Publish?"), "ask:Publish?", "", "Publish?"),
    (Slot.ask("Sure: yes or no?"), "ask:Sure: yes or no?", "", "Sure: yes or no?"),
]
"""A slot, and its text, name and key. A stored text is never changed: logs and snapshots hold it."""


@pytest.mark.parametrize(("slot", "text", "name", "key"), STORED, ids=[text for _, text, _, _ in STORED])
def test_a_slot_is_stored_as_its_text_and_parsed_from_it(
    slot: Slot, text: str, name: str, key: str | None
) -> None:
    assert slot.text == text
    assert parse(text) == slot
    assert (slot.name, slot.key) == (name, key)


def test_every_kind_of_slot_has_a_stored_text_that_is_tested() -> None:
    assert {slot.kind for slot, *_ in STORED} == set(get_args(SlotKind))


def test_the_text_of_a_step_is_made_from_what_its_event_stores() -> None:
    slot = Slot.step("pay: card", "EUR")
    assert step_text(slot.label) == slot.text
    assert Slot("checkpoint").text == CHECKPOINT


def test_the_texts_of_what_is_known_about_a_step_are_made_from_what_its_events_store() -> None:
    label = Slot.step("pay: card", "EUR").label
    assert (raised_text(label), begun_text(label)) == (Slot("raised", label).text, Slot("begun", label).text)
    assert parse(try_text(label, 2)) == Slot("try", f"{label}:2")


def test_a_step_is_in_doubt_from_its_beginning_to_its_outcome() -> None:
    assert begun_steps(
        {"begun:a": 1, "begun:b": 1, "begun:c": 2, "step:b": 0, "raised:c": {}, "step:d": 0}
    ) == ["a"]


@pytest.mark.parametrize("text", ["", "sleep", "sleepy:1", "checkpoint:1", ":1", "stream:x", "Step:x"])
def test_a_text_that_is_not_a_slot_is_not_parsed_as_one(text: str) -> None:
    assert parse(text) is None


@given(kind=st.sampled_from(get_args(SlotKind)), rest=st.text(alphabet="ab:", max_size=6))
def test_what_is_parsed_has_the_same_text_and_the_same_name_and_key(kind: str, rest: str) -> None:
    slot = parse(f"{kind}:{rest}")
    if slot is None:
        assert kind == "checkpoint"
        return
    assert slot.text == f"{kind}:{rest}"
    if slot.kind == "step":
        assert Slot.step(slot.name, slot.key) == slot


@given(name=st.text(alphabet="ab:", max_size=5), key=st.none() | st.text(alphabet="ab", max_size=3))
def test_the_name_and_the_key_of_a_step_are_those_it_was_made_of(name: str, key: str | None) -> None:
    slot = Slot.step(name, key)
    assert (slot.name, slot.key) == (name, key)


def test_the_labels_of_a_kind_are_those_of_its_slots_in_their_order() -> None:
    kept = ["step:b", "ask:step:x", "checkpoint", "step:a:1", "sleep:1"]
    assert labels("step", kept) == ["b", "a:1"]
    assert labels("ask", kept) == ["step:x"]
