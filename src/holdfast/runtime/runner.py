"""Drive one run: ask `decide`, record what it says, save, call the nodes, take up how they ended, and again.

Order is the promise. What ended and what starts because of it are recorded together and saved in one append; only when that is
durable are the nodes called (`durability="sync"`, the default). `"async"` calls them while the append is under way
and waits for it before the
next one; `"exit"` saves when the run stops. A node that is not idempotent is always called after its start is durable.

The runner stops when the run is over, or cannot go on without somebody: then it gives the lease back. A `Halt`
(shutdown, cancel, timeout)
stops the bodies first, and records what they were cut in.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from holdfast.core import commands, events
from holdfast.core.decide import decide
from holdfast.core.events import Failure
from holdfast.core.graph import Flow
from holdfast.errors import ResumeRefused
from holdfast.runtime import ends, failures
from holdfast.runtime.bodies import Body, Stopped
from holdfast.runtime.clock import Timer
from holdfast.runtime.context import Context
from holdfast.runtime.journal import Journal
from holdfast.storage.contract import Request

ENDED = frozenset({"completed", "failed", "cancelled", "interrupted"})
_EXIT_EVENTS_MAX = 1000


class Halt(msgspec.Struct, frozen=True):
    """Why the bodies are being stopped, and what is recorded when they have."""

    kind: Literal["interrupt", "cancel", "timeout"]
    by: str | None = None
    reason: str | None = None


class Runner:
    """One run in this engine's hands."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.services = journal.services
        self.flow: Flow[Any] = journal.flow
        self.state = journal.state
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bodies: dict[tuple[str, int | None], Body] = {}
        self._haunted: dict[tuple[str, int | None], Body] = {}
        """Threads that were given up and still live."""
        self._ended: list[Body] = []
        self._requests: list[Request] = []
        self._halt: Halt | None = None
        self._grace: Timer | None = None
        self._advancing = False
        self._saving = False
        self._again = False
        self._timer: Timer | None = None

    # --- from outside ---------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """Take up what somebody wants of this run."""
        if all(request.id != known.id for known in self._requests):
            self._requests.append(request)
            self._advance()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start nothing new; stop what runs after `grace_s` seconds, at once if asked a second time."""
        if self._halt is None:
            self._halt = halt
        if self._grace is not None:
            self._grace.cancel()
        if grace_s > 0 and self._bodies:
            clock = self.services.clock
            self._grace = clock.call_at(clock.now() + grace_s, self._stop_bodies)
        else:
            self._stop_bodies()

    def _stop_bodies(self) -> None:
        for body in list(self._bodies.values()):
            body.stop()
        self._advance()

    # --- the loop -------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Carry the run on until it is over or needs somebody."""
        deadline = self._arm_timeout()
        try:
            self._advance()
            await self.done
        finally:
            self._abandon()
            for timer in (deadline, self._grace, self._timer):
                if timer is not None:
                    timer.cancel()

    def _advance(self) -> None:
        """Go on as far as possible: called whenever something ended, somebody spoke, or it is time.

        There is no coroutine behind a run, only these calls: a step costs one pass of the event loop, not three.
        """
        self._again = True
        if self._advancing or self._saving:
            return
        self._advancing = True
        try:
            while self._again and not self._saving and not self.done.done():
                self._again = False
                self._round()
        except BaseException as fault:  # noqa: BLE001 - whoever drives the run is told
            self._fail(fault)
        finally:
            self._advancing = False

    def _round(self) -> None:
        """Take up, decide, save, and then call."""
        journal = self.journal
        journal.tick()
        self._take_ends()
        self._take_requests()
        starts, wake_at = self._decide()
        journal.due_at = wake_at
        busy = starts or self._bodies or self._haunted or wake_at is not None
        idle = self.state.status in ENDED or not busy or (self._halt is not None and not self._bodies)
        if wake_at is not None and not idle:
            self._wake_later(wake_at)
        if journal.dirty and self._must_save(starts, idle=idle):
            self._save(starts, idle=idle)
        elif idle:
            self.services.store.release(self.state.run_id, self.services.holder.id, journal.fence)
            self._finish()
        else:
            self._call_all(starts)

    def _must_save(self, starts: list[events.NodeEvent], *, idle: bool) -> bool:
        """Not now only if the run saves when it stops, and nothing that starts wants its start to be durable."""
        if idle or self.state.options.get("durability") != "exit":
            return True
        return self._careful(starts) or self.state.seq - self.journal.saved_seq >= _EXIT_EVENTS_MAX

    def _careful(self, starts: list[events.NodeEvent]) -> bool:
        return any(not self.flow.nodes[start.node].options.idempotent for start in starts)

    def _save(self, starts: list[events.NodeEvent], *, idle: bool) -> None:
        """Save, and call the nodes when that is durable; with `durability="async"` right away. The last save gives
        the lease back.
        """
        self._saving = True
        ahead = not idle and self.state.options.get("durability") == "async" and not self._careful(starts)

        def done(error: BaseException | None) -> None:
            self._saving = False
            if error is not None:
                self._fail(error)
            elif idle:
                self._finish()
            elif not self.done.done():
                if not ahead:
                    self._call_all(starts)
                if self._again:
                    self._advance()

        self.journal.save(done, release=idle)
        if ahead:
            self._call_all(starts)

    def _call_all(self, starts: list[events.NodeEvent]) -> None:
        for start in starts:
            self._call(start)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """The lease or the store is lost, or something here is wrong: whoever drives the run is told, and nothing
        more is recorded.
        """
        if not self.done.done():
            self.done.set_exception(error)

    def _wake_later(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        clock, store = self.services.clock, self.services.store
        self._timer = clock.call_at(clock.now() + max(0.0, at - store.now()), self._advance)

    def _arm_timeout(self) -> Timer | None:
        seconds = self.state.options.get("timeout_s")
        if seconds is None:
            return None
        reason = f"the run took longer than {seconds:g} s"
        clock, store = self.services.clock, self.services.store
        left = max(0.0, self.state.asked_at + seconds - store.now()) if self.state.asked_at else seconds
        return clock.call_at(clock.now() + left, lambda: self.halt(Halt("timeout", reason=reason)))

    def _abandon(self) -> None:
        """Nobody drives the run any more: stop what still runs, record nothing."""
        for body in list(self._bodies.values()):
            body.stop()

    # --- what ended -----------------------------------------------------------------------------------

    def _body_ended(self, body: Body) -> None:
        self._bodies.pop(body.key, None)
        if not body.has_gone:
            self._haunted[body.key] = body
        self._ended.append(body)
        if self._bodies:  # others may end in the same pass of the loop: they share an append
            asyncio.get_running_loop().call_soon(self._advance)
        else:
            self._advance()

    def _body_gone(self, body: Body) -> None:
        if self._haunted.get(body.key) is body:
            del self._haunted[body.key]
            self._advance()

    def _take_ends(self) -> None:
        ended, self._ended = self._ended, []
        for body in ended:
            if isinstance(body.error, Stopped) and not body.timed_out:
                continue  # the halt records it
            for event in self._events_of(body):
                self.journal.record(event)

    def _events_of(self, body: Body) -> list[events.Event]:
        """What the end of a body means for the run."""
        name, item = body.key
        node, visit = self.flow.nodes[name], self.state.nodes[name]
        header = ends.visit_of(name, visit)
        error = body.error
        if error is None:
            try:
                if item is None:
                    return ends.completed(
                        self.flow, self.state, self.journal.writers, name, body.given, body.value
                    )
                return [
                    ends.item_completed(
                        self.flow, name, header | {"attempt": body.context.attempt}, item, body.value
                    )
                ]
            except Exception as raised:  # noqa: BLE001 - what it returned does not fit, or a reducer raised
                error = raised
        now, luck = self.journal.at, self.services.luck
        if item is None:
            return [ends.failed(node, visit, error, now=now, luck=luck, timed_out=body.timed_out)]
        header["attempt"] = body.context.attempt
        return [
            ends.item_failed(node, visit, header, item, error, now=now, luck=luck, timed_out=body.timed_out)
        ]

    # --- what is next ---------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[events.NodeEvent], float | None]:
        """Record what `decide` says until it has no more to say. Returns what is to be called, and when to look again."""
        starts: list[events.NodeEvent] = []
        if self._halt is not None:
            if not self._bodies:
                self._finish_halt(self._halt)
            return [], None
        while True:
            wake_at: float | None = None
            again = False
            for command in decide(self.flow, self.state, self.journal.at, self.journal.ready):
                if isinstance(command, commands.WakeAt):
                    wake_at = command.at
                elif not self._haunted or not self._is_haunted(command):
                    again = self._perform(command, starts) or again
            if not again:
                return starts, wake_at

    def _is_haunted(self, command: commands.AnyCommand) -> bool:
        """No new attempt starts while the thread of the old one lives."""
        if isinstance(command, commands.StartNode):
            return any(name == command.node for name, _ in self._haunted)
        return isinstance(command, commands.StartItem) and (command.node, command.item) in self._haunted

    def _perform(self, command: commands.AnyCommand, starts: list[events.NodeEvent]) -> bool:
        """Record the events that a command stands for; those whose body is to be called once they are durable
        are added to `starts`.
        True: there may be more to decide now.
        """
        record = self.journal.record
        match command:
            case commands.StartNode(node, iteration, execution, attempt, took):
                started = events.NodeStarted(
                    node=node, iteration=iteration, execution=execution, attempt=attempt, took=took
                )
                record(started)
                if self.flow.nodes[node].options.each:
                    if self.state.nodes[node].items is None:
                        self._list_items(node)
                    return True  # a fan-out is not called itself, only its items
                starts.append(started)
            case commands.StartItem(node, item, attempt):
                header = ends.visit_of(node, self.state.nodes[node]) | {"attempt": attempt}
                begun = events.ItemStarted(**header, item=item)
                record(begun)
                starts.append(begun)
            case commands.ScheduleNode(node, iteration, execution, why):
                record(events.NodeScheduled(node=node, iteration=iteration, execution=execution, why=why))
            case commands.CompleteRun():
                record(events.RunCompleted())
            case commands.FailRun(failure, failed):
                record(events.RunFailed(failure=msgspec.structs.replace(failure, traceback=""), node=failed))
            case commands.CompleteLayer():
                self._complete_layer(command)
                return True
            case _:
                self._perform_on_visit(command)
                return True
        return False

    def _perform_on_visit(self, command: commands.AnyCommand) -> None:
        """Commands about one open visit."""
        assert not isinstance(
            command, (commands.WakeAt, commands.CompleteRun, commands.FailRun, commands.CompleteLayer)
        )
        record, name = self.journal.record, command.node
        header = ends.visit_of(name, self.state.nodes[name])
        match command:
            case commands.CompleteItems():
                try:
                    produced = ends.items_completed(self.flow, self.state, self.journal.writers, name)
                except Exception as raised:  # noqa: BLE001 - two items set one field, or a reducer raised
                    produced = [
                        events.NodeFailed(**header, failure=failures.describe(raised, kind="partial"))
                    ]
                for event in produced:
                    record(event)
            case commands.FailItems():
                told = f"item {command.item}: {command.failure.message}"
                record(
                    events.NodeFailed(
                        **header, failure=msgspec.structs.replace(command.failure, message=told)
                    )
                )
            case commands.RouteNode():
                record(self._route(name, header))
            case commands.SkipNode():
                self._skip_cut(name, header)
            case commands.AskAboutNode():
                record(self._question(name, header))

    def _list_items(self, name: str) -> None:
        """Ask `each` what a fan-out goes over. The list is part of the same append as the start."""
        node, visit = self.flow.nodes[name], self.state.nodes[name]
        header = ends.visit_of(name, visit)
        assert node.each is not None
        try:
            listed = list(node.each(self.flow.state.load(visit.input or {})))
            codec = self.flow.item_codecs[name]
            items = [
                codec.encode(item, path=f"item {number}", node=name) for number, item in enumerate(listed)
            ]
        except Exception as raised:  # noqa: BLE001 - user code
            now, luck = self.journal.at, self.services.luck
            self.journal.record(ends.failed(node, visit, raised, now=now, luck=luck, timed_out=False))
        else:
            self.journal.record(events.ItemsListed(**header, items=items))

    def _route(self, name: str, header: dict[str, Any]) -> events.Event:
        try:
            return events.NodeRouted(**header, routes=ends.route(self.flow, name, self.state.values))
        except ends.RouterError as fault:
            return events.RoutingFailed(
                **header, failure=failures.describe(fault.__cause__ or fault, kind="partial")
            )

    def _complete_layer(self, command: commands.CompleteLayer) -> None:
        try:
            changes, routes = ends.layer_merged(self.flow, self.state, command.nodes)
        except ends.LayerError as fault:
            header = ends.visit_of(fault.node, self.state.nodes[fault.node])
            cause = fault.__cause__ or fault
            self.journal.record(
                events.RoutingFailed(**header, failure=failures.describe(cause, kind="partial"))
            )
        else:
            self.journal.record(
                events.LayerCompleted(
                    layer=command.layer, nodes=list(command.nodes), changes=changes, routes=routes
                )
            )

    def _skip_cut(self, name: str, header: dict[str, Any]) -> None:
        """`on_interrupt="skip"`: nothing takes the place of the result. A router that cannot decide then fails as
        any router does.
        """
        try:
            self.journal.record(self._skipped(name, header, reason="on_interrupt"))
        except ResumeRefused as fault:
            cause = fault.__cause__ or fault
            self.journal.record(events.NodeSkipped(**header, reason="on_interrupt"))
            self.journal.record(
                events.RoutingFailed(**header, failure=failures.describe(cause, kind="partial"))
            )

    def _question(self, name: str, header: dict[str, Any]) -> events.QuestionAsked:
        visit = self.state.nodes[name]
        return events.QuestionAsked(
            **header,
            key=f"{name}.{visit.iteration}.{visit.execution}.{visit.attempt}",
            text=f"{name!r} was cut in the middle and is not idempotent: its effect may or may not have happened. "
            "Retry it, skip it, or abort the run?",
            options=["retry", "skip", "abort"],
        )

    # --- calling --------------------------------------------------------------------------------------

    def _call(self, start: events.NodeEvent) -> None:
        """Call the node of a start that is durable now."""
        node = self.flow.nodes[start.node]
        item = start.item if isinstance(start, events.ItemStarted) else None
        context = Context(
            run_id=self.state.run_id,
            flow=self.flow.name,
            node=start.node,
            iteration=start.iteration,
            execution=start.execution,
            attempt=start.attempt,
            item=item,
            resources=self.services.resources,
        )
        body = Body((start.node, item), context, self._body_ended, self._body_gone)
        try:
            body.given = self._given(start, item)
        except Exception as raised:  # noqa: BLE001 - the state does not fit its type any more
            body.error, body.has_gone = raised, True
            self._body_ended(body)
            return
        self._bodies[body.key] = body
        if node.options.timeout_s is not None:
            body.limit(self.services.clock, node.options.timeout_s)
        arguments = (body.given, context) if node.takes_context else (body.given,)
        if node.is_async:
            body.call(node.fn, arguments)
        elif self.services.threads is not None:
            body.call_in_thread(self.services.threads, node.fn, arguments)
        else:
            body.call_inline(node.fn, arguments)

    def _given(self, start: events.NodeEvent, item: int | None) -> Any:
        """The node's own copy of what it is given: typed, and shared with nobody."""
        visit = self.state.nodes[start.node]
        if item is None:
            return self.flow.state.load(visit.input or {})
        assert visit.items is not None
        return self.flow.item_codecs[start.node].decode(
            visit.items.values[item], path=f"item {item}", node=start.node
        )

    # --- halts and requests ---------------------------------------------------------------------------

    def _finish_halt(self, halt: Halt) -> None:
        """All bodies have ended: record what was cut, and how the run stands."""
        if self.state.status in ENDED:
            return
        for name in [name for name in self.state.open if self.state.nodes[name].status == "running"]:
            header = ends.visit_of(name, self.state.nodes[name])
            self.journal.record(events.NodeInterrupted(**header, reason=halt.reason or halt.kind))
        if halt.kind == "cancel":
            self.journal.record(events.RunCancelled(by=halt.by, reason=halt.reason))
        elif halt.kind == "timeout":
            told = f"{halt.reason}; resume it to give it as long again"
            self.journal.record(events.RunFailed(failure=Failure("partial", "RunTimeout", told)))
        else:
            self._finish_interrupt(halt)

    def _finish_interrupt(self, halt: Halt) -> None:
        """A run whose last node ended in time is over; any other is interrupted."""
        for command in decide(self.flow, self.state, self.journal.at, self.journal.ready):
            if isinstance(command, (commands.CompleteRun, commands.FailRun)):
                self._perform(command, [])
                return
        if self.state.status != "paused":
            self.journal.record(events.RunInterrupted(reason=halt.reason))

    def _take_requests(self) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            self.journal.taken.append(request.id)
            if self.state.status in ENDED:
                continue
            try:
                self.perform_request(request)
            except ResumeRefused:
                continue  # it came too late: the run has moved on

    def perform_request(self, request: Request) -> None:
        """Do what a request asks. Raises `ResumeRefused` where the run does not allow it."""
        match request.verb:
            case "cancel":
                self.halt(Halt("cancel", request.by, request.reason))
            case "pause":
                if not self.state.paused:
                    self.journal.record(events.RunPaused(by=request.by, reason=request.reason))
            case "retry":
                self.retry(
                    request.body.get("node"),
                    fresh=bool(request.body.get("fresh")),
                    by=request.by,
                    reason=request.reason,
                )
            case "skip":
                self.skip(
                    request.body["node"], request.body.get("update"), by=request.by, reason=request.reason
                )
            case _:
                raise ResumeRefused(
                    self.state.run_id, f"this version does not know the request {request.verb!r}"
                )

    def retry(self, node: str | None, *, fresh: bool, by: str | None, reason: str | None) -> None:
        """Try a visit that has not ended again, now."""
        for name in self._stuck(node, "retry"):
            header = ends.visit_of(name, self.state.nodes[name])
            self.journal.record(
                events.NodeScheduled(**header, why="retry", fresh=fresh, by=by, reason=reason)
            )

    def skip(self, node: str, update: Any, *, by: str | None, reason: str | None) -> None:
        """Put this update in place of the result of a visit that has not ended, and go on."""
        (name,) = self._stuck(node, "skip")
        visit = self.state.nodes[name]
        header = ends.visit_of(name, visit)
        took = 0
        if visit.input is None:  # due, and never begun
            header["iteration"] = visit.iteration + 1
            took = self.state.arrivals[name] if name in self.flow.topology.joins else 1
        self.journal.record(self._skipped(name, header, took=took, update=update, by=by, reason=reason))

    def _skipped(
        self, name: str, header: dict[str, Any], *, update: Any = None, **said: Any
    ) -> events.NodeSkipped:
        """A skip with this update in place of a result. `said`: who, why, and what it takes up."""
        changes = self.flow.state.by_hand(update, node=name)
        if self.state.schedule == "layered":
            return events.NodeSkipped(**header, changes=changes, **said)
        changes = ends.reduced(self.flow, self.state.values, name, changes)
        try:
            routes = ends.route(self.flow, name, self.state.values, [changes])
        except ends.RouterError as fault:
            raise ResumeRefused(
                self.state.run_id,
                f"skipping {name!r} needs a route: {fault}. Give an update with which its router can decide.",
            ) from fault
        return events.NodeSkipped(**header, changes=changes, routes=routes, **said)

    def _stuck(self, node: str | None, verb: str) -> list[str]:
        """The visits that somebody can retry or skip: failed, cut, waiting, or due and not begun."""
        nodes = self.state.nodes
        names = [
            name
            for name in self.state.open
            if nodes[name].status in ("failed", "interrupted", "waiting", "pending")
        ]
        if verb == "retry":
            names += [name for name in self.state.open if not nodes[name].routed]
        if node is None:
            names = [name for name in names if nodes[name].status != "pending"]
        elif node in names:
            return [node]
        elif node not in self.flow.nodes:
            raise ResumeRefused(self.state.run_id, f"flow {self.flow.name!r} has no node {node!r}")
        else:
            visit = nodes.get(node)
            is_now = visit.status if visit is not None else "not reached"
            raise ResumeRefused(
                self.state.run_id,
                f"node {node!r} is {is_now}; only a failed, cut or waiting node "
                f"can be {'tried again' if verb == 'retry' else 'skipped'}",
            )
        if not names:
            raise ResumeRefused(
                self.state.run_id,
                f"no node of it has failed, was cut or waits, so there is nothing to {verb}",
            )
        return names
