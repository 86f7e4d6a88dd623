"""DBOS on SQLite, or on PostgreSQL: every step's result is written, one commit each. It keeps no state of a run, so the
workloads with a growing or wide state do not apply.
"""

import sqlalchemy
from dbos import DBOS
from dbos._dbos import _get_dbos_instance

from bench.peers.asked import Answer, Asked, Clock, answer, server_settings, settings


@DBOS.step()
def count(number: int) -> int:
    return number + 1


@DBOS.workflow()
def counting(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = count(number)
    return number


def _launch(asked: Asked) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": asked.url or f"sqlite:///{asked.path}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()


def _durability(asked: Asked) -> dict[str, object]:
    ask = server_settings if asked.url else settings
    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        return ask(lambda statement: connection.execute(sqlalchemy.text(statement)))


def chain(asked: Asked) -> Answer:
    _launch(asked)
    for _ in range(2):
        with Clock() as clock:
            assert counting(asked.steps) == asked.steps
    found = _durability(asked)
    DBOS.destroy()
    return Answer(clock.wall_s, asked.steps, **found)


def fleet(asked: Asked) -> Answer:
    """Plain workflows at once: each in a thread of the library."""
    _launch(asked)
    counting(100)
    with Clock() as clock:
        handles = [DBOS.start_workflow(counting, asked.steps) for _ in range(asked.runs)]
        assert all(handle.get_result() == asked.steps for handle in handles)
    found = _durability(asked)
    DBOS.destroy()
    return Answer(clock.wall_s, asked.steps * asked.runs, **found)


if __name__ == "__main__":
    answer({"chain": chain, "fleet": fleet}, "dbos")
