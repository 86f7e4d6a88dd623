"""A progress bar for long operations. It is shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.cli import screen

Gauge: TypeAlias = Callable[[str, int, int], None]
"""Called with a description of the work, how much of it is done, and the total (0 if unknown)."""


@contextmanager
def gauge(*, quiet: bool = False) -> Iterator[Gauge]:
    """Show a progress bar on stderr during the block; yields the function that updates it."""
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
