"""Execute a node forty times, each time writing a page into the state, with a limit on the size of files: pages.py STORE WITNESS
[BYTES_MAX]
"""

from __future__ import annotations

import random
import resource
import signal
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, append

PAGES = 40


@dataclass
class Book:
    pages: Annotated[list[str], append] = field(default_factory=list)


def book_flow(witness: str) -> hf.Flow[Book]:
    graph = Graph("book", Book)

    @graph.node
    def write(state: Book, ctx: hf.Context) -> dict[str, Any]:
        with open(witness, "a", encoding="utf-8") as file:
            file.write(f"{ctx.iteration}\n")
        return {
            "pages": [random.Random(ctx.iteration).randbytes(20_000).hex()]
        }  # random, so that it cannot be compressed

    graph.edge(START, "write").branch(
        "write", lambda state: "write" if len(state.pages) < PAGES else END, to=["write", END]
    )
    return graph.compile()


def main() -> int:
    store, witness, *limit = sys.argv[1:]
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), resource.RLIM_INFINITY))
    try:
        run = hf.run(book_flow(witness), Book(), run_id="book", store=store, lease_ttl=1)
    except hf.StoreError as fault:
        print(f"{type(fault).__name__}: {fault}")
        return 3
    print(run.status, len(run.state.pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
