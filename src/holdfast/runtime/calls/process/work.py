"""The context of a node whose function runs in another process: the requests that this process sends, and the engine's replies.

Both halves are in this module because they must know the same verbs. `DistantAttempt` is the attempt in the other process. It
gets the kept values with the order to call the function, and sends a request to the engine to record an event or to wait.
`Answering` serves these requests on the event loop, as for a plain function in a thread: a wait unwinds the node at once.

Invariant: only the engine, which holds the lease, records events. Requests from the process of an abandoned attempt are
refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from holdfast.core import events
from holdfast.core.events import NodeEvent
from holdfast.core.kinds import FROM_PROCESS
from holdfast.core.run_state import NODE_LEVEL, NodeState
from holdfast.core.slots import CHECKPOINT, step_text
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import ContextError
from holdfast.reading.chunks import Step
from holdfast.runtime.calls.attempt import Attempt
from holdfast.runtime.calls.body import Body
from holdfast.runtime.calls.executors import Call, Threads
from holdfast.runtime.calls.process.wire import Asked, Order, Told
from holdfast.runtime.calls.streams import encode_chunk


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
        idempotent=call.node.options.idempotent,
        kept=work.kept(),
    )


class Answering:
    """Serves, in the engine, the requests of a node's context in another process. It is created on the event loop, and called
    in a thread.
    """

    def __init__(self, work: Attempt, node: str) -> None:
        self._work = work
        self._node = node
        self._loop = asyncio.get_running_loop()

    def answer(self, asked: Asked) -> Any:
        """Serve a request of the node's context. Raises `Parked` if the node has to wait."""
        work, given = self._work, asked.given
        match asked.verb:
            case "record" if given["kind"] in FROM_PROCESS:
                return self._wait(work.record(getattr(events, given["kind"]), **given["fields"]))
            case "until_kept":
                return self._wait(work.until_kept(given["slot"]))
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
            case "cost":
                return work.cost(given["usd"], given["tokens"])
            case "artifacts":
                folder = work.artifacts()
                os.fspath(folder)  # the engine creates the folder, so that processes do not race to create it
                return folder.made_of
            case _:
                raise ContextError(
                    f"node {self._node!r}: its process sent the unknown request {asked.verb!r}. "
                    "This is a defect in Holdfast; please report it."
                )

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
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
        body = Body(started, order.item, None)
        self._begin(body, header, told.run_id, idempotent=told.idempotent, blocks=True, callers=threads)
        self._ask = ask
        level = NODE_LEVEL if order.item is None else order.item
        self._visit = NodeState(kept={level: told.kept}, fresh=told.fresh)
        self._key_root = told.key_root

    @property
    def visit(self) -> NodeState:
        return self._visit

    @property
    def key_root(self) -> str:
        return self._key_root

    async def record(self, kind: type[NodeEvent], **fields: Any) -> None:
        self._ask("record", {"kind": kind.__name__, "fields": fields})
        if kind is events.StepCompleted:
            self.kept()[step_text(fields["step"])] = fields["value"]
        elif kind is events.NodeCheckpointed:
            self.kept()[CHECKPOINT] = fields["value"]
        elif kind is events.SignalSetAside:
            del self.kept()[fields["slot"]]

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
        if slot not in kept:
            self._refuse_inside_step(slot)
            kept[slot] = self._ask("until_kept", {"slot": slot})
        came: list[Any] = kept[slot]
        return came

    def artifacts(self) -> Artifacts:
        if self._artifacts is None:
            self._artifacts = Artifacts(*self._ask("artifacts", {}))
        return self._artifacts

    def cost(self, usd: float, tokens: int) -> None:
        self._ask("cost", {"usd": usd, "tokens": tokens})

    def emit(self, written: bytes, value: Any, step: Step | None) -> None:
        self._ask("emit", {"chunk": msgspec.Raw(written), "step": step})

    @property
    def is_at_work(self) -> bool:
        """True if a thread of a step still runs."""
        return self._threads > 0

    def _require_current(self) -> None:
        """Nothing to check: the engine kills the process of an abandoned attempt."""


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
