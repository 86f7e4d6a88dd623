"""The flow one -> two -> three, with receipts, in a process that can be made to die when a given file is about to be written.

    filed.py run|resume STORE RUN_BASE [--die NAME] [--die-in NODE] [--no-artifacts]

`--die receipts/two-engine.1.1.1.json` kills the process after the commit and before it writes this receipt; `--die-in two` kills
it inside the node, after the node has written an artifact. Prints the status of the run.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.documents import files, scribe

RUN_ID = "filed"


@dataclass
class Filed:
    log: Annotated[list[str], append] = field(default_factory=list)


def filed_flow(given: argparse.Namespace) -> hf.Flow[Filed]:
    graph = Graph("filed", Filed)

    def body(state: Filed, ctx: hf.Context) -> dict[str, Any]:
        if not given.no_artifacts:
            ctx.artifacts.write("notes/made.txt", f"by {ctx.node} in attempt {ctx.attempt}")
        if given.die_in == ctx.node and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"log": [ctx.node]}

    for name in ("one", "two", "three"):
        graph.node(name=name)(body)
    return graph.chain(START, "one", "two", "three", END).compile()


def die_before(name: str) -> None:
    def put_all(folder: Path, contents: dict[str, bytes]) -> None:
        if name in contents:
            os.kill(os.getpid(), signal.SIGKILL)
        files.put_all(folder, contents)

    scribe.put_all = put_all


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "resume"])
    parser.add_argument("store")
    parser.add_argument("base")
    parser.add_argument("--die")
    parser.add_argument("--die-in")
    parser.add_argument("--no-artifacts", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if given.die:
        die_before(given.die)
    flow = filed_flow(given)
    if given.verb == "run":
        run = hf.run(flow, Filed(), run_id=RUN_ID, store=given.store, run_base=given.base)
    else:
        run = hf.resume(RUN_ID, flows=[flow], store=given.store, run_base=given.base)
    print(run.status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
