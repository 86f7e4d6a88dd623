"""The context of a node whose function runs in another process: the requests that this process sends, and the engine's replies.

Both halves are in this module because they must know the same verbs. `DistantAttempt` is the attempt in the other process. It
gets the kept values with the order to call the function, and sends a request to the engine to record an event or to wait.
`Answering` serves these requests on the event loop.

A wait unwinds a plain function at once, as in a thread, and a coroutine after a tenth of a second, so that the process can serve
another call. But a wait that an asyncio timer or another task of the node may cancel stays in the process for `park_after`
seconds, as in the engine: unwinding would lose the timer. Meanwhile the process asks the engine again and again whether the wait
is over, because the engine cannot call it.

Invariant: only the engine, which holds the lease, records events. Requests from the process of an abandoned attempt are
refused.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.child_place import ChildOptions
from holdfast.core.events import NodeEvent
from holdfast.core.graph import Flow
from holdfast.core.kinds import FROM_PROCESS
from holdfast.core.run_state import NODE_LEVEL, NodeState
from holdfast.core.slots import CHECKPOINT, raised_text, step_text
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import BudgetExceeded, ContextError
from holdfast.reading.chunks import Step
from holdfast.runtime.calls import task_family
from holdfast.runtime.calls.attempt import Attempt
from holdfast.runtime.calls.body import Body, Parked
from holdfast.runtime.calls.child_runs import Children
from holdfast.runtime.calls.executors import Call, Threads
from holdfast.runtime.calls.process.wire import AskedByNode, Order, Told
from holdfast.runtime.calls.streams import encode_chunk
from holdfast.runtime.clock import SystemClock

T = TypeVar("T")
_PARK_SOON_S = 0.1
"""Seconds for which a wait that nothing in the node can cancel stays in the process: long enough for parallel waits to begin."""
_LOOK_S = 0.05
"""Seconds after which the process asks the engine again whether a wait is over."""


def told(call: Call) -> Told:
    """Return the facts about the attempt that the other process needs."""
    work = call.work
    context = work.body.context
    return Told(
        run_id=context.run_id,
        flow=context.flow,
        iteration=context.iteration,
        execution=context.execution,
        attempt=context.attempt,
        fresh=work.visit.fresh,
        key_root=work.key_root,
        key_name=work.key_name,
        chosen_key=work.chosen_key,
        idempotent=call.node.options.idempotent,
        kept=work.kept(),
        withdrawn=work.visit.withdrawn.get(NODE_LEVEL if call.item is None else call.item, []),
        park_after=work.park_after_s,
        has_budget=work.has_budget,
    )


class Answering:
    """Serves, in the engine, the requests of a node's context in another process. It is created on the event loop, and called
    in a thread.
    """

    def __init__(self, work: Attempt, node: str) -> None:
        self._work = work
        self._node = node
        self._loop = asyncio.get_running_loop()

    def answer(self, asked: AskedByNode) -> Any:
        """Serve a request of the node's context. Raises `Parked` if the node has to wait."""
        work, given = self._work, asked.given
        match asked.verb:
            case "record" if given["kind"] in FROM_PROCESS:
                fields = given["fields"]
                if "step" in fields:
                    work.called_elsewhere(fields["step"])
                if "failure" in fields:
                    fields["failure"] = msgspec.convert(fields["failure"], events.Failure)
                return self._wait(work.record(getattr(events, given["kind"]), **fields))
            case "until_kept":
                return self._wait(work.until_kept(given["slot"]))
            case "find_kept":
                return {
                    "kept": self._wait(work.find_kept(given["slots"])),
                    "parks": work.parks_elsewhere,
                }
            case "start_child":
                return self._wait(work.children.start_by_name(**given))
            case "last_end":
                return self._call(work.children.last_end, given["run"])
            case "is_mended":
                return self._wait(work.children.is_mended(given["run"]))
            case "withdraw":
                return self._wait(work.withdraw_durably(given["slot"], given["signal"]))
            case "hold_limit":
                return self._call(work.body.rest)
            case "go_on_with_limit":
                return (
                    self._call(work.body.go_on_with_limit)
                    if given["unwinds"]
                    else self._wait(work.body.go_on())
                )
            case "warn_of_lost_timer":
                return self._call(work.warn_of_lost_timer)
            case "warn_once":
                return self._call(work.warn_once, tuple(given["key"]), given["told"])
            case "failed_tries":
                return work.failed_tries(given["step"])
            case "wait_ends_at":
                return work.wait_ends_at(given["slot"])
            case "is_waiting":
                return work.is_waiting(given["slot"])
            case "set_aside":
                return work.set_aside(given["name"])
            case "now":
                return work.now()
            case "clock_time":
                return work.clock_time()
            case "emit":
                step = given["step"] and (given["step"][0], given["step"][1])
                return work.emit(encode_chunk(given["chunk"], self._node), given["chunk"], step)
            case "refuse_over_budget":
                return self._call(work.refuse_over_budget)
            case "cost":
                return work.add_cost(given["usd"], given["tokens"], in_step=given["in_step"])
            case "artifacts":
                folder = work.artifacts()
                os.fspath(folder)  # the engine creates the folder, so that processes do not race to create it
                return folder.made_of
            case _:
                raise ContextError(
                    f"node {self._node!r}: its process sent the unknown request {asked.verb!r}. "
                    "This is a defect in Holdfast; please report it."
                )

    def _call(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function on the event loop, and return its result."""

        async def called() -> T:
            return call(*args)

        return self._wait(called())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class DistantAttempt(Attempt):
    """An attempt in the process in which the node's function runs. It sends requests to the engine."""

    def __init__(
        self, order: Order, told: Told, ask: Callable[[str, dict[str, Any]], Any], threads: Threads
    ) -> None:
        header = {
            "node": order.node,
            "iteration": told.iteration,
            "execution": told.execution,
            "attempt": told.attempt,
        }
        started = events.NodeStarted(
            node=order.node, iteration=told.iteration, execution=told.execution, attempt=told.attempt
        )
        self._distant = _DistantBody(started, order.item, ask)
        self._begin(
            self._distant,
            header,
            told.run_id,
            idempotent=told.idempotent,
            blocks=True,
            callers=threads,
            clock=SystemClock(),
            park_after_s=told.park_after,
        )
        self._ask = ask
        self.children = DistantChildren(self, told.run_id, header, order.item, ask)
        self._luck = random.Random()  # noqa: S311 - the jitter of retries
        self._key_root = told.key_root
        self._key_name = told.key_name
        self._chosen_key = told.chosen_key
        self._level = NODE_LEVEL if order.item is None else order.item
        self._visit = NodeState(
            kept={self._level: told.kept}, fresh=told.fresh, withdrawn={self._level: told.withdrawn}
        )
        self._looking: asyncio.TimerHandle | None = None
        self._has_budget = told.has_budget

    @contextmanager
    def coroutine(self) -> Iterator[None]:
        """Run the coroutine of the node inside this context, in the current task: its waits may stay in memory. Raises `Parked`
        if the attempt was unwound, whatever the node has made of that.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self.blocks, self._loop = False, loop
        self._distant.run_in(task)
        task_family.join(loop, self.family)
        try:
            yield
        except BaseException:
            if self.body.parking is None:
                raise
        finally:
            self._is_closing = True  # waits that end with the event loop are not withdrawn
        if self.body.parking is not None:
            raise Parked(self.body.parking)

    @property
    def visit(self) -> NodeState:
        return self._visit

    @property
    def key_root(self) -> str:
        return self._key_root

    @property
    def key_name(self) -> str:
        return self._key_name

    @property
    def chosen_key(self) -> str | None:
        return self._chosen_key

    async def record(self, kind: type[NodeEvent], **fields: Any) -> None:
        self.note(kind, **fields)

    def note(self, kind: type[NodeEvent], **fields: Any) -> int:
        if not self._ends_call(kind, fields):
            self._require_current()
        self._withdraw()
        self._ask("record", {"kind": kind.__name__, "fields": fields})
        withdrawn = self._visit.withdrawn[self._level]
        if kind in (events.StepCompleted, events.StepStarted, events.StepFailed):
            self._note_step(kind, fields)
        elif kind is events.NodeCheckpointed:
            self.kept()[CHECKPOINT] = fields["value"]
        elif kind is events.SignalSetAside:
            del self.kept()[fields["slot"]]
        elif fields["slot"] in withdrawn:  # the wait begins again
            withdrawn.remove(fields["slot"])
        return 0  # only the engine knows the seq, and it has made the event durable already

    def _note_step(self, kind: type[NodeEvent], fields: dict[str, Any]) -> None:
        """Keep of a step what the fold keeps of its event, as far as this attempt asks for it."""
        kept, step = self.kept(), fields["step"]
        if kind is events.StepCompleted:
            kept[step_text(step)] = fields["value"]
        elif kind is events.StepFailed and fields.get("retry_at") is None:
            failure, arguments = fields["failure"], fields["arguments"]
            kept[raised_text(step)] = {
                "type": failure.type,
                "message": failure.message,
                "arguments": arguments,
            }

    def failed_tries(self, step: str) -> tuple[int, str | None]:
        failed, wait = self._ask("failed_tries", {"step": step})
        return failed, wait

    def wait_ends_at(self, slot: str) -> float | None:
        until: float | None = self._ask("wait_ends_at", {"slot": slot})
        return until

    def warn_once(self, key: tuple[str, ...], told: str) -> None:
        self._ask("warn_once", {"key": key, "told": told})

    def now(self) -> float:
        return float(self._ask("now", {}))

    def clock_time(self) -> float:
        return float(self._ask("clock_time", {}))

    def is_waiting(self, slot: str) -> bool:
        return bool(self._ask("is_waiting", {"slot": slot}))

    def set_aside(self, name: str) -> list[tuple[int, Any]]:
        return [(number, payload) for number, payload in self._ask("set_aside", {"name": name})]

    async def until_kept(self, slot: str) -> list[Any]:
        kept = self.kept()
        if slot in kept:
            await self.give_turns()
        else:
            self.refuse_inside_step(slot)
            if self.blocks:
                try:
                    kept[slot] = self._ask("until_kept", {"slot": slot})
                except Parked as waits:
                    self.body.parking = waits.slots
                    raise
            else:
                self._look([slot])
        while slot not in kept:
            await self._wait_here(slot)
        came: list[Any] = kept[slot]
        return came

    async def _wait_here(self, slot: str) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(_LOOK_S, self._look_again)
        await super()._wait_here(slot)

    def _awaits_child(self) -> None:
        """Nothing to do: a wait of a process is unwound soon in any case."""

    def _is_room_wanted(self) -> bool:
        """Return False: a wait of a process is unwound soon in any case."""
        return False

    def _rested(self) -> None:
        """Nothing to do: no request of the runner waits for this process."""

    def _look(self, slots: list[str]) -> None:
        """Ask the engine which of these waits are over, and whether the node has to unwind."""
        found = self._ask("find_kept", {"slots": slots})
        self.kept().update(found["kept"])
        self.parks_elsewhere = found["parks"]

    def _look_again(self) -> None:
        self._looking = None
        if not self._waiters:
            return
        try:
            self._look(list(self._waiters))
        except BaseException as raised:  # noqa: BLE001 - raised in the node
            for waiter in self._waiters.values():
                if not waiter.over.done():
                    waiter.over.set_exception(raised)
            return
        self.deliver()
        if self.parks_elsewhere:
            self.park()
        self._looking = self._loop.call_later(_LOOK_S, self._look_again)

    def _park_soon_s(self) -> float:
        return _PARK_SOON_S

    def withdraw(self, slot: str, signal: str | None) -> bool:
        is_withdrawn = bool(self._ask("withdraw", {"slot": slot, "signal": signal}))
        if is_withdrawn:
            self._visit.withdrawn[self._level].append(slot)
            self.kept().pop(slot, None)
        return is_withdrawn

    async def _until_withdrawn(self) -> None:
        """Nothing to do: the engine has made each withdrawal durable already."""

    def warn_of_lost_timer(self) -> None:
        self._ask("warn_of_lost_timer", {})

    def artifacts(self) -> Artifacts:
        self._require_current()
        if self._artifacts is None:
            self._artifacts = Artifacts(*self._ask("artifacts", {}))
            self._artifacts.guard = self._require_current
        return self._artifacts

    @property
    def has_budget(self) -> bool:
        return self._has_budget

    def add_cost(self, usd: float, tokens: int, *, in_step: bool) -> None:
        self._require_current()
        self._ask("cost", {"usd": usd, "tokens": tokens, "in_step": in_step})

    def refuse_over_budget(self) -> None:
        self._ask("refuse_over_budget", {})

    def emit(self, written: bytes, value: Any, step: Step | None) -> None:
        self._require_current()
        self._ask("emit", {"chunk": msgspec.Raw(written), "step": step})

    @property
    def is_at_work(self) -> bool:
        """True if a thread of a step still runs."""
        return self._threads > 0

    def _is_alive(self) -> bool:
        """Always True: the engine kills the process of an abandoned attempt."""
        return True

    def _cleans_up(self) -> bool:
        """Always False: the engine kills the process of a cancelled attempt."""
        return False


class DistantChildren(Children):
    """The child runs of an attempt in another process. The engine starts them: it knows their flows by their names."""

    def __init__(
        self,
        work: DistantAttempt,
        run_id: str,
        header: dict[str, Any],
        item: int | None,
        ask: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        self._work = work
        self._run_id = run_id
        self._header = header
        self._item = item
        self._ask = ask

    async def _start(
        self, flow: Flow[Any], given: Any, key: str, options: ChildOptions, *, durable: bool
    ) -> str:
        plain = flow.state.dump({} if given is None else given)
        wanted = {"name": flow.name, "fingerprint": flow.fingerprint, "given": plain, "key": key}
        try:
            return str(self._ask("start_child", {**wanted, "options": options, "durable": durable}))
        except BudgetExceeded:
            await self._work.require_budget()  # the engine does not know which steps run in this process
            raise

    def last_end(self, run_id: str) -> int:
        return int(self._ask("last_end", {"run": run_id}))

    async def is_mended(self, run_id: str) -> bool:
        return bool(self._ask("is_mended", {"run": run_id}))


class _DistantBody(Body):
    """The call of the node's function in this process. The engine limits its time."""

    def __init__(self, start: NodeEvent, item: int | None, ask: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(start, item, None)
        self._ask = ask

    def run_in(self, task: asyncio.Task[Any] | None) -> None:
        """Note in which task the coroutine of the node runs."""
        self._task = task

    def hold_limit(self) -> None:
        self._ask("hold_limit", {})

    def go_on_with_limit(self) -> None:
        self._ask("go_on_with_limit", {"unwinds": self.parking is not None})


class NoResources(Mapping[str, Any]):
    """Takes the place of the engine's resources, which exist only in the engine's process; every access raises."""

    def __init__(self, node: str) -> None:
        self._node = node

    def _refuse(self) -> NoReturn:
        raise ContextError(
            f"node {self._node!r} has executor='process', but the engine's resources stay in the engine's process. Create "
            "what the node needs in its own module, or leave executor= out."
        )

    def __getitem__(self, name: str) -> Any:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:  # noqa: PLE0303 - always raises
        self._refuse()
