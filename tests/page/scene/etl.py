"""The nightly load of a warehouse: one item for each file."""

from __future__ import annotations

from typing import Any

import shop

import holdfast as hf
from holdfast import END, START, Graph

graph = Graph("nightly-etl")


@graph.node
async def extract(state: dict) -> dict[str, Any]:
    await shop.sleep(40)
    return {"files": [f"part-{number:03}.parquet" for number in range(60)]}


@graph.node(each=lambda state: state["files"], limit=6)
async def load(file: str, ctx: hf.Context) -> None:
    await shop.sleep(48 + (ctx.item or 0) % 7)


@graph.node
async def merge(state: dict) -> None:
    await shop.sleep(30)


etl = graph.chain(START, extract, load, merge, END).compile()
