"""Planted bugs about the outcomes of steps, and about what a node does while it unwinds: see `planted`."""

from __future__ import annotations

import asyncio

from planting import bug, on_take_up, patched

from holdfast.core.fold import waits
from holdfast.runtime.calls import attempt, context, rest


def forget(state, mark):
    """Forget the slots that begin with this mark."""
    for name in state.open:
        for kept in state.nodes[name].kept.values():
            for slot in [slot for slot in kept if slot.startswith(mark)]:
                del kept[slot]


@bug
def a_kept_outcome_is_called_again():
    real = context.course

    def course(work, step, slot, codec, **named):
        work.kept().pop(f"raised:{slot.label}", None)
        return real(work, step, slot, codec, **named)

    with patched((context, "course", course)):
        yield


@bug
def a_kept_outcome_is_dropped_by_a_resume():
    with on_take_up(lambda taken: forget(taken.state, "raised:")):
        yield


@bug
def the_tries_of_a_step_are_reset_by_a_crash():
    def spoil(taken):
        forget(taken.state, "try:")
        waits = taken.state.waits
        taken.state.waits = {key: wait for key, wait in waits.items() if not wait.slot.startswith("try:")}

    with on_take_up(spoil):
        yield


@bug
def a_step_that_must_not_be_called_twice_is_simply_called_again():
    with on_take_up(lambda taken: forget(taken.state, "begun:")):
        yield


@bug
def a_step_that_has_happened_according_to_an_answer_is_called_again():
    with patched((waits, "_keep_stated", lambda state, question, stated: False)):
        yield


@bug
def a_step_that_must_not_be_called_twice_waits_for_no_disk():
    async def record(self, kind, **fields):
        self.note(kind, **fields)

    with patched((attempt.Attempt, "record", record)):
        yield


@bug
def a_node_that_only_unwinds_cleans_up():
    def is_current(self):
        return self._is_alive()

    with patched((attempt.Attempt, "_is_current", is_current)):
        yield


@bug
def a_withdrawn_wait_begins_again_before_the_node_has_withdrawn_it_once_more():
    def disturb(self):
        asyncio.get_running_loop().call_soon(self._settled)

    def begin_again(self, *, unwinds):
        if self._is_current() and all(map(self.is_withdrawn, self._waiters)):
            for slot in self._waiters:
                self._begin_again[slot]()

    with patched((rest.Rest, "disturb", disturb), (attempt.Attempt, "_begin_withdrawn_again", begin_again)):
        yield
