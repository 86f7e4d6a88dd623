"""How far something long has come, on a terminal; elsewhere nothing is said of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.cli import screen

Gauge: TypeAlias = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much (0: not known)."""


@contextmanager
def gauge(*, quiet: bool = False) -> Iterator[Gauge]:
    """A bar on stderr that is shown during the block and removed after it."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen.console(err=True), transient=True) as bar:
        line = bar.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bar.update(line, description=screen.one_line(what, 40), completed=done, total=of or None)

        yield tell
