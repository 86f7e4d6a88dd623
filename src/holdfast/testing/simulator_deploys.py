"""Simulated rolling deploys: workers with the old and the new code of one flow, at the same time, on one store.

    outcome = deploy_schedule(seed).run()

Both codes define a flow of the same name, in another shape: the new one has a node more, or another name for the node that
calls a child run, takes a step and waits. The workers begin with the old code and get the new one, one after
the other, at times that the seed chooses; one may go back for a while. Runs are started by any process. The operator looks at
the runs as `holdfast doctor` does, and does what the diagnosis says, and nothing else.

The schedule knows which worker has which code, so it knows what the operator should see. A run is said to be refused only while
no live worker can continue it; then the reason is given soon, with a remedy. A refusal names a live worker that cannot continue
the run. At the end every run is over, each caller has one child, and each visit has used one idempotency key, under whichever
name of its node.

Invariant: every choice is drawn from the random generator of the schedule.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from holdfast.core.graph import END, START, Flow, Graph
from holdfast.core.run_state import FINAL, OFFERED
from holdfast.core.state import append
from holdfast.errors import HoldfastError
from holdfast.reading.cases import case_of
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import REFUSED, Diagnosis, diagnose
from holdfast.reading.remedies import Remedy
from holdfast.runtime.calls.context import Context
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import RunRow
from holdfast.storage.queues import LiveHolder
from holdfast.testing import checker
from holdfast.testing import simulator_oracle as oracle
from holdfast.testing.simulator import Disk, Schedule, family_of
from holdfast.testing.simulator_flows import CRASHES_MAX
from holdfast.testing.simulator_hands import Hand, Subject

RUNS = 3
SOON_S = 12.0
"""Within this many seconds after the last change of the fleet, a run that no live worker can continue is said to be refused. The
workers look at it sooner; but a fault may delay that, and then they try again after five seconds."""
_NAME = "deployed"
_KEYS = "holdfast.deploy.keys"
_CODES = {
    "old": ("pack", "rest", "send"),
    "longer": ("pack", "rest", "send", "thank"),
    "renamed": ("pack", "nap", "send"),
}
"""Code -> the nodes of its flow, in order. `nap` is another name for `rest`."""


@dataclass
class Parcel:
    """The state of the flow that is deployed, and of its child runs."""

    marks: Annotated[list[str], append] = field(default_factory=list)


@cache
def code(version: str) -> Flow[Parcel]:
    """Return the flow as one of the codes defines it."""
    graph = Graph(_NAME, Parcel)
    for name in _CODES[version]:
        _add_node(graph, name)
    return graph.chain(START, *_CODES[version], END).compile()


def _add_node(graph: Graph[Parcel], name: str) -> None:
    @graph.node(name=name, crash_limit=CRASHES_MAX)
    async def work(state: Parcel, ctx: Context) -> dict[str, Any]:
        if name not in ("rest", "nap"):
            return {"marks": [name]}
        keys: dict[str, set[str]] = ctx.resources[_KEYS]

        async def pay() -> None:
            keys.setdefault(ctx.run_id, set()).add(ctx.idempotency_key("pay"))
            await asyncio.sleep(0.5)

        await ctx.step("pay", pay)
        child = await ctx.call(carriage())
        return {"marks": child.marks}


@cache
def carriage() -> Flow[Parcel]:
    """The flow of the child runs, which no deploy changes."""
    graph = Graph("carriage", Parcel)

    @graph.node(crash_limit=CRASHES_MAX)
    async def carry(state: Parcel, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(6.0)
        return {"marks": ["carried"]}

    return graph.chain(START, "carry", END).compile()


def deploy_schedule(seed: int, *, disk: Disk | None = None) -> DeploySchedule:
    """Make the schedule of a seed: one deploy."""
    new = random.Random(f"new code {seed}").choice(("longer", "renamed"))
    subjects = [Subject(f"d{number}", code(new)) for number in range(RUNS)]
    return DeploySchedule(seed, subjects, new, disk=disk)


class DeployHand(Hand):
    """The simulated operator of one run of a deployed flow."""

    def __init__(self, scene: DeploySchedule, subject: Subject, *, calm: bool) -> None:
        super().__init__(scene, subject, calm=True)
        self._deploy = scene
        self._draw = random.Random(f"operator {scene.seed} {subject.run_id}")
        self._due = self._draw.uniform(0.0, 4.0)

    async def attend(self) -> None:
        """Start the run, and do what the diagnosis says until the run is over."""
        await self._scene.outside.rest(self._due)
        while not self._exists():
            await self._ask(self._start)
        while (row := self._scene.disk.run(self._run_id)).status not in FINAL:
            found = self._deploy.look_at(row)
            if found.kind in REFUSED and self._draw.random() < 0.3:
                await self._follow(found.remedies[0])
            await self._scene.outside.rest(self._draw.choice((0.3, 0.8, 1.5)))

    async def _start(self, engine: Engine) -> None:
        """Start the run with the code that the process of the engine has."""
        flow = engine.flows[_NAME]
        assert isinstance(flow, Flow)
        await engine.start(flow, None, run_id=self._run_id)

    async def _follow(self, remedy: Remedy) -> None:
        """Do what a remedy says, by a request to the workers, or at any engine."""
        assert remedy.verb == "resume", remedy
        given: dict[str, Any] = dict(remedy.arguments)
        if self._draw.random() < 0.5:
            given["execute"] = False

        async def resume(engine: Engine) -> None:
            await engine.resume(**given)

        await self._ask(resume, waits=False)


class DeploySchedule(Schedule):
    """One simulation of a rolling deploy, with one seed."""

    def __init__(self, seed: int, subjects: list[Subject], new: str, **options: Any) -> None:
        self.new = new
        """The new code."""
        self._keys: dict[str, set[str]] = {}
        """Run -> the idempotency keys that its visit has paid with."""
        self._codes: dict[str, str] = {}
        """The code with which each process starts next; old if it is not listed."""
        self._has: dict[str, Flow[Any]] = {}
        """Id of an engine -> the flow that it knows."""
        self._fleet: tuple[str, ...] = ()
        self._same_since: dict[str, float] = {}
        """Run -> since when the same live workers see the same log of a run on offer."""
        self._seen: dict[str, Any] = {}
        self.wrong: list[str] = []
        super().__init__(seed, subjects, resources={_KEYS: self._keys}, **options)
        self.tidies, self.asks = False, False

    @property
    def flows(self) -> list[Flow[Any]]:
        return [code(self.new), carriage()]

    def flows_of(self, process: str) -> list[Flow[Any]]:
        known = code(self._codes.get(process, "old"))
        boots = next(one.boots for one in self.processes if one.name == process)
        self._has[f"{process}.{boots}"] = known
        return [known, carriage()]

    def make_hand(self, subject: Subject, *, calm: bool) -> Hand:
        return DeployHand(self, subject, calm=calm)

    async def _torment(self) -> None:
        self.outside.spawn(self._roll_out())
        await super()._torment()

    async def _roll_out(self) -> None:
        """Replace the old code of each process, in turn; one may go back once."""
        draw = random.Random(f"roll out {self.seed}")
        turns = [(process, self.new) for process in self.processes]
        if draw.random() < 0.4:
            back = draw.choice(self.processes)
            turns += [(back, "old"), (back, self.new)]
        for process, version in turns:
            await self.outside.rest(draw.uniform(0.5, 8.0))
            self._codes[process.name] = version
            (process.drain if draw.random() < 0.7 else process.crash)()

    # --- what the operator should see -----------------------------------------------------------------

    def look_at(self, row: RunRow) -> Diagnosis:
        """Diagnose a run, and note what is wrong with the diagnosis and with the refusals."""
        holders = self.disk.queues.holders()
        case = compare(self.disk, case_of(self.disk, row, holders=holders), None)
        found = diagnose(case, self.disk.now())
        workers = [one for one in holders if _NAME in one.holder.flows]
        able = [one.holder.id for one in workers if self._is_able(one, row)]
        if found.kind in REFUSED and able:
            self.wrong.append(
                f"{row.run_id}: said to be refused ({found.reason}), but {able} can continue it"
            )
        if found.kind in REFUSED and not (
            found.remedies and "no live worker can continue it" in found.reason
        ):
            self.wrong.append(f"{row.run_id}: the refusal has no reason or no remedy: {found.reason}")
        live = {one.holder.id for one in workers}
        for refusal in self.disk.queues.refusals([row.run_id]):
            if refusal.holder not in {one.holder.id for one in holders}:
                self.wrong.append(
                    f"{row.run_id}: {refusal.holder} is not alive, but its refusal is still there"
                )
            elif refusal.holder in able:
                self.wrong.append(f"{row.run_id}: {refusal.holder} can continue the run, but has refused it")
        self._expect_soon(row, found, live if workers and not able else set())
        return found

    def _is_able(self, worker: LiveHolder, row: RunRow) -> bool:
        known = self._has.get(worker.holder.id)
        return known is not None and known.fingerprint == row.fingerprint

    def _expect_soon(self, row: RunRow, found: Diagnosis, unable: set[str]) -> None:
        """Note if a run is on offer, and the same live workers, none of which can continue it, have not said so for long."""
        run_id, now = row.run_id, self.world.now
        seen = (row.seq, row.held, frozenset(unable))
        if seen != self._seen.get(run_id) or row.held or not unable or row.status not in OFFERED:
            self._seen[run_id], self._same_since[run_id] = seen, now
        elif now - self._same_since[run_id] > SOON_S and found.kind not in REFUSED:
            self.wrong.append(f"{run_id}: no live worker can continue it, which is not said: {found.reason}")
            self._same_since[run_id] = now

    # --- afterwards -----------------------------------------------------------------------------------

    def judge_rest(self, walks: dict[str, oracle.Walk]) -> list[str]:
        """Return what the logs, the results and the refusals show."""
        wrong = [*dict.fromkeys(self.wrong), *(str(violation) for violation in checker.check(self.disk))]
        for run_id in self.run_ids():
            row = self.disk.run(run_id)
            try:
                if row.status not in FINAL:
                    wrong.append(f"{run_id}: the run is {row.status} at the end")
                elif self.disk.queues.refusals([run_id]):
                    wrong.append(f"{run_id}: the run is {row.status}, but its refusals are still there")
            except HoldfastError as fault:
                wrong.append(f"{run_id}: {fault}")
        for subject in self.subjects:
            _, *children = family_of(self.disk, subject.run_id)
            if len(children) != 1:
                wrong.append(f"{subject.run_id}: the run has {len(children)} child runs")
        several = [run_id for run_id, keys in self._keys.items() if len(keys) > 1]
        return [*wrong, *(f"{run_id}: the visit has used several idempotency keys" for run_id in several)]
