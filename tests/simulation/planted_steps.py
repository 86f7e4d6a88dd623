"""Planted bugs about the outcomes of steps: see `planted`."""

from __future__ import annotations

from planting import bug, on_take_up, patched

from holdfast.runtime.calls import attempt, context


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
def a_step_that_must_not_be_called_twice_waits_for_no_disk():
    async def record(self, kind, **fields):
        self.note(kind, **fields)

    with patched((attempt.Attempt, "record", record)):
        yield
