"""Burr with its SQLite persister: the whole state is written after every action, one commit each."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from burr.core import Application, ApplicationBuilder, State, action
from burr.core.persistence import SQLitePersister

from bench import payloads
from bench.peers.asked import Answer, Asked, Clock, Laps, answer, settings


@action(reads=["step"], writes=["step"])
def count(state: State) -> State:
    return state.update(step=state["step"] + 1)


def _connected(asked: Asked) -> tuple[sqlite3.Connection, SQLitePersister]:
    connection = sqlite3.connect(asked.path)
    persister = SQLitePersister(str(asked.path), connection=connection)
    persister.initialize()
    return connection, persister


def _chain(persister: SQLitePersister, name: str, nodes: int, first: dict[str, Any]) -> Application:
    names = [f"n{number}" for number in range(nodes)]
    return _built(persister, name, dict.fromkeys(names, count), list(pairwise(names)), first)


def _built(
    persister: SQLitePersister, name: str, actions: dict[str, Any], edges: list[Any], first: dict[str, Any]
) -> Application:
    builder = ApplicationBuilder().with_actions(**actions).with_transitions(*edges).with_state(**first)
    return (
        builder.with_entrypoint(next(iter(actions)))
        .with_state_persister(persister)
        .with_identifiers(app_id=name)
        .build()
    )


def chain(asked: Asked) -> Answer:
    connection, persister = _connected(asked)
    for name in ("warm-up", "measured"):
        app = _chain(persister, name, asked.steps, {"step": 0, "note": ""})
        with Clock() as clock:
            _, _, state = app.run(halt_after=[f"n{asked.steps - 1}"])
    assert state["step"] == asked.steps
    found = settings(connection.execute)
    connection.close()
    return Answer(clock.wall_s, asked.steps, **found)


def fleet(asked: Asked) -> Answer:
    """An application is one thread of control: many at once take turns, an action each, on one connection."""
    connection, persister = _connected(asked)
    _chain(persister, "warm-up", 300, {"step": 0}).run(halt_after=["n299"])
    apps = [
        _chain(persister, f"r{number}", asked.steps, {"step": 0, "note": ""}) for number in range(asked.runs)
    ]
    with Clock() as clock:
        for _ in range(asked.steps):
            for app in apps:
                app.step()
    assert all(app.state["step"] == asked.steps for app in apps)
    found = settings(connection.execute)
    connection.close()
    return Answer(clock.wall_s, asked.steps * asked.runs, **found, note=", runs take turns, one step each")


def _loop(
    asked: Asked, again: Any, first: dict[str, Any], ended: Callable[[], None] = lambda: None
) -> Answer:
    connection, persister = _connected(asked)
    _chain(persister, "warm-up", 300, {"step": 0}).run(halt_after=["n299"])
    app = _built(persister, "measured", {"again": again}, [("again", "again")], first)
    with Clock() as clock:
        for _ in range(asked.steps):
            app.step()
    ended()
    assert app.state["step"] == asked.steps
    found = settings(connection.execute)
    connection.close()
    return Answer(clock.wall_s, asked.steps, **found)


def grow(asked: Asked) -> Answer:
    texts = payloads.texts(asked.steps)

    @action(reads=["step", "letters"], writes=["step", "letters"])
    def write(state: State) -> State:
        return state.append(letters=texts[state["step"]]).update(step=state["step"] + 1)

    return _loop(asked, write, {"step": 0, "letters": []})


def wide(asked: Asked) -> Answer:
    return _loop(asked, count, {"step": 0, **payloads.wide()})


def _rows(asked: Asked, rows: Any) -> Answer:
    """One number changes beside many rows."""
    laps = Laps()

    @action(reads=["step"], writes=["step"])
    def count_beside(state: State) -> State:
        laps.note()
        return state.update(step=state["step"] + 1)

    return _timed_loop(asked, laps, count_beside, {"step": 0, "rows": rows})


def rows(asked: Asked) -> Answer:
    return _rows(asked, payloads.rows(asked.size))


def rows_by_name(asked: Asked) -> Answer:
    return _rows(asked, payloads.rows_by_name(asked.size))


def messages(asked: Asked) -> Answer:
    """Every step appends a message to a history."""
    told, laps = payloads.messages(asked.size + asked.steps), Laps()

    @action(reads=["step", "messages"], writes=["step", "messages"])
    def say(state: State) -> State:
        laps.note()
        return state.append(messages=told[asked.size + state["step"]]).update(step=state["step"] + 1)

    return _timed_loop(asked, laps, say, {"step": 0, "messages": told[: asked.size]})


def _timed_loop(asked: Asked, laps: Laps, again: Any, first: dict[str, Any]) -> Answer:
    found = _loop(asked, again, first, laps.note)
    return replace(found, **laps.taken())


if __name__ == "__main__":
    answer(
        {
            "chain": chain,
            "fleet": fleet,
            "grow": grow,
            "wide": wide,
            "rows": rows,
            "rows_by_name": rows_by_name,
            "messages": messages,
        },
        "apache-burr",
    )
