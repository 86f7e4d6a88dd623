"""The child runs of one attempt: starting them, and waiting for their ends.

Invariants
- The id of a child follows from its place in the caller (`place_of`), not from the execution: an attempt that is repeated finds
  the child that an earlier one started. Within one execution the log decides, and a later attempt's input is ignored.
- A run that has this id is looked up before `ChildStarted` is recorded, so that a start is never refused in an append that also
  has the completion of another node. The child of an earlier execution is adopted if flow, input and caller are the same.
- The end of an adopted child may have come before: its log is read once, when `ChildStarted` is durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.codec import Codec
from holdfast.core.events import Caller, Failure
from holdfast.core.graph import Flow
from holdfast.core.run_state import ENDED, RunState
from holdfast.core.slots import Slot
from holdfast.errors import ChildFailed, ContextError, RunNotFound, StateError, WaitTimeout, end_sentence
from holdfast.reading import ends, history

if TYPE_CHECKING:
    from holdfast.reading.views import Run
    from holdfast.runtime.calls.attempt import Attempt
    from holdfast.runtime.journal import Journal
    from holdfast.storage.contract import Along, Append, RunRow

S = TypeVar("S")
DEPTH_MAX = 50
"""How many callers a run may have, one calling the next."""
_CALLER_CHARS_MAX = 60
_DIGEST_CHARS = 16


class StartOptions(TypedDict, total=False):
    """The options of `Context.start`, for type checkers."""

    key: str | None
    queue: str | None
    priority: int
    labels: Mapping[str, str] | None
    run_timeout: float | None
    cancel_with_caller: bool


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a child run is started: the options of `Context.start`."""

    key: str | None = None
    queue: str | None = None
    priority: int = 0
    labels: Mapping[str, str] | None = None
    run_timeout: float | None = None
    cancel_with_caller: bool = False


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in its caller a child is started."""

    run_id: str
    """The id of the child."""
    caller: Caller


class Families(Protocol):
    """Creates child runs, and executes them where this engine may."""

    def prepare(self, flow: Flow[Any], given: Any, place: Place, options: ChildOptions) -> Append:
        """Return the first append of a child run. Raises `StateError` and `SettingError` if input or options do not fit."""

    async def execute(self, run_id: str, drive: Awaitable[Run[Any]], *, is_new: bool = False) -> Run[Any]:
        """Drive a run, and execute its family, until all of it has ended or can only wait."""

    async def moves(self, run_id: str) -> bool:
        """Return whether some run of a family moves by itself, or will."""

    def moved(self, along: Along) -> None:
        """Note that an append is durable which has started children, or left requests for other runs."""


class ChildRun(Generic[S]):
    """A child run that a node has started: the handle that `ctx.start` returns, for `ctx.wait_for`."""

    def __init__(self, id: str, flow: Flow[S], key: str, owner: object) -> None:
        self.id = id
        """The id of the child run."""
        self.flow = flow
        self.key = key
        self._owner = owner
        self._waits = 0
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<ChildRun {self.id} {self.flow.name}>"


def place_of(state: RunState, header: Mapping[str, Any], item: int | None, key: str, fresh: int) -> Place:
    """Return the place of a child in its caller: its id is the shortened id of the caller and a digest of the place."""
    node, iteration = header["node"], header["iteration"]
    inside = (node, iteration, item, key, fresh)
    caller = state.run_id
    root = state.key_root(node, iteration, item)
    return Place(
        run_id=f"{caller[:_CALLER_CHARS_MAX]}.{_digest(caller, *inside)}",
        caller=Caller(caller, _digest(root, *inside), state.depth + 1),
    )


def _digest(*parts: Any) -> str:
    return sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:_DIGEST_CHARS]


class Children:
    """Starts the child runs of an attempt, and waits for their ends."""

    def __init__(self, work: Attempt, journal: Journal, header: Mapping[str, Any], item: int | None) -> None:
        self._work = work
        self._journal = journal
        self._services = journal.services
        self._header = header
        self._item = item

    async def start(
        self, flow: Flow[S], given: Any, options: ChildOptions, *, durable: bool = True
    ) -> ChildRun[S]:
        """Start a child run, unless this execution has started it. If `durable` is true, returns when that is durable."""
        node, state = self._header["node"], self._journal.state
        if not isinstance(flow, Flow):
            raise ContextError(
                f"node {node!r}: {flow!r:.80} is not a flow; give what graph.compile() returns"
            )
        key = flow.name if options.key is None else f"{options.key}"
        self._work.claim(f"child:{key}", f"the child {key!r}")
        place = place_of(state, self._header, self._item, key, self._work.visit.fresh)
        known = state.children.get(place.run_id)
        handle = ChildRun(place.run_id, flow, key, self)
        if known is not None and known.execution == self._header["execution"]:
            if known.flow != flow.name:
                raise ContextError(
                    f"node {node!r} has started the child {key!r} with flow {known.flow!r}, and now asks for {flow.name!r}. Give "
                    f"the other child another key, or begin anew: `holdfast retry {state.run_id} {node} --fresh`"
                )
            return handle
        if place.caller.depth > DEPTH_MAX:
            raise ContextError(
                f"node {node!r} would start a child run of a child run … more than {DEPTH_MAX} deep. Flow {flow.name!r} probably "
                "calls itself without end."
            )
        try:
            first = self._services.families.prepare(flow, given, place, options)
        except StateError as misfit:
            raise StateError(
                f"the input of the child {key!r} does not fit flow {flow.name!r}: {misfit}", node=node
            ) from misfit
        adopted = await self._find(first)
        seq = self._record(handle, first, options, adopted=adopted is not None)
        if adopted is not None:
            await self._work.durable(seq)
            await self._look_at(handle.id)
        elif durable:
            await self._work.durable(seq)
        return handle

    def _record(self, handle: ChildRun[Any], first: Append, options: ChildOptions, *, adopted: bool) -> int:
        if not adopted:
            self._journal.starts.append(first)
        return self._work.note(
            events.ChildStarted,
            slot=f"child:{handle.key}",
            run=handle.id,
            flow=handle.flow.name,
            cancels=options.cancel_with_caller,
            adopted=adopted,
        )

    async def _find(self, first: Append) -> RunRow | None:
        """Return the run that has the id of a child, if there is one and it is the same child. Raises `ContextError` if it is
        another run.
        """
        node, create = self._header["node"], first.create
        assert create is not None
        try:
            row = await self._services.reading.call(self._services.store.run, first.run_id)
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
        """Read the log of a child, and record its end if it has ended since the end that is recorded here. Returns whether the
        child has ended.
        """
        store = self._services.store
        with suppress(RunNotFound):
            found = await self._services.reading.call(history.load, store, run_id)
            if found.status not in ENDED or found.told is None:
                return False
            child = self._journal.state.children[run_id]
            if found.told.seq > child.ended:
                end = ends.report(found)
                self._work.record_end(end)
        return True

    async def result(
        self, handle: ChildRun[S], timeout: float | None, type: Any, *, abandons: bool = False
    ) -> Any:
        """Wait for the end of a child, and return its final state. Raises `ChildFailed` and `WaitTimeout`."""
        self._require_handle(handle)
        handle._waits += 1  # noqa: SLF001
        slot = Slot.child(handle.key, handle._waits)  # noqa: SLF001
        self._work.claim(slot.text, f"the end of the child {handle.key!r}")
        work, child = self._work, self._journal.state.children.get(handle.id)
        is_new = not work.is_waiting(slot.text) and slot.text not in work.kept()
        anew = False
        if is_new and child is not None and child.in_doubt:
            anew = not await self._look_at(handle.id)

        def wanted() -> dict[str, Any]:
            until = None if timeout is None else work.now() + timeout
            return {"run": handle.id, "until": until, "anew": anew, "abandons": abandons}

        async def begin() -> None:
            if (
                not work.is_waiting(slot.text)
                and slot.text not in work.kept()
                and not work.is_withdrawn(slot.text)
            ):
                await work.record(events.ChildAwaited, slot=slot.text, **wanted())

        again: Callable[[], object] = lambda: work.note(events.ChildAwaited, slot=slot.text, **wanted())  # noqa: E731
        with work.waiting(slot.text, begin, again, None) as wait:
            await wait()
            came = await work.until_kept(slot.text)
        if not came:
            raise WaitTimeout(
                f"node {self._header['node']!r}: the child {handle.id!r} did not end within {timeout:g} s. To see what it does: "
                f"`holdfast show {handle.id}`"
            )
        handle._has_ended = True  # noqa: SLF001
        return self._value_of(handle, came[0], type)

    def _require_handle(self, handle: Any) -> None:
        node = self._header["node"]
        if not isinstance(handle, ChildRun) or handle._owner is not self:  # noqa: SLF001
            raise ContextError(
                f"node {node!r} waits for {handle!r:.80}, which is not a child that this attempt has started; give the result of "
                "ctx.start"
            )
        if handle._has_ended or self._work.is_being_awaited(f"child:{handle.key}:"):  # noqa: SLF001
            raise ContextError(
                f"node {node!r} waits for the child {handle.key!r} twice. Wait once, and use the result in both places."
            )

    def _value_of(self, handle: ChildRun[S], end: dict[str, Any], type: Any) -> Any:
        """Return the result of a child that has ended. Raises `ChildFailed`."""
        status, failure = end["status"], end.get("failure")
        if status == "completed":
            values = end.get("values") or {}
            if type is not None:
                return Codec.of(type).decode(
                    values, path=f"the result of {handle.id!r}", node=self._header["node"]
                )
            return handle.flow.state.load(values)
        caller, node = self._journal.state.run_id, self._header["node"]
        whose = f"child run {handle.id!r} of flow {handle.flow.name!r}"
        why = f"{failure['type']}: {end_sentence(failure['message'])}" if failure else ""
        if status == "failed":
            remedy = f"holdfast resume {handle.id}"
            told = f"{whose} failed: {why} Mend it with `{remedy}`, then `holdfast resume {caller}`"
        else:
            remedy = f"holdfast retry {caller} {node} --fresh"
            told = f"{whose} was cancelled. To start another one: `{remedy}`"
        found = msgspec.convert(failure, Failure) if failure else None
        raise ChildFailed(handle.id, handle.flow.name, found, remedy, told)
