"""Planted bugs about child runs: see `planted`. They are found by simulated families."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from planting import family_bug, patched, rewritten

from holdfast.core.fold import children
from holdfast.errors import HoldfastError, ResumeRefused
from holdfast.reading import ends, inbox
from holdfast.runtime import mending, recorders
from holdfast.runtime.calls import attempt, child_runs
from holdfast.runtime.journal import Journal
from holdfast.storage.contract import Along


def _apart(journal, do):
    """Do something with the store a moment after the append, unless the process dies before."""

    def try_it():
        with suppress(HoldfastError):
            do(journal.services.store)

    asyncio.get_running_loop().call_later(0.02, try_it)


@family_bug
def the_end_of_a_child_is_posted_outside_the_transaction():
    real = Journal._along

    def along(self, rows):
        made = real(self, rows)
        for run_id, request in made.posts if made is not None else ():
            _apart(self, lambda store, run_id=run_id, request=request: store.post(run_id, request))
        return Along(starts=made.starts) if made is not None and made.starts else None

    with patched((Journal, "_along", along)):
        yield


@family_bug
def the_id_of_an_end_lacks_the_seq():
    """The second end of a child that was mended counts as the first one."""
    with patched((ends, "end_id", lambda run, seq: f"child:{run}")):
        yield


@family_bug
def the_log_of_an_adopted_child_is_read_before_the_append():
    old = "adopted = self._find(first)"
    new = (
        f"{old}\n"
        "    early = history.load(self._services.store, place.run_id) if adopted is not None else None\n"
        "    import asyncio\n"
        "    await asyncio.sleep(0.3 if adopted is not None else 0.0)"
    )
    then = "    if durable:\n        await self._work.durable(seq)"
    looks = (
        "    if early is not None:\n"
        "        self._journal.state.children[place.run_id].in_doubt = False\n"
        "        early.status in ENDED and self._work.record_end(ends.report(early))\n"
        f"{then}"
    )
    with patched(rewritten(child_runs.Children, "_start", old, new, then, looks)):
        yield


@family_bug
def the_end_of_a_child_wakes_a_failed_caller():
    real = children.resolve

    def resolve(state, *args):
        real(state, *args)
        if state.status == "failed":
            state.status, state.failure = "pending", None

    with patched((children, "resolve", resolve)):
        yield


@family_bug
def the_end_of_a_child_is_dropped_by_a_failed_caller():
    real = Journal.record_child_end

    def record_child_end(self, end):
        if self.state.status == "failed":
            self.taken.append(end.id)
        else:
            real(self, end)

    with patched((Journal, "record_child_end", record_child_end)):
        yield


@family_bug
def a_child_is_started_twice_after_a_replay():
    """Its id depends on the execution."""
    real = child_runs.place_of

    def place_of(state, node, iteration, item, key, fresh):
        return real(state, node, iteration, item, key, (fresh, state.nodes[node].execution))

    with patched((child_runs, "place_of", place_of)):
        yield


@family_bug
def a_start_is_half_obeyed():
    """The caller records the start, and the child is created a moment later."""
    real = Journal._along

    def along(self, rows):
        made = real(self, rows)
        for start in made.starts if made is not None else ():
            _apart(self, lambda store, start=start: store.append([start]))
        return Along(posts=made.posts) if made is not None and made.posts else None

    with patched((Journal, "_along", along)):
        yield


@family_bug
def a_cancel_stops_at_the_first_generation():
    real = ends.cancels

    def cancels(state, *args):
        return real(state, *args) if state.origin is None else []

    with patched((ends, "cancels", cancels)):
        yield


@family_bug
def a_caller_that_only_unwinds_during_a_call_cleans_up():
    real = attempt.Attempt._is_current

    def is_current(self):
        parking = self.body.parking or [""]
        return self._is_alive() if all(slot.startswith("child:") for slot in parking) else real(self)

    with patched((attempt.Attempt, "_is_current", is_current)):
        yield


# --- families that are mended from the top -----------------------------------------------------------


@family_bug
def a_child_is_asked_to_resume_outside_the_transaction():
    """The caller is resumed, and its process may die before the child is asked; or its node looks at the child before that."""

    def leave(journal, family, orders):
        journal.family = family
        for one in family:
            if one.preview is not None:
                request = inbox.stored_form(mending._request(journal.state, one, orders))
                _apart(
                    journal,
                    lambda store, run_id=one.run_id, request=request: store.post(run_id, request),
                )

    with patched((mending, "leave", leave)):
        yield


@family_bug
def the_old_end_of_a_child_that_was_asked_to_resume_is_read():
    """The caller fails again at once, and the child completes for nobody."""
    with patched((child_runs, "EXECUTING", frozenset())):
        yield


@family_bug
def a_mending_stops_at_the_first_generation():
    real = mending.find

    def find(journal, *args, **named):
        return real(journal, *args, **named) if journal.state.origin is None else ()

    with patched((mending, "find", find)):
        yield


@family_bug
def a_retry_leaves_failed_children_alone():
    with patched((recorders, "prepare_child", _refuse_child)):
        yield


def _refuse_child(*args):
    raise ResumeRefused("f", "not now")
