"""Detect that the process was forked since an object was created: connections, locks and threads do not survive a fork.

`count` grows by one in every forked child. Stores and writers check it before every operation: comparing two numbers costs next
to nothing, while asking the kernel for the process id takes longer than folding an event.
"""

from __future__ import annotations

import os

count = 0


def _count_fork() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_count_fork)
