"""The time to list runs in a store with many runs: a page of 50 by each filter, with reasons and remedies, as the server and
`holdfast runs` read it; a page of questions, and the board.

The runs are written with real appends. Each filter is timed several times, and the fastest counts: other work on the machine only
makes it slower.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.parts import Bench
from bench.report import Figure, at_most
from bench.stores import Place, StoreKind
from holdfast.core.events import Failure
from holdfast.core.run_state import Question
from holdfast.core.situation import Said, Situation, dump
from holdfast.reading import attention
from holdfast.reading.pages import list_questions
from holdfast.reading.reader import Reader
from holdfast.storage.contract import Append, Position, Query, Store
from holdfast.testing.appends import Log

PAGE = 50
TARGET_MS = 20.0
_BATCH = 500
_TIMES = 15
_STATUSES = {
    "completed": 80,
    "failed": 8,
    "waiting": 6,
    "running": 3,
    "pending": 1,
    "paused": 1,
    "cancelled": 1,
}
_NO_LUCK = Failure("partial", "CardDeclined", "the card was declined")
_ASKS = Question("charge.1.1", "charge", "Charge the card again?", ["yes", "no"], 0.0, about="ask")
_SITUATIONS = {
    "failed": dump(
        Situation(running=(), failed=("charge",), failure=_NO_LUCK, failure_node="charge", is_stuck=True)
    ),
    "waiting": dump(Situation(running=(), asks=1, questions=(_ASKS,))),
    "paused": dump(Situation(running=(), said=Said("RunPaused", by="ada", reason="lunch"))),
}
_APART_S = 0.5


def listings(bench: Bench) -> list[Figure]:
    """Pages of a store with many runs, by each filter."""
    kinds: tuple[StoreKind, ...] = ("sqlite", "postgres") if bench.server else ("sqlite",)
    count = 10_000 if bench.effort.name == "quick" else 100_000
    figures = []
    for kind in kinds:
        with bench.fresh(kind) as place:
            bench.progress.say(f"list {count:,} runs, {kind}")
            figures += measure(place, count)
    return figures


def measure(place: Place, count: int) -> list[Figure]:
    """Write this many runs, and time every filter."""
    store = place.open()
    if place.kind == "postgres":
        import psycopg
    try:
        fill(store, count)
        if place.kind == "postgres":  # as the server does by itself, within a minute
            with psycopg.connect(place.url, autocommit=True) as connection:
                connection.execute("analyze")
        reader, middle = Reader(store), store.run(f"run-{count // 2:06d}").position
        took = {
            name: _fastest_ms(lambda query=query: reader.page(query))
            for name, query in filters(count, middle)
        }
        took["attention"] = _fastest_ms(lambda: reader.page(Query(limit=PAGE), attention=True))
        worst = max(took, key=lambda name: took[name])
        questions = _fastest_ms(lambda: list_questions(store, Query(limit=PAGE)))
        board = _fastest_ms(lambda: attention.count(store, store.queues.board(), {}))
    finally:
        store.close()
    of = f"{count:,} runs, {place.kind}"
    return [
        Figure(f"the slowest page by one filter, {of}", "ms", [took[worst]], at_most(TARGET_MS), note=f"filter: {worst}",
               beside={f"ms by {name}": [ms] for name, ms in took.items()}),
        Figure(f"a page of questions, {of}", "ms", [questions], at_most(TARGET_MS)),
        Figure(f"the board, {of}", "ms", [board]),
    ]  # fmt: skip


def filters(count: int, middle: Position) -> Iterator[tuple[str, Query]]:
    """Yield a query for each filter, and for the usual pairs of filters."""
    at = middle.created_at
    few = tuple(f"run-{number:06d}" for number in range(0, count, count // PAGE))
    yield from (
        (name, Query(limit=PAGE, **conditions))
        for name, conditions in dict[str, dict[str, Any]](
            everything={},
            completed={"status": ("completed",)},
            three_statuses={"status": ("failed", "waiting", "running")},
            flow={"flow": "flow20"},
            rare_flow={"flow": "flow3"},
            flow_and_status={"flow": "flow3", "status": ("failed",)},
            label={"labels": {"team": "a"}},
            rare_label={"labels": {"customer": "7"}},
            two_labels={"labels": {"team": "b", "customer": "7"}},
            label_and_status={"labels": {"team": "a"}, "status": ("cancelled",)},
            parent={"parent": "run-000001"},
            queue={"queue": "default"},
            rare_queue={"queue": "rare"},
            ids={"ids": few},
            prefix={"prefix": f"run-{count // 200:05d}"},
            questions={"asks": True},
            created={"created": (at - 1000.0, at)},
            after={"after": middle},
            completed_after={"status": ("completed",), "after": middle},
            label_after={"labels": {"team": "a"}, "after": middle},
        ).items()
    )


def fill(store: Store, count: int) -> None:
    """Write this many runs of some flows, statuses, labels and queues."""
    luck = random.Random(1)
    now = store.now()
    batch: list[Append] = []
    for number in range(count):
        status = luck.choices(list(_STATUSES), list(_STATUSES.values()))[0]
        log = Log(f"run-{number:06d}")
        log.at = now - (count - number) * _APART_S
        batch.append(
            log.create(
                flow=f"flow{min(number % 200, 20)}",
                created_at=log.at,
                status=status,
                labels={"team": "ab"[number % 2], "customer": str(number % 500)},
                queue="rare" if number % 1000 == 0 else "default",
                parent="run-000001" if number % 20 == 5 else None,
                active=("charge",) if status == "running" else (),
                asks=int(status == "waiting"),
                active_s=1.5,
                situation=_SITUATIONS.get(status),
            )
        )
        if len(batch) == _BATCH or number == count - 1:
            assert not any(store.append(batch))
            batch = []


def _fastest_ms(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3
