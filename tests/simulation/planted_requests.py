"""Planted bugs about requests and forks: see `planted`."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from planting import bug, patched, rewritten

from holdfast.errors import HoldfastError
from holdfast.reading import forks, inbox
from holdfast.runtime import creation, door, preparation, received_requests, recorders, runner, unheld_runs
from holdfast.storage import verdicts
from holdfast.storage.memory import queues as memory_queues
from holdfast.storage.memory.store import MemoryStore

# --- requests ----------------------------------------------------------------------------------------


@bug
def a_refusal_is_dropped():
    """The request is taken from the inbox, and the log does not say what became of it."""
    refuse = "recorders.refuse(self.journal, request, refused)"
    with patched(
        rewritten(runner.Runner, "_carry_out_or_refuse", refuse, "self.journal.taken.append(request.id)")
    ):
        yield


@bug
def a_request_is_lost_at_completion():
    with patched(rewritten(MemoryStore, "_apply", "append.view.status in FINAL", "False")):
        yield


@bug
def a_request_to_a_run_that_is_over_is_accepted():
    with patched((verdicts, "refuse_final", lambda *args: None)):
        yield


@bug
def another_request_with_the_same_id_is_taken_for_the_first():
    real = verdicts.is_new_request

    def is_new_request(run_id, request, digest, status, posted_verb, posted_digest):
        same = (None, None) if posted_verb is None else (request.verb, digest)
        return real(run_id, request, digest, status, *same)

    with patched((verdicts, "is_new_request", is_new_request)):
        yield


@bug
def a_confirmation_is_not_needed():
    real = preparation._rewound_to

    def rewound_to(services, flow, row, head, to, request):
        return real(services, flow, row, head, to, msgspec.structs.replace(request, force=True))

    with patched((preparation, "_rewound_to", rewound_to)):
        yield


@bug
def a_request_is_carried_out_twice():
    """A worker that resumes a run for a request leaves the request in the inbox."""
    with patched(
        rewritten(
            unheld_runs.UnheldRuns, "_begin", "journal.taken += [request.id] if is_posted else []", "pass"
        )
    ):
        yield


@bug
def a_sender_is_told_nothing():
    real = door.is_handled

    def handled(*args):
        try:
            return real(*args)
        except HoldfastError:
            return True

    with patched((door, "is_handled", handled)):
        yield


@bug
def an_edit_of_an_older_state_is_recorded():
    nothing = lambda *args: None  # noqa: E731
    with patched((recorders, "refuse_moved", nothing), (preparation, "refuse_moved", nothing)):
        yield


@bug
def a_run_begins_before_its_time():
    real = memory_queues._offer

    def offer(run_id, run, now, *rest):
        return real(run_id, run, now + 5 if run.view.status == "pending" else now, *rest)

    with patched((memory_queues, "_offer", offer)):
        yield


@bug
def the_digest_of_a_preview_is_not_checked_under_the_lease():
    nothing = lambda *args, **named: None  # noqa: E731
    with patched((unheld_runs, "refuse_stale", nothing), (runner, "refuse_stale", nothing)):
        yield


@bug
def a_preview_writes():
    """The run is cancelled by a caller who only looked."""
    real = door.Door.preview

    def preview(self, run, verb, *rest):
        found = real(self, run, verb, *rest)
        with suppress(HoldfastError):
            self._leave(run, inbox.Cancel(id=f"request:looked at {verb}"))
        return found

    with patched((door.Door, "preview", preview)):
        yield


# --- the order of requests ---------------------------------------------------------------------------


@bug
def a_pause_goes_past_what_waits_in_the_inbox():
    """A pause that is recorded at once leaves an older resume in the inbox, and a worker undoes the pause."""
    with patched(
        (unheld_runs, "settle", lambda *args: None), (recorders, "first_of", lambda waiting: waiting[0])
    ):
        yield


@bug
def an_edit_goes_past_what_waits_in_the_inbox():
    with patched((recorders, "follows", lambda request, older: False)):
        yield


@bug
def a_resume_that_an_engine_leaves_undoes_a_later_pause():
    """The engine that executes a paused run leaves a resume in the inbox, and it is still there after a later pause."""
    with patched((received_requests.ReceivedRequests, "settle_left", lambda self, request: None)):
        yield


@bug
def a_resume_here_goes_past_what_waits_in_the_inbox():
    real = unheld_runs.UnheldRuns.older

    def older(self, run_id, request):
        return [] if request is None or request.traits.executes else real(self, run_id, request)

    with patched((unheld_runs.UnheldRuns, "older", older)):
        yield


# --- forks -------------------------------------------------------------------------------------------


@bug
def a_fork_forgets_an_open_visit():
    """What had begun before the fork and ended after it is not listed."""
    real = forks.begun_visits

    def begun_visits(log, state, *rest):
        return [one for one in real(log, state, *rest) if one.node not in state.open]

    with patched((forks, "begun_visits", begun_visits)):
        yield


@bug
def a_fork_does_not_inherit_its_lineage():
    real = creation.plan_fork

    def plan_fork(*args):
        return msgspec.structs.replace(real(*args), lineage=None)

    with patched((creation, "plan_fork", plan_fork)):
        yield


@bug
def a_fork_of_a_fork_has_the_lineage_of_its_parent():
    real = creation.plan_fork

    def plan_fork(store, row, *rest):
        return msgspec.structs.replace(real(store, row, *rest), lineage=row.run_id)

    with patched((creation, "plan_fork", plan_fork)):
        yield


@bug
def a_fork_of_a_fork_forgets_what_the_first_had_begun():
    real = forks.begun_visits

    def begun_visits(*args):
        return [one for one in real(*args) if one.run is None]

    with patched((forks, "begun_visits", begun_visits)):
        yield


@bug
def a_fork_of_a_fork_does_not_look_at_the_first_run_again():
    """What a run has done since it was forked is not known to a fork of that fork."""
    real = forks._line

    def line(*args):
        return real(*args)[-1:]

    with patched((forks, "_line", line)):
        yield
