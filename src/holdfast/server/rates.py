"""Limits how many requests per second a token may send, if the server was started with such a limit."""

from __future__ import annotations

import math
from collections import OrderedDict

from holdfast.errors import SettingError
from holdfast.server.problems import refuse

_KEPT_MAX = 10_000


class Rates:
    """Lets each token send `per_second` requests, and as many at once as fit into one second."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and not 0 < per_second < math.inf:
            raise SettingError(f"rate={per_second!r}: give a number of requests per second that is above 0")
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Token -> how many requests it may send at once, and when that was so."""

    def take(self, token_id: str, now: float) -> None:
        """Count a request. Raises `Refused` if the token has sent too many."""
        if self._per_second is None:
            return
        most = max(1.0, self._per_second)
        left, at = self._left.pop(token_id, (most, now))
        left = min(most, left + max(0.0, now - at) * self._per_second)
        self._left[token_id] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _KEPT_MAX:
            self._left.popitem(last=False)
        if left < 1:
            again = max(1, math.ceil((1 - left) / self._per_second))
            raise refuse(
                "too-many-requests",
                f"The token has sent more than {self._per_second:g} requests per second.",
                headers={"Retry-After": str(again)},
            )
