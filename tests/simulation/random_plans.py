"""Random plan documents, executed by the real engine and compared with an oracle in plain Python.

    python tests/simulation/random_plans.py --plans 2000

Each plan is drawn as a sketch (`holdfast.testing.plan_sketches`), which is the oracle, and written as a document: guards,
verification and policies are CEL, inputs are references. Its run is executed twice, eagerly and layer by layer. Every difference
from the oracle, and every violation that the checker finds, is reported; the seed of a plan is its number.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from holdfast import plan
from holdfast.core.graph import Flow
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import rehearse
from holdfast.testing.checker import check
from holdfast.testing.clock import ManualClock
from holdfast.testing.plan_sketches import (
    FAILURES,
    PRIME,
    Outcome,
    PlanSketch,
    SketchedEdge,
    SketchedNode,
    draw_plan,
)

drawn = plan.Capabilities("drawn")


async def work(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    """Do what the sketch of the task says."""
    match given["ends"]:
        case "flaky" if ctx.attempt < 3:
            raise hf.Recoverable("not yet")
        case "raises":
            raise ValueError("as drawn")
        case "fatal":
            raise hf.Fatal("as drawn")
    tries = {"try": min(2, ctx.attempt)} if given["ends"] == "later" else {}
    return {"n": (given["number"] + sum(given["inputs"])) % PRIME, **tries}


for name, idempotent in (("plain", True), ("judged", True), ("plain-once", False), ("judged-once", False)):
    drawn.capability(f"{name}@1", idempotent=idempotent)(work)

POLICIES = [
    {"id": f"{stage} {verdict}", "stage": stage, "capability": "judged*", "rule": f"input.{stage} != '{verdict}'",
     "otherwise": verdict, "reason": "as drawn"}
    for stage in ("pre", "post")
    for verdict in ("ask", "deny")
]  # fmt: skip


def document(sketch: PlanSketch) -> dict[str, Any]:
    """Return the document of a sketched plan."""
    return {
        "holdfast": "plan/1",
        "tasks": [_task(sketch, node) for node in sketch.nodes],
        "edges": [_edge(edge) for edge in sketch.edges],
        "policies": POLICIES,
    }


def _task(sketch: PlanSketch, node: SketchedNode) -> dict[str, Any]:
    pre = "deny" if node.ends == "denied" else node.pre
    post = "deny" if node.ends == "refused" else node.post
    kind = ("judged" if pre or post else "plain") + ("" if node.idempotent else "-once")
    told: dict[str, Any] = {
        "id": node.name,
        "capability": f"{kind}@1",
        "join": "every" if node.every else "some",
        "input": {
            "number": node.number,
            "ends": node.ends,
            "pre": pre,
            "post": post,
            "inputs": [{"$ref": f"outputs.{source}.n", "default": 0} for source in sketch.inputs(node.name)],
        },
    }
    retry = {"attempts": 20, "backoff": 0.05, "factor": 1.0, "jitter": 0.0}
    match node.ends:
        case "flaky":
            told["retry"] = retry
        case "later":
            told["retry"] = {**retry, "on": ["VerificationFailed"]}
            told["verification"] = [{"id": "try", "rule": "output.try == 2"}]
        case "unverified":
            told["verification"] = [{"id": "never", "rule": "output.n < 0", "reason": "as drawn"}]
        case _ if node.verifies:
            told["verification"] = [{"id": "number", "rule": f"output.n >= 0 && output.n < {PRIME}"}]
        case _:
            pass
    return told


def _edge(edge: SketchedEdge) -> dict[str, Any]:
    told: dict[str, Any] = {"from": edge.source, "to": edge.target}
    if edge.guard is not None:
        number = "size(error.type)" if edge.on_error else f"outputs.{edge.source}.n"
        told["guard"] = f"{number} % {edge.guard[0]} < {edge.guard[1]}"
    if edge.on_error:
        told["on_error"] = True if edge.on_error == ("*",) else list(edge.on_error)
    return told


def draw(seed: int) -> tuple[PlanSketch, Flow[Any], int]:
    """Return the plan of a seed, and how many drawings were refused before it, because a task of theirs can never run."""
    luck, refused = random.Random(f"random plan {seed}"), 0
    while True:
        sketch = draw_plan(luck, handled=luck.random() < 0.7)
        try:
            return sketch, drawn.plan(document(sketch)), refused
        except hf.PlanError as fault:
            never = [one for one in fault.problems if "never run" in one.message]
            if len(never) != len(fault.problems):
                raise
            refused += 1


@dataclass
class Figures:
    """What was executed, and every difference from the oracle."""

    plans: int = 0
    runs: int = 0
    tasks: int = 0
    refused: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.plans} plans ({self.tasks} tasks: {kinds}; {self.refused} drawings with a task that can never run), "
            f"{self.runs} runs in {self.seconds:.0f} s, {len(self.wrong)} differences"
        )


def prove(first: int, count: int) -> Figures:
    """Execute these plans, and compare their runs with the oracle."""
    figures, began = Figures(), time.monotonic()
    for seed in range(first, first + count):
        sketch, flow, refused = draw(seed)
        expected = sketch.expect()
        figures.plans, figures.refused = figures.plans + 1, figures.refused + refused
        figures.tasks += len(sketch.nodes)
        figures.statuses.update(expected.statuses.values())
        for schedule in ("eager", "layered"):
            figures.runs += 1
            figures.wrong += [
                f"plan {seed}, {schedule}: {told}" for told in compare(sketch, flow, schedule, expected)
            ]
    figures.seconds = time.monotonic() - began
    return figures


def compare(sketch: PlanSketch, flow: Flow[Any], schedule: str, expected: Outcome) -> list[str]:
    """Execute a plan, and return how its run differs from what is expected. If a failure is unhandled, tasks beside it may or may
    not have begun.
    """
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    answers = {node.name: lambda asked: "approve" for node in sketch.nodes if "ask" in (node.pre, node.post)}
    run = rehearse(flow, answers=answers, store=store, clock=clock, schedule=schedule)
    wrong = [str(violation) for violation in check(store)]
    if run.status != ("completed" if expected.completes else "failed"):
        return [*wrong, f"the run is {run.status}: {run.error}"]
    for name, status in expected.statuses.items():
        found = run.nodes[name].status if name in run.nodes else ""
        allowed = {"skipped" if status == "handled" else status}
        if not expected.completes:
            allowed |= {"", "pending", "waiting"} | ({"failed"} if status == "handled" else set())
        if status == "unreached":
            allowed = {"", "pending"}
        if found not in allowed:
            wrong.append(f"{name} is {found or 'not reached'}, not {status}")
    outputs = {name: {"n": told["n"]} for name, told in run.state.outputs.items()}
    if expected.completes and outputs != expected.outputs:
        wrong.append(f"the outputs are {outputs}, not {expected.outputs}")
    if not outputs.items() <= expected.outputs.items():
        wrong.append(f"the outputs {outputs} are not among {expected.outputs}")
    if (
        not expected.completes
        and run.error is not None
        and run.error.type not in {one for one, _ in FAILURES.values()}
    ):
        wrong.append(f"the run failed by {run.error.type}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plans", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    figures = prove(given.first, given.plans)
    print("\n".join([*figures.wrong[:20], str(figures)]))
    return bool(figures.wrong)


if __name__ == "__main__":
    sys.exit(main())
