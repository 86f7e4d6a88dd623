"""`Recorder`: what an attempt uses of the runner that drives its run."""

from __future__ import annotations

from typing import Protocol

from holdfast.runtime.calls.body import Body
from holdfast.runtime.journal import Journal


class Recorder(Protocol):
    """The methods of a runner that an attempt uses."""

    journal: Journal
    park_after_s: float

    def is_current(self, body: Body) -> bool: ...

    def cleans_up(self, body: Body) -> bool: ...

    def look_again(self) -> None: ...

    def leave_if_crowded(self) -> None: ...

    def record_stream(self, body: Body) -> None: ...
