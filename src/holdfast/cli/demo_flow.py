"""The flow of `holdfast demo`: a report is planned, researched, outlined, written, checked, written again and published.

It has what makes resuming hard: a fan-out (research, one item for each topic), a join (write needs the outline and the style), a
branch and a loop (check sends the draft back once). The nodes only wait and return made-up text. Each node writes a line to a
witness file when it is called, so that the calls can be counted without trusting the log.

This file is yours to change: the demo copied it here.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Annotated

from holdfast import END, START, Context, Graph, append

PACE = float(os.environ.get("HOLDFAST_DEMO_PACE", "1"))


@dataclass
class Report:
    """The state of a run: everything known about the report so far."""

    subject: str = "tides"
    topics: list[str] = field(default_factory=list)
    findings: Annotated[list[str], append] = field(default_factory=list)
    outline: list[str] = field(default_factory=list)
    style: str = ""
    draft: str = ""
    remarks: Annotated[list[str], append] = field(default_factory=list)
    approved: bool = False
    published: str = ""


graph = Graph("report", Report)


async def work(ctx: Context, seconds: float) -> None:
    """Note the call of this node in the witness file, then sleep."""
    tell_witness(ctx)
    await asyncio.sleep(seconds * PACE)


def tell_witness(ctx: Context) -> None:
    """Note the call of this node in the witness file (a plain file outside the store), if one is set."""
    witness = os.environ.get("HOLDFAST_DEMO_WITNESS")
    if witness:
        item = "" if ctx.item is None else ctx.item
        with open(witness, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {ctx.node} {ctx.iteration} {item}\n")


@graph.node
async def plan(state: Report, ctx: Context) -> dict[str, list[str]]:
    """Choose the topics."""
    await work(ctx, 0.3)
    return {"topics": ["moon", "sun", "coasts", "harbours", "currents", "tables"]}


@graph.node(each=lambda state: state.topics, limit=2)
async def research(topic: str, ctx: Context) -> dict[str, list[str]]:
    """Research one topic; two topics at a time."""
    await work(ctx, 0.6 if (ctx.item or 0) % 2 else 0.4)
    return {"findings": [f"what is known about {topic}"]}


@graph.node
async def outline(state: Report, ctx: Context) -> dict[str, list[str]]:
    """Put the findings in order."""
    await work(ctx, 0.3)
    return {"outline": sorted(state.findings)}


@graph.node
async def style(state: Report, ctx: Context) -> dict[str, str]:
    """Choose the style of writing, in parallel with the research."""
    await work(ctx, 0.5)
    return {"style": "plain"}


@graph.node
async def write(state: Report, ctx: Context) -> dict[str, str]:
    """Write the report; waits for the outline and for the style."""
    await work(ctx, 0.5)
    return {
        "draft": f"Draft {ctx.iteration} on {state.subject}, {state.style}: {len(state.outline)} sections"
    }


@graph.node
async def check(state: Report, ctx: Context) -> dict[str, object]:
    """Read the draft; the first one is never good enough."""
    await work(ctx, 0.3)
    return {"remarks": [f"draft {ctx.iteration} read"], "approved": ctx.iteration > 1}


@graph.node
async def publish(state: Report, ctx: Context) -> dict[str, str]:
    """Publish the report."""
    await work(ctx, 0.3)
    return {"published": f"{state.draft}, published"}


graph.chain(START, "plan", "research", "outline", "write", "check").chain(START, "style", "write")
graph.branch("check", lambda state: "publish" if state.approved else "write", to=["publish", "write"])
graph.edge("publish", END)

flow = graph.compile()
