"""Large states beside other libraries: a number changes beside many rows, or a history grows by a message in each step.

The rows are dicts of short texts and numbers, as a data job or an agent keeps them. A large text is shared by all copies of a
state, so it costs little; ten thousand small dicts are where copies, comparisons and the garbage collector cost time.

Every library gets the same state, in turn within each round, and loops over one node. The first steps do not count. Stored bytes
per step are the difference between two runs of different lengths, so the first state does not count either.

`python -m bench.large_states rows 1 --peers` measures one workload once, for a quick comparison while the code changes.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bench import payloads
from bench.contest import Absent, Environment, Peer
from bench.parts import Bench
from bench.peers.asked import WARM_UP_STEPS, Laps
from bench.report import Figure, Target, at_most
from bench.stores import Place
from bench.workloads import loop_flow, steady, step_of, warm_up
from holdfast import Engine, append

PEERS = (
    Peer("LangGraph", "langgraph_peer"),
    Peer('LangGraph with durability="sync"', "langgraph_peer", "sync"),
    Peer("Burr", "burr_peer"),
)
_COMPARED = PEERS[:2]
_HISTORY_STEPS = 100
_LATE_TARGET = 1.3


@dataclass
class Rows:
    """A table in the state, as a list."""

    step: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class RowsByName:
    """The same table as a dict."""

    step: int = 0
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Talk:
    """The messages between an agent and its user."""

    step: int = 0
    messages: Annotated[list[dict[str, Any]], append] = field(default_factory=list)


class Load(NamedTuple):
    """A workload with a large state, of one size."""

    name: str
    workload: str
    """Its name in the programs of the peers."""
    size: int
    steps: int
    """Steps that count. A peer writes the whole state in each, so there are fewer of them if the state is larger."""
    ratio: Target | None = None
    """The target for the time of a step, compared with LangGraph."""
    step_ms: Target | None = None
    """The target for the time of a step."""


LOADS = (
    Load("rows in a list, 0.1 MB", "rows", 100_000, 200, at_most(1.0)),
    Load("rows in a list, 1 MB", "rows", 1_000_000, 50, at_most(1.0)),
    Load("rows in a list, 10 MB", "rows", 10_000_000, 10, at_most(0.8)),
    Load("rows in a dict, 0.1 MB", "rows_by_name", 100_000, 200, at_most(1.0)),
    Load("rows in a dict, 1 MB", "rows_by_name", 1_000_000, 50, at_most(1.0)),
    Load("rows in a dict, 10 MB", "rows_by_name", 10_000_000, 10, at_most(0.8)),
    Load("history of 100 messages", "messages", 100, _HISTORY_STEPS),
    Load("history of 1,000 messages", "messages", 1000, _HISTORY_STEPS),
    Load("history of 4,000 messages", "messages", 4000, _HISTORY_STEPS, step_ms=at_most(2)),
)


class Step(NamedTuple):
    """What one step took, and what it stored."""

    wall_ms: float
    cpu_ms: float
    stored_bytes: float


def large_states(bench: Bench) -> list[Figure]:
    """Measure every workload with Holdfast and with its peers."""
    with Environment() as environment:
        bench.progress.say("install the peers")
        absent = ""
        try:
            environment.install()
        except Absent as missing:
            absent = str(missing)
        figures: list[Figure] = []
        late: dict[int, list[float]] = {}
        for load in LOADS:
            rounds = [
                _round(bench, environment if not absent else None, load)
                for _ in bench.each_round(load.name, bench.effort.peer_rounds)
            ]
            figures += _figures(load, rounds)
            if load.workload == "messages":
                late[load.size] = [measured["Holdfast"].wall_ms for measured in rounds]
    ratios = [many / few for many, few in zip(late[4000], late[1000], strict=True)]
    told = "history of 4,000 messages: time per step"
    figures.append(Figure(told, "times that of 1,000 messages", ratios, at_most(_LATE_TARGET)))
    return figures


def _round(bench: Bench, environment: Environment | None, load: Load) -> dict[str, Step]:
    """Measure a workload once with every library that gives a result."""

    found = {"Holdfast": time_step(with_holdfast(bench.folder, load), load.steps)}
    for peer in PEERS if environment else ():
        try:
            found[peer.name] = time_step(_with_peer(environment, bench.folder, peer, load), load.steps)
        except Absent:
            continue
    return found


def with_holdfast(folder: Path, load: Load) -> Callable[[int], dict[str, Any]]:
    def run(steps: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            return measure(Place("sqlite", Path(name)), load.workload, load.size, steps)

    return run


def _with_peer(
    environment: Environment, folder: Path, peer: Peer, load: Load
) -> Callable[[int], dict[str, Any]]:
    return lambda steps: environment.ask(peer, folder, load.workload, steps=steps, size=load.size)


def time_step(run: Callable[[int], dict[str, Any]], steps: int) -> Step:
    """Run a workload twice, with the first steps alone and with all steps."""
    first, whole = run(WARM_UP_STEPS), run(WARM_UP_STEPS + steps)
    assert whole["steps"] == steps, whole
    stored = (whole["stored_bytes"] - first["stored_bytes"]) / steps
    return Step(whole["wall_s"] / steps * 1e3, whole["cpu_s"] / steps * 1e3, stored)


def measure(place: Place, workload: str, size: int, steps: int) -> dict[str, Any]:
    """Run a workload with Holdfast. The answer has the form of that of a peer."""
    laps = Laps()
    told = payloads.messages(size + steps) if workload == "messages" else []

    async def count(state: Any) -> dict[str, Any]:
        laps.note()
        return {"step": state.step + 1}

    async def say(state: Talk) -> dict[str, Any]:
        laps.note()
        return {"step": state.step + 1, "messages": [told[size + state.step]]}

    async def work() -> None:
        store = place.open()
        try:
            async with Engine(store) as engine:
                await warm_up(engine, place)
                run = await engine.run(flow, first, run_id="measured")
                laps.note()
                assert (run.status, step_of(run.state)) == ("completed", steps), run
        finally:
            store.close()

    kind: type[Any] = {"rows": Rows, "rows_by_name": RowsByName, "messages": Talk}[workload]
    flow = loop_flow(workload, steps, say if workload == "messages" else count, kind)
    with steady():  # before the state exists, so that the collector sees it, as in the programs of the peers
        first = kind(0, told[:size] if workload == "messages" else getattr(payloads, workload)(size))
        asyncio.run(work())
    return {**laps.taken(), "stored_bytes": place.stored_bytes()}


def _figures(load: Load, rounds: list[dict[str, Step]]) -> list[Figure]:
    """Return the time of a step of every library, and that of Holdfast compared with LangGraph."""
    whole = [
        name for name in ("Holdfast", *(peer.name for peer in PEERS)) if all(name in seen for seen in rounds)
    ]
    figures = [
        Figure(
            f"{load.name}, compared with {peer.name}",
            "times its time per step",
            [seen["Holdfast"].wall_ms / seen[peer.name].wall_ms for seen in rounds if peer.name in whole],
            load.ratio,
            note="" if peer.name in whole else "it gave no result",
        )
        for peer in _COMPARED
    ]
    for name in whole:
        steps = [seen[name] for seen in rounds]
        beside = {
            "ms of CPU time": [step.cpu_ms for step in steps],
            "bytes stored per step": [step.stored_bytes for step in steps],
        }
        target = load.step_ms if name == "Holdfast" else None
        wall = [step.wall_ms for step in steps]
        figures.append(Figure(f"{load.name}, {name}", "ms per step", wall, target, beside=beside))
    return figures


def main() -> None:
    """Measure one workload, and print a line for each round and library."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_states", description=main.__doc__)
    parser.add_argument("workload", choices=("rows", "rows_by_name", "messages"))
    parser.add_argument("size", type=float, help="MB of rows, or messages before the first step")
    parser.add_argument("--steps", type=int, help="steps that count")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="also measure the other libraries, in turn")
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    asked = parser.parse_args()
    size = int(asked.size if asked.workload == "messages" else asked.size * 1e6)
    usual = _HISTORY_STEPS if asked.workload == "messages" else max(10, min(200, 50_000_000 // size))
    load = Load(asked.workload, asked.workload, size, asked.steps or usual)
    with (
        Environment() as environment,
        tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.folder) as name,
    ):
        folder = Path(name)
        runs = {"Holdfast": with_holdfast(folder, load)}
        if asked.peers:
            environment.install()
            runs |= {peer.name: _with_peer(environment, folder, peer, load) for peer in PEERS}
        for _ in range(asked.rounds):
            for library, run in runs.items():
                step = time_step(run, load.steps)
                print(
                    f"{library:33} {step.wall_ms:9.3f} ms, {step.cpu_ms:9.3f} ms of CPU, {step.stored_bytes:12,.0f} bytes "
                    f"per step ({load.steps} steps)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
