"""Plan the SQL of a listing: which index to walk, and which conditions to check on the way. SQLite and PostgreSQL share the plan;
each has the named parts of the statement in its own `sql/queries.sql`.

A page is found in two steps. A *walk* goes along one index in the order of the listing, until it has found enough keys; then the
rows of these keys are read. Without it, a database sorts all runs that meet the conditions, or guesses an index from statistics
that it may not have. If runs of several statuses are wanted, there is one walk for each status, and the pages are merged.

Only the first of these conditions decides where to walk: ids, parent, origin, questions, a rare label, a rare prefix, flow
(with or without statuses), queue, statuses, a label. Of several labels, it is the rarest. The other conditions are checked for
each run that the walk passes, so a page by two conditions that seldom meet reads many runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.core.run_state import TAKEABLE
from holdfast.storage.contract import STATUSES, Position, Query, in_order

FEW = 1000
"""If fewer runs than this have a prefix, they are all read and sorted; otherwise the walk goes over all runs, newest first. No
more runs are counted than this."""
Count: TypeAlias = Callable[..., int]
"""Counts what a named query selects with these values, up to `FEW`."""
_ORDERS = {
    "walk_ids": "newest_of_few",
    "walk_parent": "newest_of_parent",
    "walk_origin": "newest_of_origin",
    "walk_asking": "newest",
    "walk_label": "newest_of_label",
    "walk_prefix": "newest_of_few",
    "walk_flow": "newest_of_flow",
    "walk_queue": "newest_of_queue",
    "walk_status": "newest_of_status",
    "walk_age": "newest",
}
"""The order of each walk. In SQLite a walk names its index. In PostgreSQL its order begins with the first column of its index,
and the value of that column is in an array: with `=`, the column would drop out of the order, which an index over all runs would
then match as well, and the planner might take that one and pass nearly all runs to find a page."""
_MEETS = {
    "walk_parent": "with_parent",
    "walk_origin": "with_origin",
    "walk_asking": "with_questions",
    "walk_flow": "with_flow",
    "walk_queue": "with_queue",
}
"""The condition that all runs of a walk meet."""
_NEWEST = Position(math.inf, "")
_LAST = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)


class PagePlan(NamedTuple):
    """The named parts of a statement, in order, and the values of their parameters, in order."""

    parts: list[str]
    values: list[Any]


def range_of(prefix: str) -> tuple[str, str]:
    """Return the first text that begins with a prefix, and a text after all that do, in the order of code points."""
    kept = prefix.rstrip(_LAST)
    if not kept:
        return prefix, _LAST * 1000
    code = ord(kept[-1]) + 1
    return prefix, kept[:-1] + chr(code if code not in _SURROGATES else _SURROGATES.stop)


def plan(
    query: Query, *, count: Count, as_list: Callable[[Sequence[str]], Any], offer: Callable[[], Sequence[Any]]
) -> PagePlan:
    """Plan the statement that reads a page. `count` counts the runs that a label or a prefix selects, `as_list` makes a list of
    texts into a parameter, and `offer` returns the values of the condition `with_offer`.
    """
    if query.offered and not query.status:
        query = msgspec.structs.replace(query, status=in_order(TAKEABLE))
    wanted, labels = list(dict.fromkeys(query.status)), list(query.labels.items())
    walk, one, values = _walk(query, labels, count=count, as_list=as_list)
    after = query.begins_after or _NEWEST
    bound = [-math.inf if query.created[0] is None else query.created[0], after.created_at, after.run_id, one]
    parts = [walk]
    begin, end = "page", "page_end"
    if walk in ("walk_flow", "walk_status"):
        begin, end = "page_of_statuses", "page_of_statuses_end"
        bound.append(as_list(wanted or STATUSES))
    elif wanted:
        parts.append("with_status")
        values.append(as_list(wanted))
    if walk == "walk_label":
        del labels[0]
    for part, given in _conditions(query, labels, offer):
        if part != _MEETS.get(walk):
            parts.append(part)
            values.extend(given)
    limit = max(query.limit, 0)
    return PagePlan(["runs", begin, *parts, _ORDERS[walk], end], [*bound, *values, limit, limit])


def _walk(
    query: Query, labels: list[tuple[str, str]], *, count: Count, as_list: Callable[[Sequence[str]], Any]
) -> tuple[str, str | None, list[Any]]:
    """Choose a walk, and put the rarest label first. Returns the name of the walk, the flow, parent, origin or queue whose
    runs it passes, and its values.
    """
    if query.ids is not None:
        return "walk_ids", None, [as_list(list(dict.fromkeys(query.ids)))]
    if query.parent is not None:
        return "walk_parent", query.parent, []
    if query.origin is not None:
        return "walk_origin", query.origin, []
    if query.asks:
        return "walk_asking", None, []
    other = query.flow is not None or query.queue is not None or bool(query.status)
    if labels and (other or len(labels) > 1):
        found = {label: count("count_label", *label) for label in labels}
        labels.sort(key=found.__getitem__)
        other = other and found[labels[0]] >= FEW
    if labels and not other:
        return "walk_label", None, [*labels[0]]
    if query.prefix and count("count_prefix", *range_of(query.prefix)) < FEW:
        return "walk_prefix", None, []
    if query.flow is not None:
        return "walk_flow", query.flow, []
    if query.queue is not None:
        return "walk_queue", query.queue, []
    return "walk_status" if query.status else "walk_age", None, []


def _conditions(
    query: Query, labels: list[tuple[str, str]], offer: Callable[[], Sequence[Any]]
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the conditions of a query on the runs that a walk passes, except those on status and time, with their values."""
    if query.parent is not None:
        yield "with_parent", [query.parent]
    if query.origin is not None:
        yield "with_origin", [query.origin]
    if query.flow is not None:
        yield "with_flow", [query.flow]
    if query.queue is not None:
        yield "with_queue", [query.queue]
    if query.without_fingerprint is not None:
        yield "without_fingerprint", [query.without_fingerprint]
    for label in labels:
        yield "with_label", label
    if query.asks:
        yield "with_questions", []
    if query.offered:
        yield "with_offer", offer()
    if query.prefix:
        yield "with_prefix", range_of(query.prefix)
