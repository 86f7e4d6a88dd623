"""What the runs of one engine share. Time, luck and threads come from here, so that a test can drive everything
from one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.runtime.bodies import Threads
from holdfast.runtime.clock import Clock
from holdfast.runtime.commits import Commits
from holdfast.storage.contract import Holder, Store


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's means."""

    store: Store
    commits: Commits
    clock: Clock
    luck: random.Random
    salts: Callable[[int], bytes]
    """That many random bytes."""
    holder: Holder
    resources: Mapping[str, Any]
    threads: Threads | None
    """None: plain functions are called on the event loop."""
    saved: Callable[[str], None]
    """Called with a run id when something new is durable in its log."""
