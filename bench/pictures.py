"""The time to lay out the picture of a flow: `core/layout`, without drawing it and without any store."""

import random
import time
from itertools import pairwise

from bench.parts import Bench
from bench.report import Figure, Target, at_most
from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.layout import lay_out

WIDTH = 10
EDGES_PER_NODE = 1.357


def layered(nodes: int, seed: int = 7) -> Definition:
    """Return a flow of layers of ten nodes, with about 1.36 edges per node that lead to the next layer."""
    luck = random.Random(seed)
    names = [f"n{number}" for number in range(nodes)]
    layers = [names[start : start + WIDTH] for start in range(0, nodes, WIDTH)]
    edges = [Edge(START, name) for name in layers[0]]
    for before, layer in pairwise(layers):
        edges += [Edge(luck.choice(before), name) for name in layer]
    more = [(before, layer) for before, layer in pairwise(layers) for _ in layer]
    pairs = luck.sample(more, min(len(more), round(nodes * EDGES_PER_NODE) - len(edges)))
    edges += [Edge(luck.choice(before), luck.choice(layer)) for before, layer in pairs]
    leads_on = {edge.source for edge in edges}
    edges += [Edge(name, END) for name in names if name not in leads_on]
    return Definition(name="layered", nodes={name: NodeOptions() for name in names}, edges=edges)


def chain(nodes: int) -> Definition:
    names = [f"n{number}" for number in range(nodes)]
    edges = [Edge(*pair) for pair in pairwise([START, *names, END])]
    return Definition(name="chain", nodes={name: NodeOptions() for name in names}, edges=edges)


def alike(nodes: int) -> Definition:
    """Return a flow in which all nodes but two have the same neighbours."""
    names = [f"n{number}" for number in range(nodes - 2)]
    edges = [Edge(START, "first"), Edge("last", END)]
    edges += [edge for name in names for edge in (Edge("first", name), Edge(name, "last"))]
    return Definition(
        name="alike", nodes={name: NodeOptions() for name in ("first", *names, "last")}, edges=edges
    )


def pictures(bench: Bench) -> list[Figure]:
    """The time to lay out flows of different sizes and shapes."""
    cases: list[tuple[str, Definition, Target | None]] = [
        ("layers, 100 nodes", layered(100), at_most(20.0)),
        ("layers, 1,000 nodes", layered(1_000), at_most(200.0)),
        (f"layers, {bench.effort.dag:,} nodes", layered(bench.effort.dag), None),
        ("chain, 1,000 nodes", chain(1_000), at_most(200.0)),
        ("equal neighbours, 1,000 nodes", alike(1_000), at_most(200.0)),
    ]
    figures = []
    for name, definition, target in cases:
        took_ms = []
        for _ in bench.each_round(f"lay out {name}", None if target else bench.effort.few):
            began = time.process_time()
            lay_out(definition)
            took_ms.append((time.process_time() - began) * 1e3)
        figures.append(Figure(f"lay out {name}", "ms of CPU time", took_ms, target))
    return figures
