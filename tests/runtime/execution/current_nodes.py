"""Nodes for `test_current_context`: each calls a library that keeps a step, and fails once after that. Top-level functions,
because the process of a node finds them by name.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry


def _call(file: str, node: str) -> str:
    with Path(file).open("a") as calls:
        calls.write("called\n")
    return f"kept by {node}"


def _fail_once(ctx: Any) -> None:
    if ctx.attempt == 1:
        raise hf.Recoverable(f"attempt 1 in process {os.getpid()}")


def library(file: str) -> str:
    ctx = hf.current()
    assert isinstance(ctx, hf.BlockingContext)
    kept = ctx.step("library", _call, file, ctx.node)
    _fail_once(ctx)
    return str(kept)


async def async_library(file: str) -> str:
    ctx = hf.current()
    assert isinstance(ctx, hf.Context)
    kept = await ctx.step("library", _call, file, ctx.node)
    _fail_once(ctx)
    return str(kept)


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {"kept": [library(state["calls"])]}


def plain_with_context(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
    return {"kept": [library(state["calls"])]}


async def coroutine(state: dict[str, Any]) -> dict[str, Any]:
    return {"kept": [await async_library(state["calls"])]}


async def coroutine_with_context(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    return {"kept": await asyncio.gather(async_library(state["calls"]))}


async def thread_of_a_coroutine(state: dict[str, Any]) -> dict[str, Any]:
    return {"kept": [await asyncio.to_thread(library, state["calls"])]}


COLOURS = {
    "def": (plain, "thread"),
    "def with a context": (plain_with_context, "thread"),
    "async": (coroutine, "thread"),
    "async with a context": (coroutine_with_context, "thread"),
    "a thread of an async": (thread_of_a_coroutine, "thread"),
    "def in a process": (plain, "process"),
    "def with a context in a process": (plain_with_context, "process"),
    "async in a process": (coroutine, "process"),
    "async with a context in a process": (coroutine_with_context, "process"),
}


def flow_of(colour: str) -> Flow[dict[str, Any]]:
    body, executor = COLOURS[colour]
    graph: Graph[dict[str, Any]] = Graph("current")
    graph.node(name="only", executor=executor, retry=Retry(attempts=2, backoff=0))(body)
    return graph.chain(START, "only", END).compile()
