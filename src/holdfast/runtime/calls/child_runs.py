"""The child runs of one attempt: starting them, and waiting for their ends.

Invariants
- The id of a child follows from its place in the caller (`place_of`), not from the execution: an attempt that is repeated finds
  the child that an earlier one started. Within one execution the log decides, and a later attempt's input is ignored.
- A run that has this id is looked up before `ChildStarted` is recorded, so that a start is never refused in an append that also
  has the completion of another node. The child of an earlier execution is adopted if flow, input and caller are the same.
- The end of an adopted child may have come before. The child is in doubt until the node waits for it: then its log is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.budget import Budget, left_of
from holdfast.core.child_place import DEPTH_MAX, ChildOptions, place_of
from holdfast.core.codec import Codec
from holdfast.core.events import Failure, NodeEvent, Values
from holdfast.core.fold.children import has_unseen_failure
from holdfast.core.graph import Flow
from holdfast.core.run_state import ENDED, NodeState
from holdfast.core.slots import Slot
from holdfast.errors import ChildFailed, ContextError, RunNotFound, StateError, WaitTimeout, end_sentence
from holdfast.reading import ends, history
from holdfast.reading.inbox import EXECUTING, ChildEnd
from holdfast.runtime.journal import Journal
from holdfast.runtime.upgrading import upgrade
from holdfast.storage.contract import Append, RunRow

S = TypeVar("S")
T = TypeVar("T")

_WAY_OUT = " See `holdfast show "
"""What the last sentence of a `ChildFailed` begins with."""


class StartOptions(TypedDict, total=False):
    """The options of `Context.start`, for type checkers."""

    key: str | None
    queue: str | None
    priority: int
    labels: Mapping[str, str] | None
    run_timeout: float | None
    cancel_with_caller: bool
    budget: Budget | None


class ChildRun(Generic[S]):
    """A child run that a node has started: the handle that `ctx.start` returns, for `ctx.wait_for`."""

    def __init__(self, id: str, flow: Flow[S], key: str, owner: object) -> None:
        self.id = id
        """The id of the child run."""
        self.flow = flow
        self.key = key
        self._owner = owner
        self._waits = 0
        self._is_awaited = False
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<ChildRun {self.id} {self.flow.name}>"


class Work(Protocol):
    """The methods of an attempt that its child runs need."""

    failed_children: list[str]

    @property
    def visit(self) -> NodeState: ...

    def claim(self, slot: str, told: str) -> None: ...

    def refuse_in_cleanup(self, what: str) -> None: ...

    async def require_budget(self) -> None: ...

    def kept(self) -> dict[str, Any]: ...

    def note(self, kind: type[NodeEvent], **fields: Any) -> int: ...

    async def record(self, kind: type[NodeEvent], **fields: Any) -> None: ...

    def record_end(self, end: ChildEnd) -> None: ...

    async def durable(self, seq: int) -> None: ...

    def now(self) -> float: ...

    def is_waiting(self, slot: str) -> bool: ...

    def is_withdrawn(self, slot: str) -> bool: ...

    def waiting(
        self, slot: str, begin: T, again: Callable[[], object], signal: str | None
    ) -> AbstractContextManager[T]: ...

    async def until_kept(self, slot: str) -> list[Any]: ...

    async def give_turns(self) -> None: ...


class Children:
    """Starts the child runs of an attempt, and waits for their ends."""

    def __init__(self, work: Work, journal: Journal, header: Mapping[str, Any], item: int | None) -> None:
        self._work = work
        self._journal = journal
        self._services = journal.services
        self._run_id = journal.state.run_id
        self._header = header
        self._item = item

    async def start(
        self, flow: Flow[S], given: Any, options: ChildOptions, *, durable: bool = True
    ) -> ChildRun[S]:
        """Start a child run, unless this execution has started it. If `durable` is true, returns when that is durable."""
        node = self._header["node"]
        if not isinstance(flow, Flow):
            raise ContextError(
                f"node {node!r}: {flow!r:.80} is not a flow; give what graph.compile() returns"
            )
        self._work.refuse_in_cleanup("ctx.start")
        key = flow.name if options.key is None else f"{options.key}"
        self._work.claim(f"start:{key}", f"the child {key!r}")
        try:
            run_id = await self._start(flow, given, key, options, durable=durable)
        except StateError as misfit:
            raise StateError(
                f"the input of the child {key!r} does not fit flow {flow.name!r}: {misfit}", node=node
            ) from misfit
        return ChildRun(run_id, flow, key, self)

    async def _start(
        self, flow: Flow[Any], given: Any, key: str, options: ChildOptions, *, durable: bool
    ) -> str:
        """Start a child run, unless this execution has started it, and return its id."""
        self._services.families.know(
            flow
        )  # also after a crash: then the child exists, and may have to be executed here
        node, state = self._header["node"], self._journal.state
        place = place_of(state, node, self._header["iteration"], self._item, key, self._work.visit.fresh)
        known = state.children.get(place.run_id)
        if known is not None and known.execution == self._header["execution"]:
            if known.flow != flow.name:
                raise ContextError(
                    f"node {node!r} has started the child {key!r} with flow {known.flow!r}, and now asks for {flow.name!r}. Give "
                    f"the other child another key, or start over: `holdfast retry {state.run_id} {node} --fresh`"
                )
            if durable:
                await self._work.give_turns()
            return place.run_id
        if place.caller.depth > DEPTH_MAX:
            raise ContextError(
                f"node {node!r} would start a child run more than {DEPTH_MAX} deep, counted in callers. Flow {flow.name!r} "
                f"probably calls itself without end. To go on without this node: `holdfast skip {state.run_id} {node}`"
            )
        first = self._services.families.prepare(flow, given, place, self._with_budget(flow, options))
        adopted = self._find(first)
        if adopted is None:
            await self._work.require_budget()
        seq = self._work.note(  # first: it is refused if the engine has abandoned this attempt meanwhile
            events.ChildStarted,
            slot=f"child:{key}",
            run=place.run_id,
            flow=flow.name,
            cancels=options.cancel_with_caller,
            adopted=adopted is not None,
        )
        if adopted is None:
            self._journal.starts.append(first)
        if durable:
            await self._work.durable(seq)
        return place.run_id

    def _with_budget(self, flow: Flow[Any], options: ChildOptions) -> ChildOptions:
        """Return the options of a child, which gets what is left of this run's budget unless it is given one, or its plan has
        one.
        """
        state, has_own = self._journal.state, options.budget is not None or "budget" in flow.options
        if state.budget is None or has_own or state.is_over_budget:
            return options
        left = left_of(state.budget, state.spent())
        return msgspec.structs.replace(options, budget=Budget(**msgspec.structs.asdict(left)))

    async def start_by_name(
        self, name: str, fingerprint: str, given: Any, key: str, options: dict[str, Any], *, durable: bool
    ) -> str:
        """Start a child run for a node in another process, which knows the flow only by its name here. Returns its id."""
        flow = self.find(name)
        if flow.fingerprint != fingerprint:
            raise ContextError(
                f"node {self._header['node']!r} starts a child run of flow {name!r}, but the flow of this name in its process is "
                "not the one that its engine has. If the code has changed since the engine began, restart the engine; if two "
                "flows have this name, rename one."
            )
        return await self._start(flow, given, key, ChildOptions(**options), durable=durable)

    def find(self, name: str) -> Flow[Any]:
        """Return the flow that the engine knows by this name. Raises `ContextError`."""
        flow = self._services.families.flows.get(name)
        if not isinstance(flow, Flow):
            raise ContextError(
                f"node {self._header['node']!r} starts a child run of flow {name!r}, which its engine does not know. Give the "
                f"flow to the engine: Engine(…, flows=[…]), or name its file when you start the worker. Then resume run "
                f"{self._run_id!r}."
            )
        return flow

    def _find(self, first: Append) -> RunRow | None:
        """Return the run that has the id of a child, if there is one and it is the same child. Raises `ContextError` if it is
        another run.
        """
        node, create = self._header["node"], first.create
        assert create is not None
        try:
            row = self._services.store.run(first.run_id)  # one row: a hop to the reading thread takes longer
        except RunNotFound:
            return None
        if row.origin != create.origin:
            differs = "a run that another run or a person has started"
        elif row.flow != create.flow:
            differs = f"a child of flow {row.flow!r}"
        elif row.input_digest != create.input_digest:
            differs = "a child with another input"
        else:
            return row
        raise ContextError(
            f"node {node!r} starts a child run of flow {create.flow!r}, but {first.run_id!r} exists, and is {differs}. To start "
            f"another child in its place: `holdfast retry {self._journal.state.run_id} {node} --fresh`"
        )

    async def _look_at(self, run_id: str) -> bool:
        """Read the log of a child, and record its end if it has ended since the end that is recorded here and no request that
        reports it is on its way. Returns whether the end of the child is recorded. A child that was asked to resume, as its
        caller does when it is resumed itself, has not ended for good.
        """
        store, reading = self._services.store, self._services.reading
        await self._work.durable(
            self._journal.state.seq
        )  # then the inbox has no report that is recorded already
        with suppress(RunNotFound):
            # First: if the request is gone by now, the log has its outcome.
            waiting = await reading.call(store.queues.waiting, (run_id,))
            if any(one.verb in EXECUTING for one in waiting):
                return False
            found = await reading.call(history.load, store, run_id)
            if found.status not in ENDED or found.reported is None:
                return False
            end = ends.report(found)
            asked = await reading.call(lambda: store.inbox(self._services.holder.id, run_id=self._run_id))
            child = self._journal.state.children[run_id]
            if end.seq > child.ended and end.id in {one.id for one in asked}:
                return False
            if end.seq > child.ended:  # it was recorded before a rewind, and its cost with it
                self._work.record_end(msgspec.structs.replace(end, usd=0.0, tokens=0))
        return True

    async def result(
        self, handle: ChildRun[S], timeout: float | None, type: Any, *, abandons: bool = False
    ) -> Any:
        """Wait for the end of a child, and return its final state. Raises `ChildFailed` and `WaitTimeout`."""
        self._require_handle(handle)
        handle._waits += 1  # noqa: SLF001
        slot = Slot.child(handle.key, handle._waits)  # noqa: SLF001
        self._work.claim(slot.text, f"the end of the child {handle.key!r}")
        work = self._work
        is_new = not work.is_waiting(slot.text) and slot.text not in work.kept()
        anew = is_new and await self.is_mended(handle.id)
        seen = self.last_end(handle.id) if anew else 0

        def wanted() -> dict[str, Any]:
            until = None if timeout is None else work.now() + timeout
            is_anew = anew and 0 < self.last_end(handle.id) == seen  # another end may have come since
            return {"run": handle.id, "until": until, "anew": is_anew, "abandons": abandons}

        async def begin() -> None:
            if (
                not work.is_waiting(slot.text)
                and slot.text not in work.kept()
                and not work.is_withdrawn(slot.text)
            ):
                await work.record(events.ChildAwaited, slot=slot.text, **wanted())

        again: Callable[[], object] = lambda: work.note(events.ChildAwaited, slot=slot.text, **wanted())  # noqa: E731
        handle._is_awaited = True  # noqa: SLF001
        try:
            with work.waiting(slot.text, begin, again, None) as wait:
                await wait()
                came = await work.until_kept(slot.text)
        finally:
            handle._is_awaited = False  # noqa: SLF001
        if not came:
            raise WaitTimeout(
                f"node {self._header['node']!r}: the child {handle.id!r} did not end within {timeout:g} s. "
                f"{'It is cancelled. ' if abandons else ''}To start over with a new child run: `{self._fresh()}`"
            )
        handle._has_ended = True  # noqa: SLF001
        return self._value_of(handle, came[0], type)

    async def is_mended(self, run_id: str) -> bool:
        """Return whether this child is in doubt and has not ended since its end that is recorded here: because an operator
        has retried the node after the child had failed, because the child failed before the node waited for it and may have been
        resumed since, or because an earlier execution started it. If it has ended since, that is recorded.
        """
        state = self._journal.state
        child = state.children.get(run_id)
        is_in_doubt = child is not None and (child.in_doubt or has_unseen_failure(state, run_id))
        return is_in_doubt and not await self._look_at(run_id)

    def last_end(self, run_id: str) -> int:
        """Return the seq at which a child has ended, if that end is recorded here and kept for the next wait; otherwise 0."""
        child = self._journal.state.children.get(run_id)
        return child.ended if child is not None and child.end is not None else 0

    def _fresh(self) -> str:
        """Return the command that repeats the visit with new children."""
        items = "" if self._item is None else "  # repeats all its items"
        return f"holdfast retry {self._run_id} {self._header['node']} --fresh{items}"

    def _require_handle(self, handle: Any) -> None:
        node = self._header["node"]
        if not isinstance(handle, ChildRun) or handle._owner is not self:  # noqa: SLF001
            raise ContextError(
                f"node {node!r} waits for {handle!r:.80}, which is not a child that this attempt has started; give the result of "
                "ctx.start"
            )
        if handle._has_ended or handle._is_awaited:  # noqa: SLF001
            raise ContextError(
                f"node {node!r} waits for the child {handle.key!r} twice. Wait once, and use the result in both places."
            )

    def _value_of(self, handle: ChildRun[S], end: dict[str, Any], type: Any) -> Any:
        """Return the result of a child that has ended. Raises `ChildFailed`."""
        status, failure = end["status"], end.get("failure")
        if status == "completed":
            values = self._fitting_values(handle, end)
            if type is not None:
                return Codec.of(type).decode(
                    values, path=f"the result of {handle.id!r}", node=self._header["node"]
                )
            return handle.flow.state.load(values)
        caller = self._run_id
        whose = f"child run {handle.id!r} of flow {handle.flow.name!r}"
        found = msgspec.convert(failure, Failure) if failure else None
        why = end_sentence(found.describe()) if found is not None else ""
        if status == "failed":
            # The way out for a child that failed because of its own child names the child, and not the caller to resume.
            why = (
                why.partition(_WAY_OUT)[0]
                if found is not None and found.type == ChildFailed.__name__
                else why
            )
            remedy = f"See `holdfast show {handle.id}`, mend the cause, and resume {caller}: that resumes the child run too."
            told = f"{whose} failed: {why} {remedy}"
        else:
            remedy = f"To start another one: `{self._fresh()}`"
            told = f"{whose} was cancelled. {remedy}"
        failed = ChildFailed(handle.id, handle.flow.name, found, remedy, told)
        failed.beside = self._work.failed_children
        failed.beside.append(handle.id)
        raise failed

    def _fitting_values(self, handle: ChildRun[S], end: dict[str, Any]) -> Values:
        """Return the final state of a child, upgraded if it has an older version than the flow that this node calls. Raises
        `StateError` if that fails, or if the version is newer: then the state may mean something else, also if it has the fields
        of the type.
        """
        known, version = handle.flow.definition.state_version, end.get("state_version")
        if version is not None and version > known:
            raise StateError(
                f"child run {handle.id!r} has a state of version {version}, and flow {handle.flow.name!r} has version {known} "
                f"here: newer code has upgraded the child. Resume {self._run_id} with the newer code; "
                f"`holdfast state {handle.id}` prints the state of the child as plain data.",
                node=self._header["node"],
            )
        values: Values = end.get("values") or {}
        if version is None or version == known:
            return values
        try:
            return upgrade(handle.flow, values, version)
        except Exception as fault:
            raise StateError(
                f"the state of child run {handle.id!r} could not be upgraded from version {version} to version {known} of flow "
                f"{handle.flow.name!r}: {type(fault).__name__}: {end_sentence(str(fault))} Correct the upgrade, and resume "
                f"{self._run_id}.",
                node=self._header["node"],
            ) from fault
