"""LangGraph with its SQLite checkpointers, or that for PostgreSQL, and durability="sync": the whole state is written at every
superstep. Rows and histories are also measured as the library is shipped: it writes a checkpoint while the next node runs.
"""

import asyncio
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench import payloads
from bench.peers.asked import Answer, Asked, Clock, Laps, answer, server_settings, settings

_NOTE = ', durability="sync"'
_SYNC = {"durability": "sync"}


class Counter(TypedDict):
    step: int
    note: str


class Letters(TypedDict):
    step: int
    letters: Annotated[list[str], operator.add]


def count(state: Any) -> dict[str, Any]:
    return {"step": state["step"] + 1}


async def count_async(state: Any) -> dict[str, Any]:
    return {"step": state["step"] + 1}


def _chain(nodes: int, fn: Callable[..., Any]) -> StateGraph:
    graph = StateGraph(Counter)
    for number in range(nodes):
        graph.add_node(f"n{number}", fn)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return graph.add_edge(f"n{nodes - 1}", END)


def _thread(name: str, steps: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}


def chain(asked: Asked) -> Answer:
    with SqliteSaver.from_conn_string(str(asked.path)) as saver:
        app = _chain(asked.steps, count).compile(checkpointer=saver)
        for name in ("warm-up", "measured"):
            with Clock() as clock:
                found = app.invoke({"step": 0, "note": ""}, _thread(name, asked.steps), durability="sync")
        assert found["step"] == asked.steps
        return Answer(clock.wall_s, asked.steps, **settings(saver.conn.execute), note=_NOTE)


@asynccontextmanager
async def _saver(asked: Asked) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """A checkpointer for many runs at once, and its durability."""
    if asked.url:
        import psycopg
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(asked.url, min_size=10, max_size=10, kwargs=how) as pool:
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            with psycopg.connect(asked.url) as connection:
                durable = server_settings(connection.execute)
            yield saver, durable
        return
    async with AsyncSqliteSaver.from_conn_string(str(asked.path)) as saver:
        await saver.setup()
        seen = {}
        for name in ("synchronous", "journal_mode"):
            async with saver.conn.execute(f"pragma {name}") as cursor:
                seen[name] = (await cursor.fetchone())[0]
        yield saver, {"synchronous": seen["synchronous"], "journal": f"journal mode {seen['journal_mode']}"}


def fleet(asked: Asked) -> Answer:
    async def main() -> Answer:
        async with _saver(asked) as (saver, durable):
            app = _chain(asked.steps, count_async).compile(checkpointer=saver)

            async def run_all(name: str, runs: int) -> list[Any]:
                calls = (
                    app.ainvoke(
                        {"step": 0, "note": ""}, _thread(f"{name}{n}", asked.steps), durability="sync"
                    )
                    for n in range(runs)
                )
                return await asyncio.gather(*calls)

            await run_all("warm-up", 20)
            with Clock() as clock:
                found = await run_all("measured", asked.runs)
            assert all(state["step"] == asked.steps for state in found)
            return Answer(clock.wall_s, asked.steps * asked.runs, **durable, note=_NOTE)

    return asyncio.run(main())


class Rows(TypedDict):
    step: int
    rows: list[dict[str, Any]]


class RowsByName(TypedDict):
    step: int
    rows: dict[str, dict[str, Any]]


class Talk(TypedDict):
    step: int
    messages: Annotated[list[dict[str, Any]], operator.add]


def _loop(
    asked: Asked,
    state: Any,
    fn: Callable[..., Any],
    first: dict[str, Any],
    ended: Callable[[], None] = lambda: None,
    **durable: Any,
) -> Answer:
    graph = StateGraph(state)
    graph.add_node("again", fn)
    graph.add_edge(START, "again")
    graph.add_conditional_edges("again", lambda seen: "again" if seen["step"] < asked.steps else END)
    with SqliteSaver.from_conn_string(str(asked.path)) as saver:
        warm_up = _chain(100, count).compile(checkpointer=saver)
        warm_up.invoke({"step": 0, "note": ""}, _thread("warm-up", 100), durability="sync")
        app = graph.compile(checkpointer=saver)
        with Clock() as clock:
            found = app.invoke(first, _thread("measured", asked.steps), **(durable or _SYNC))
        ended()
        assert found["step"] == asked.steps
        return Answer(clock.wall_s, asked.steps, **settings(saver.conn.execute), note=_NOTE)


def grow(asked: Asked) -> Answer:
    texts = payloads.texts(asked.steps)

    def write(state: Letters) -> dict[str, Any]:
        return {"step": state["step"] + 1, "letters": [texts[state["step"]]]}

    return _loop(asked, Letters, write, {"step": 0, "letters": []})


def wide(asked: Asked) -> Answer:
    """A type of a hundred fields."""
    fields = payloads.wide()
    state = TypedDict("Wide", {"step": int, **dict.fromkeys(fields, list[str])})
    return _loop(asked, state, count, {"step": 0, **fields})


def wide_plain(asked: Asked) -> Answer:
    """A plain dict is the whole state; its node must return all of it."""

    def count_whole(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "step": state["step"] + 1}

    return _loop(asked, dict, count_whole, {"step": 0, **payloads.wide()})


def _rows(asked: Asked, state: Any, rows: Any) -> Answer:
    """One number changes beside many rows."""
    laps = Laps()

    def count_beside(state: Any) -> dict[str, Any]:
        laps.note()
        return {"step": state["step"] + 1}

    return _timed_loop(asked, laps, state, count_beside, {"step": 0, "rows": rows})


def rows(asked: Asked) -> Answer:
    return _rows(asked, Rows, payloads.rows(asked.size))


def rows_by_name(asked: Asked) -> Answer:
    return _rows(asked, RowsByName, payloads.rows_by_name(asked.size))


def messages(asked: Asked) -> Answer:
    """Every step appends a message to a history."""
    told, laps = payloads.messages(asked.size + asked.steps), Laps()

    def say(state: Talk) -> dict[str, Any]:
        laps.note()
        return {"step": state["step"] + 1, "messages": [told[asked.size + state["step"]]]}

    return _timed_loop(asked, laps, Talk, say, {"step": 0, "messages": told[: asked.size]})


def _timed_loop(
    asked: Asked, laps: Laps, state: Any, fn: Callable[..., Any], first: dict[str, Any]
) -> Answer:
    durability = "sync" if asked.mode == "sync" else None
    found = _loop(asked, state, fn, first, laps.note, durability=durability)
    return replace(found, **laps.taken(), note=_NOTE if durability else ', durability="async"')


if __name__ == "__main__":
    answer(
        {
            "chain": chain,
            "fleet": fleet,
            "grow": grow,
            "wide": wide,
            "wide_plain": wide_plain,
            "rows": rows,
            "rows_by_name": rows_by_name,
            "messages": messages,
        },
        "langgraph",
        "langgraph-checkpoint-sqlite",
        "langgraph-checkpoint-postgres",
    )
