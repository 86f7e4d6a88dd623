"""Many processes that resume one run at the same moment. Each prints its result in one line.

    python crowd.py '{"store": URL, "run": "r1", "count": 50}'

The processes are forked before Holdfast opens anything, so that fifty cost no more than a few. All wait until the last one has
started. The process that executes the run prints `executes` from inside its node and stays there until stdin is closed: so
the run is held while all others try to resume it. At the end each process prints `held` or the status of the run.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.runtime import blocking, engine
from holdfast.storage.postgres import store as postgres
from holdfast.storage.sqlite import store as sqlite

LOADED = (blocking, engine, postgres, sqlite)
"""Modules that are loaded once, before the fork; otherwise each of the fifty processes would load them."""

graph = Graph("crowd", dict)


@graph.node
def only(state: dict[str, Any]) -> dict[str, Any]:
    say("executes")
    while sys.stdin.read(1):
        pass
    return {"by": [*state.get("by", []), os.getpid()]}


flow = graph.chain(START, "only", END).compile()


def say(what: str) -> None:
    os.write(
        sys.stdout.fileno(), f"{os.getpid()} {what}\n".encode()
    )  # one write: fifty processes share stdout


def resume(store: str, run_id: str) -> None:
    try:
        run = hf.resume(run_id, store=store, flows=[flow])
    except hf.RunHeld:
        say("held")
    except BaseException as fault:
        say(f"failed {type(fault).__name__}: {' '.join(str(fault).split())}")
    else:
        say(run.status)


def main(asked: dict[str, Any]) -> None:
    shut, open_ = os.pipe()
    children = []
    for _ in range(asked["count"]):
        child = os.fork()
        if not child:
            os.close(open_)
            select.select([shut], [], [])  # readable when all processes have closed the writing end
            resume(asked["store"], asked["run"])
            os._exit(0)
        children.append(child)
    os.close(open_)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
