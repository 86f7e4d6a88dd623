"""Planted bugs: each breaks one promise of the engine or the store, as a real mistake might. Only for tests.

Those about requests and forks are in `planted_requests`, those about child runs in `planted_families`, those about plans and
policies in `planted_plans`, those about the outcomes of steps in `planted_steps`, those about deploys in `planted_deploys`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import planted_deploys  # noqa: F401 - adds its bugs to the table
import planted_families  # noqa: F401 - adds its bugs to the table
import planted_plans  # noqa: F401 - adds its bugs to the table
import planted_requests  # noqa: F401 - adds its bugs to the table
import planted_steps  # noqa: F401 - adds its bugs to the table
from planting import BUGS, after, bug, found, on_take_up, patched, rewritten  # noqa: F401 - also for tests

from holdfast.core import decide as decides
from holdfast.core import event_encoding, events, readiness
from holdfast.runtime import journal, outcomes, perform, preparation, runner, worker
from holdfast.runtime.calls import attempt, streams
from holdfast.runtime.calls.context import _AnyContext
from holdfast.runtime.holdings import Holdings, Renewal
from holdfast.runtime.services import Commits
from holdfast.storage import leases, verdicts
from holdfast.storage.memory import queues as memory_queues
from holdfast.storage.memory import store as memory
from holdfast.storage.memory.queues import MemoryQueues
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.memory.upkeep import MemoryUpkeep
from holdfast.storage.rows import seal_row
from holdfast.upkeep import retention

# --- the store ---------------------------------------------------------------------------------------


@bug
def the_fence_is_not_checked():
    real = verdicts.judge

    def judge(append, *, seq, fence, holder):
        return real(append, seq=seq, fence=append.fence, holder=append.holder)

    with patched((verdicts, "judge", judge)):
        yield


@bug
def a_claim_does_not_raise_the_fence():
    def lower(taken, queues, *_):
        with queues._use() as data:
            for got in taken:
                run = data.runs[got.lease.run_id]
                run.head = msgspec.structs.replace(run.head, fence=run.head.fence - 1)
        return [
            msgspec.structs.replace(got, lease=msgspec.structs.replace(got.lease, fence=got.lease.fence - 1))
            for got in taken
        ]

    with patched(after(MemoryQueues, "take", lower)):
        yield


@bug
def a_lease_that_stands_is_taken():
    with patched((leases, "is_held", lambda *args: False)):
        yield


@bug
def a_renewal_takes_back_what_was_lost():
    past = {}

    def remember(taken, queues, holder, wanted):
        for got in taken:
            past.setdefault((id(queues._alive), got.lease.run_id), set()).add(holder.id)
        return taken

    def take_back(_, store, holder):
        with store._use() as data:
            for run_id, run in data.unended.items():
                if holder.ttl_s > 0 and holder.id in past.get((id(store._alive), run_id), ()):
                    run.head = msgspec.structs.replace(run.head, holder=holder.id)

    with patched(after(MemoryStore, "renew", take_back), after(MemoryQueues, "take", remember)):
        yield


@bug
def anybody_may_release():
    def release(self, run_id, holder, fence):
        with self._use() as data:
            if run_id in data.runs:
                run = data.runs[run_id]
                run.head = msgspec.structs.replace(run.head, holder=None)

    with patched((MemoryStore, "release", release)):
        yield


@bug
def leases_are_not_given_back():
    real = memory._next

    def next_head(head, append):
        return real(head, msgspec.structs.replace(append, release=False))

    with patched((memory, "_next", next_head), (MemoryStore, "release", lambda *args: None)):
        yield


@bug
def a_lease_that_could_not_be_given_back_is_forgotten():
    with patched((Renewal, "owe", lambda self, run_id, fence: None)):
        yield


@bug
def a_request_is_lost():
    real, count = MemoryStore.post, []

    def post(self, run_id, request, **named):
        count.append(1)
        return True if len(count) % 3 == 0 else real(self, run_id, request, **named)

    with patched((MemoryStore, "post", post)):
        yield


@bug
def a_request_is_found_again_by_the_next_holder():
    real = MemoryStore._apply

    def apply(self, data, append):
        real(self, data, msgspec.structs.replace(append, taken=()))

    with patched((MemoryStore, "_apply", apply)):
        yield


@bug
def a_base_is_pruned():
    real = MemoryStore._apply

    def apply(self, data, append):
        kept = tuple(snapshot for snapshot in append.snapshots if not snapshot.base)
        real(self, data, msgspec.structs.replace(append, snapshots=kept))

    with patched((MemoryStore, "_apply", apply)):
        yield


@bug
def the_tail_behind_a_snapshot_begins_one_too_late():
    real = MemoryStore.events

    def tail(self, run_id, after=0, upto=None, **named):
        late = after > 0 and upto is not None and upto - after > 1 and not named
        return real(self, run_id, after + 1 if late else after, upto, **named)

    with patched((MemoryStore, "events", tail)):
        yield


@bug
def a_row_of_an_append_is_lost():
    real, count = MemoryStore._apply, []

    def apply(self, data, append):
        count.append(1)
        if len(count) % 7 == 0 and len(append.rows) > 1:
            append = msgspec.structs.replace(append, rows=append.rows[:-1])
        real(self, data, append)

    with patched((MemoryStore, "_apply", apply)):
        yield


# --- saving ------------------------------------------------------------------------------------------


@bug
def an_append_is_acknowledged_before_it_is_committed():
    real = Commits.commit

    def commit(self, append, done, moving):
        done(None)
        asyncio.get_running_loop().call_later(0.03, real, self, append, lambda error: None, moving)

    with patched((Commits, "commit", commit)):
        yield


@bug
def an_unknown_outcome_is_taken_for_done():
    with patched((MemoryStore, "appended", lambda *args: True)):
        yield


@bug
def a_lost_reply_is_sent_again_blindly():
    real = verdicts.judge

    def judge(append, *, seq, fence, holder):
        return real(append, seq=append.expected_seq, fence=fence, holder=holder)

    with patched((MemoryStore, "appended", lambda *args: False), (verdicts, "judge", judge)):
        yield


@bug
def nodes_are_called_before_their_start_is_durable():
    real = runner.Runner._save

    def save(self, starts, *, idle):
        self._durability = "async"
        real(self, starts, idle=idle)

    with patched((runner.Runner, "_save", save)):
        yield


@bug
def a_snapshot_says_it_stands_one_event_earlier():
    def shifted(made, *_):
        snapshots, blobs = made
        return tuple(msgspec.structs.replace(one, seq=one.seq - 1) for one in snapshots), blobs

    with patched(after(journal.Journal, "_snapshots", shifted)):
        yield


@bug
def the_hash_chain_forgets_its_predecessor():
    def unchained(previous, *rest):
        return seal_row(b"", *rest)

    with patched((journal, "seal_row", unchained)):
        yield


@contextmanager
def rows_say(**said) -> Iterator[None]:
    """Make every run row contain these values, whatever the log says."""
    real = MemoryStore._apply

    def apply(self, data, append):
        real(self, data, msgspec.structs.replace(append, view=msgspec.structs.replace(append.view, **said)))

    with patched((MemoryStore, "_apply", apply)):
        yield


@bug
def the_run_row_is_not_what_the_log_says():
    with rows_say(active=()):
        yield


@bug
def the_run_row_forgets_when_the_run_is_due():
    with rows_say(due_at=None):
        yield


@bug
def time_goes_back_with_the_clock():
    def tick(self):
        self.at = self.services.store.now()
        self._stamp = repr(self.at)
        return self.at

    with patched((journal.Journal, "tick", tick)):
        yield


@bug
def an_answer_is_recorded_twice():
    real = journal.Journal.record

    def record(self, event, **named):
        real(self, event, **named)
        if isinstance(event, events.QuestionAnswered):
            self.state.seq += 1
            row = seal_row(
                self.digest, self.state.run_id, self.state.seq, self.at, self._stamp, event_encoding.encode(event),
                self.services.salts(),
            )  # fmt: skip
            self._unsaved.append(row)
            self.digest = row.digest

    with patched((journal.Journal, "record", record)):
        yield


# --- taking a run up again ---------------------------------------------------------------------------


@bug
def the_router_is_asked_again():
    def spoil(taken):
        last = max(taken.state.nodes.items(), key=lambda known: known[1].completed_seq, default=(None, None))
        name, node = last
        if name in taken.flow.branches and node.completed_seq:
            outcomes.route(taken.flow, name, taken.state.values)

    with on_take_up(spoil):
        yield


@bug
def the_iteration_count_is_reset():
    def spoil(taken):
        for name, node in taken.state.nodes.items():
            if name not in taken.state.open and node.status == "completed":
                node.iteration = 0

    with on_take_up(spoil):
        yield


@bug
def the_attempt_count_is_reset():
    def spoil(taken):
        for name in taken.state.open:
            node = taken.state.nodes[name]
            if node.status == "interrupted" and node.attempt > 1:
                node.attempt -= 1

    with on_take_up(spoil):
        yield


@bug
def a_crash_resets_the_count_of_failures():
    def spoil(taken):
        for node in taken.state.nodes.values():
            node.failures = 0
            if node.items is not None:
                node.items.failures.clear()

    with on_take_up(spoil):
        yield


@bug
def a_crash_forgets_how_long_to_wait_before_the_next_try():
    def spoil(taken):
        for node in taken.state.nodes.values():
            if node.retry_at is not None:
                node.retry_at = 0.0

    with on_take_up(spoil):
        yield


@bug
def an_item_that_is_done_runs_again():
    def spoil(taken):
        for node in taken.state.nodes.values():
            if node.items is not None and node.items.done and node.status != "completed":
                item = next(iter(node.items.done))
                del node.items.done[item]
                node.items.again[item] = 0.0

    with on_take_up(spoil):
        yield


@bug
def a_fan_out_is_listed_again():
    def spoil(taken):
        for name in taken.state.open:
            node = taken.state.nodes[name]
            if node.items is not None and node.items.done:
                node.items = None

    with on_take_up(spoil):
        yield


@bug
def timers_are_forgotten():
    def spoil(taken):
        for key in [key for key, wait in taken.state.waits.items() if wait.signal is None]:
            del taken.state.waits[key]

    with on_take_up(spoil):
        yield


@bug
def signals_that_nobody_has_taken_are_forgotten():
    with on_take_up(lambda taken: taken.state.signals.clear()):
        yield


@bug
def questions_are_forgotten():
    with on_take_up(lambda taken: taken.state.questions.clear()):
        yield


@bug
def what_steps_kept_is_forgotten():
    def spoil(taken):
        for name in taken.state.open:
            taken.state.nodes[name].kept = {}

    with on_take_up(spoil):
        yield


@bug
def a_rewind_does_not_count_executions():
    real = preparation._rewind

    def rewind(*args, **named):
        return msgspec.structs.replace(real(*args, **named), executions={})

    with patched((preparation, "_rewind", rewind)):
        yield


@bug
def what_waits_in_the_inbox_is_recorded_a_second_time():
    with patched((Holdings, "claim_for", lambda self, run_id, request, **named: self.claim(run_id))):
        yield


@bug
def a_claim_without_a_reply_is_taken_for_none():
    with patched((Renewal, "doubt", lambda self: None)):
        yield


@bug
def a_fan_out_whose_items_wait_is_left_behind():
    with patched(rewritten(runner.Runner, "_round", "(state.running or self._asked)", "self._asked")):
        yield


@bug
def a_worker_takes_what_still_unwinds_in_it():
    def with_all(wanted, self, limit):
        without = tuple(run_id for run_id in wanted.without if run_id not in self._going)
        return msgspec.structs.replace(wanted, without=without)

    with patched(after(worker.Worker, "_wanted", with_all)):
        yield


# --- deciding ----------------------------------------------------------------------------------------


@bug
def a_join_fires_at_its_first_arrival():
    real = readiness.Readiness.__init__

    def init(self, topology, state):
        real(self, topology, state)
        self.joins = dict.fromkeys(topology.joins, 0)
        self.rebuild(state)

    with patched((readiness.Readiness, "__init__", init)):
        yield


@bug
def a_timer_fires_early():
    real = decides._over

    def over(state, now, wakes, lapses):
        return real(state, now + 0.2, wakes, lapses)

    with patched((decides, "_over", over)):
        yield


@bug
def a_timer_fires_twice():
    real = perform._fire

    def fire(journal, key):
        waits = dict(journal.state.waits)
        real(journal, key)
        journal.state.waits[key] = waits[key]
        real(journal, key)

    with patched((perform, "_fire", fire)):
        yield


@bug
def what_must_not_run_twice_is_simply_run_again():
    real = decides._cut

    def cut(options, *args, **named):
        return real(msgspec.structs.replace(options, on_interrupt="rerun"), *args, **named)

    with patched((decides, "_cut", cut)):
        yield


# --- nodes -------------------------------------------------------------------------------------------


@bug
def the_input_is_taken_when_the_node_is_called():
    real = runner.Runner._call

    def call(self, body):
        if body.key[1] is None:
            body.given = self.flow.state.load(self.state.values)
        real(self, body)

    with patched((runner.Runner, "_call", call)):
        yield


@bug
def a_step_is_kept_for_other_executions_too():
    kept_step, keep_step, kept = attempt.Attempt.kept_step, attempt.Attempt.keep_step, {}

    def place(self, slot):
        visit = (self._header["node"], self._header["iteration"], self._item, slot)
        return (id(self._services.store.disk), self._journal.state.run_id, *visit)

    def take(self, slot, codec):
        return kept_step(self, slot, codec) or kept.get(place(self, slot), [])

    async def keep(self, slot, value, codec):
        kept[place(self, slot)] = [value]
        return await keep_step(self, slot, value, codec)

    with patched((attempt.Attempt, "kept_step", take), (attempt.Attempt, "keep_step", keep)):
        yield


@bug
def a_step_is_not_kept():
    async def keep_step(self, slot, value, codec):
        return codec.decode(self.encode(value, slot.label, codec), path=slot.label, node=self._header["node"])

    with patched((attempt.Attempt, "keep_step", keep_step)):
        yield


@bug
def a_chunk_is_lost():
    real = streams.Segment.close

    def close(self):
        real(self)
        del self.chunks[2:], self.steps[2:]

    with patched((streams.Segment, "close", close)):
        yield


@bug
def the_chunks_of_a_step_are_recorded_later():
    note = attempt.Attempt.note

    def later(self, kind, **fields):
        self.stream.segment.has_steps = False
        return note(self, kind, **fields)

    with patched((attempt.Attempt, "note", later)):
        yield


@bug
def the_idempotency_key_changes_with_the_attempt():
    def key(self, name=""):
        return f"{self.run_id}.{self.node}.{self.iteration}.{self.item}.{self.attempt}.{name}"

    with patched((_AnyContext, "idempotency_key", key)):
        yield


@bug
def the_idempotency_key_is_the_same_in_every_round():
    def key(self, name=""):
        return f"{self.run_id}.{self.node}.{self.item}.{name}"

    with patched((_AnyContext, "idempotency_key", key)):
        yield


# --- durability, upkeep, queues ----------------------------------------------------------------------


@bug
def what_must_not_run_twice_waits_for_no_disk():
    with patched((runner.Runner, "_careful", lambda self, calls: False)):
        yield


@bug
def a_request_is_struck_out_when_it_is_read():
    real = runner.Runner.request

    def request(self, asked):
        real(self, asked)
        self.services.store.disk._data.handle(self.state.run_id, asked.id, self.state.seq)

    with patched((runner.Runner, "request", request)):
        yield


@bug
def a_compaction_takes_one_event_too_many():
    with patched(rewritten(MemoryUpkeep, "compact", "run.rows[seq - base :]", "run.rows[seq - base + 1 :]")):
        yield


@bug
def a_rewind_that_is_on_its_way_is_compacted_away():
    real = retention.compact

    def compact(*args, rewinds, **named):
        return real(*args, **named)

    with patched((retention, "compact", compact)):
        yield


@bug
def a_base_is_pruned_with_the_snapshots_before_it():
    def all_before(snapshots, row, oldest):
        return [kept.seq for kept in snapshots if kept.seq < oldest]

    with patched(
        (retention, "_find_unneeded", all_before),
        rewritten(MemoryUpkeep, "retire", " and not run.snapshots[seq].base", ""),
    ):
        yield


@bug
def a_queue_takes_more_than_its_limit():
    with patched((MemoryQueues, "_room", lambda self, data: {})):
        yield


@bug
def whoever_came_first_is_taken_first_whatever_the_priority():
    with patched((memory_queues._Offer, "rank", property(lambda self: (self.since, self.run_id)))):
        yield


@bug
def a_compaction_forgets_the_lease_that_it_could_not_give_back():
    real = retention.compact

    def compact(*args, doubt, **named):
        return real(*args, **named)

    with patched((retention, "compact", compact)):
        yield


@bug
def a_base_is_put_in_the_middle_of_a_visit_whose_events_are_read():
    with patched((retention, "_is_read", lambda state, name: False)):
        yield


@bug
def what_must_not_run_twice_goes_on_behind_a_step_that_is_not_durable():
    real = attempt.Attempt.__init__

    def init(self, runner, body, start, **named):
        real(self, runner, body, start, **named)
        self._sync = runner.journal.state.options.get("durability", "sync") == "sync"

    with patched((attempt.Attempt, "__init__", init)):
        yield


@bug
def a_wait_that_the_node_gave_up_still_receives_signals():
    with patched((attempt.Attempt, "_withdraw", lambda self: self._cancelled.clear())):
        yield
