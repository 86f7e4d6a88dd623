"""Flows for the tests of the graph: a loop beside a very long name, a fan-out of 1,000 items, and 1,000 nodes."""

from __future__ import annotations

from itertools import pairwise

import holdfast as hf

LONG = "reserve_" + "x" * 109 + "_at_the_end"
LARGE = 1000


def build_order() -> hf.Flow:
    """A loop, a branch, two nodes side by side, and a name as long as a name can be."""
    graph = hf.Graph("order")
    for name in ("validate", "fraud_check", LONG, "check", "ship"):
        graph.node(lambda state: {}, name=name)

    @graph.node
    def charge(state, ctx):
        if ctx.iteration == 2:
            raise hf.Fatal("card declined")
        return {"charged": True}

    graph.edge(hf.START, "validate")
    for beside in ("fraud_check", LONG):
        graph.edge("validate", beside)
        graph.edge(beside, "charge")
    graph.edge("charge", "check")
    graph.branch("check", lambda state: "charge", ["ship", "charge"])
    graph.edge("ship", hf.END)
    return graph.compile(max_iterations=5)


def build_fan() -> hf.Flow:
    graph = hf.Graph("fan")

    @graph.node(each=lambda state: range(1000), label=lambda item: f"part {item}", limit=100)
    async def embed(item):
        if item % 97 == 50:
            raise hf.Fatal(f"item {item} is broken")

    graph.chain(hf.START, embed, hf.END)
    return graph.compile()


def build_large() -> hf.Flow:
    """Four columns of nodes, each with a question at its end."""
    graph = hf.Graph("large")
    columns = [[f"c{column}_{number:03}" for number in range(LARGE // 4)] for column in range(4)]
    for column in columns:
        for name in column[:-1]:
            graph.node(lambda state: {}, name=name)
        graph.node(lambda state: {}, name=column[-1], approve="Go on?")
        for source, target in pairwise([hf.START, *column, hf.END]):
            graph.edge(source, target)
        if column is not columns[0]:
            graph.edge(columns[0][100], column[120])
    return graph.compile()


order, fan, large = build_order(), build_fan(), build_large()
