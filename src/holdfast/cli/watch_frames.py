"""Lays out what `holdfast watch` shows: from the facts about a run or a list of runs to the lines of a screen. Pure: it reads no
clock, no store and no terminal.

A frame has at most `height` lines of at most `width` columns. What does not fit is counted: nodes that run, failed or wait come
first. All text passes through `screen.one_line`, so that no name or output has an effect on the terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from holdfast.cli import screen
from holdfast.cli.looks import (
    BROKEN,
    DONE,
    ENGINE,
    LOOKS,
    NOBODY,
    PERSON,
    WORD_COLUMNS,
    Look,
    look_of_node,
    look_of_run,
    shown,
)
from holdfast.cli.screen import Part
from holdfast.core.run_state import VISIT_DONE, VISIT_OPEN, Question
from holdfast.reading import words
from holdfast.reading.diagnosis import ON_OFFER, asks
from holdfast.reading.pages import ListedRun
from holdfast.reading.picture import NodeMark
from holdfast.reading.remedies import Remedy
from holdfast.reading.spans import HolderSpan
from holdfast.reading.stream_tails import StreamTail
from holdfast.reading.watched import RunSeen, RunsSeen
from holdfast.storage.contract import STATUSES, Query

Line: TypeAlias = list[Part]

_NARROW = 60
"""On a narrower screen, a run takes two lines: its reason has a line of its own."""
_STATUS = WORD_COLUMNS + 2
_RUN_MAX, _FLOW_MAX, _NODE_MAX = 32, 18, 32
_REASON_LINES, _QUESTION_LINES = 3, 3
_STREAM_LINES = 8
_STREAM_LINES_MAX = 20
_URGENT = ("failed", "crashed", "asks", "running", "waiting", "interrupted", "pending")
"""The order of nodes if not all fit."""


class Viewport(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a frame, and the moment that it shows."""

    width: int
    height: int
    now: float
    """The store's time."""
    trouble: str = ""
    """Why the store does not answer; then times are given as times of the clock."""

    def age(self, at: float) -> str:
        return screen.time_of_day(at)[:8] if self.trouble else screen.ago(self.now - at)


# --- lines -------------------------------------------------------------------------------------------


def wrap(text: str, width: int, most: int) -> list[str]:
    """Return a text in at most `most` lines, broken at spaces; what does not fit is cut."""
    lines = [""]
    for word in screen.one_line(text).split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if screen.width_of(joined) <= width or len(lines) == most or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    return [screen.cut(line, width) for line in lines]


def _joined(facts: Iterable[str], width: int) -> Line:
    return [(screen.cut(" · ".join(fact for fact in facts if fact), width), NOBODY)]


def foot(view: Viewport) -> Line:
    """Return the last line: whether what is shown is live, and how to leave."""
    if view.trouble:
        return [(screen.padded(screen.cut(view.trouble, view.width), view.width), f"bold {PERSON}")]
    left, right = f"Live · {screen.time_of_day(view.now)[:8]}", "Ctrl-C ends watching"
    if len(left) + len(right) + 2 > view.width:
        return [(screen.cut(f"{left} · {right}", view.width), NOBODY)]
    return [(left, NOBODY), " " * (view.width - len(left) - len(right)), (right, NOBODY)]


def _fitted(body: Sequence[Line], view: Viewport, last: Line) -> list[Line]:
    """Return as many lines as fit, and the last line at the bottom."""
    kept = list(body[: view.height - 1])
    return [*kept, *([] for _ in range(view.height - 1 - len(kept))), last]


# --- one run -----------------------------------------------------------------------------------------


def run_frame(seen: RunSeen, view: Viewport) -> list[Line]:
    """Return the screen for one run: its head, its nodes, its open question and its streams."""
    last = foot(view)
    head = run_head(seen, view)
    room = view.height - len(head) - 2
    acts = question_lines(seen, view)[: max(2, room // 2)]
    room -= len(acts) + bool(acts)
    streams = stream_lines(seen.streams, view, max(2, min(_STREAM_LINES, room // 3)))
    nodes = node_lines(seen, view, max(2, room - len(streams) - bool(streams)))
    spare = room - len(nodes) - 1 - len(streams)
    if spare > 0 and streams:
        most = min(_STREAM_LINES_MAX, len(streams) - 1 + spare)
        streams = stream_lines(seen.streams, view, most)
    parts = [part for part in (head, nodes, acts, streams) if part]
    body = [line for part in parts for line in ([], *part)][1:]
    return _fitted(body, view, last)


def run_head(seen: RunSeen, view: Viewport) -> list[Line]:
    """Return what the run is doing and why, and the facts about it."""
    row, found, width = seen.row, seen.found, view.width
    look = look_of_run(found)
    flow = f"flow {row.flow}"
    room = width - len(look.word) - 4
    name = screen.cut_middle(row.run_id, max(room - screen.width_of(flow) - 2, room // 2))
    left = room - screen.width_of(name) - 2
    title: Line = [*_bold(look), "  ", (name, "bold"), "  ", (screen.cut_middle(flow, left), NOBODY)]
    reason: list[Line] = [[line] for line in wrap(found.reason, width, _REASON_LINES)]
    done = sum(mark.status in VISIT_DONE for mark in seen.nodes.values())
    tries = sum(mark.tries for mark in seen.nodes.values())
    facts = [
        f"{done} of {screen.count(len(seen.definition.nodes), 'node')} done",
        screen.count(tries, "attempt") if tries else "",
        f"active {screen.duration(seen.active_s)}",
        words.cost(seen.cost),
    ]
    place = [
        f"checkpoint {screen.cut_middle(row.run_id, 24)}@{row.seq}",
        view.age(row.updated_at),
        *(f"{name}={value}" for name, value in row.labels.items()),
        f"forked from {row.parent}" if row.parent else "",
        f"called by {row.origin}" if row.origin else "",
    ]
    return [title, *reason, _joined(facts, width), _joined(place, width), *holder_lines(seen.holders, view)]


def _bold(look: Look) -> Line:
    return [(part[0], f"bold {part[1]}") if isinstance(part, tuple) else part for part in shown(look)]


def holder_lines(holders: Sequence[HolderSpan], view: Viewport) -> list[Line]:
    """Return who holds the run, and who held it before and died or was replaced."""
    lines: list[Line] = []
    for holder in reversed(holders[-2:]):
        name = holder.holder or "the process that started it"
        since = f"{screen.time_of_day(holder.started_at)[:8]}"
        match holder.end:
            case None:
                told, tone = f"held by {name} since {since}", ENGINE
            case "died":
                noticed = f", noticed at {_time(holder.noticed_at)}" if holder.noticed_at else ""
                told, tone = f"{name} died after {_time(holder.ended_at)}{noticed}", PERSON
            case "replaced":
                told, tone = f"{name} lost the run after {_time(holder.ended_at)}", PERSON
            case "drained":
                told, tone = f"{name} was asked to stop at {_time(holder.ended_at)}", NOBODY
            case _:
                told, tone = f"{name} released it at {_time(holder.ended_at)}", NOBODY
        lines.append([(screen.cut(told, view.width), tone)])
    return lines


def _time(at: float | None) -> str:
    return screen.time_of_day(at)[:8] if at is not None else "?"


# --- its nodes ---


def node_lines(seen: RunSeen, view: Viewport, most: int) -> list[Line]:
    """Return a line for each node, in the order of the flow if all fit. Otherwise those that failed, run or wait come first, and
    the rest is counted.
    """
    names = list(dict.fromkeys([*seen.definition.nodes, *seen.nodes]))
    looks = {name: look_of_node(seen.nodes.get(name)) for name in names}
    rest = Counter[Look]()
    if len(names) > most:
        ranks = {LOOKS[key]: rank for rank, key in enumerate(_URGENT)}
        order = sorted(names, key=lambda name: ranks.get(looks[name], len(ranks)))
        urgent = [name for name in order if looks[name] in ranks]
        names = (urgent or order)[: most - 1]
        rest.update(looks[name] for name in looks)
        rest.subtract(looks[name] for name in names)
    width = min(_NODE_MAX, max((screen.width_of(_named(seen, name)) for name in names), default=0))
    lines = [_node_line(seen, name, looks[name], width, view) for name in names]
    counted = [f"{number} {look.word}" for look, number in rest.items() if number > 0]
    if counted:
        lines.append([(screen.cut(f"… and {', '.join(counted)}", view.width), NOBODY)])
    return lines


def _named(seen: RunSeen, name: str) -> str:
    """Return the name of a node, marked if its effect must not happen twice."""
    options = seen.definition.nodes.get(name)
    return screen.one_line(name) + (
        " 1\N{MULTIPLICATION SIGN}" if options is not None and not options.idempotent else ""
    )


def _node_line(seen: RunSeen, name: str, look: Look, width: int, view: Viewport) -> Line:
    mark = seen.nodes.get(name)
    room = view.width - _STATUS - 2 - 8 - 2
    width = min(width, room)
    cells: Line = [*shown(look, width=_STATUS), "  "]
    cells.append((screen.padded(screen.cut_middle(_named(seen, name), width), width), "" if mark else NOBODY))
    cells += ["  ", (screen.padded(_spent(mark, view) if mark else "", 8, right=True), NOBODY)]
    left = room - width - 2
    if mark is not None and left >= 8:
        notes = ", ".join(_notes(mark, view))
        cells += ["  ", (screen.cut(notes, left), look.tone if look.tone not in (ENGINE, DONE) else NOBODY)]
    return cells


def _spent(mark: NodeMark, view: Viewport) -> str:
    if not mark.tries:
        return ""
    if mark.crashed:  # it is not known when its process died
        return "—"
    is_going = mark.status == "running" and mark.started_at is not None
    return screen.duration(mark.seconds + (view.now - (mark.started_at or 0.0) if is_going else 0.0))


def _notes(mark: NodeMark, view: Viewport) -> Iterator[str]:
    if mark.items is not None:
        items = mark.items
        yield f"{items.completed} of {screen.count(items.all, 'item')}"
        counts = ((items.failed, "failed"), (items.running, "running"), (items.waiting, "waiting"))
        yield from (f"{number} {word}" for number, word in counts if number)
    if mark.iteration > 1:
        yield f"iteration {mark.iteration}"
    if mark.attempt > 1:
        yield f"attempt {mark.attempt}"
    if mark.waits_for is not None and mark.status != "running":
        yield _awaits(mark, view)
    if mark.error and mark.status in VISIT_OPEN and mark.status != "running":
        yield mark.error


def _awaits(mark: NodeMark, view: Viewport) -> str:
    until = mark.until
    if mark.waits_for == "retry" and until is not None:
        left = until - view.now
        if view.trouble:
            return f"retry at {_time(until)}"
        return f"retry in {screen.duration(left)}" if left > 0 else "retry is due"
    awaited = {
        "question": "asks",
        "signal": "waits for a signal",
        "timer": "sleeps",
        "child": "waits for a child run",
    }
    what = awaited.get(mark.waits_for or "", "")
    return f"{what} until {screen.when(until)}" if until is not None else what


# --- its question and its streams ---


def question_lines(seen: RunSeen, view: Viewport) -> list[Line]:
    """Return what a person needs to act: the first open question, unless the reason says it, its answers, and the next step."""
    found, width = seen.found, view.width
    reason = " ".join(wrap(found.reason, width, _REASON_LINES))
    lines: list[Line] = []
    for question in found.questions[:1]:
        asked = asks(question, found.labels)
        if asked not in reason:
            lines += [[(line, PERSON)] for line in wrap(asked, width, _QUESTION_LINES)]
        lines += [[(line, PERSON)] for line in _answers(question, width)]
    if len(found.questions) > 1:
        more = screen.count(len(found.questions) - 1, "more question")
        lines.append([(screen.cut(f"… and {more}", width), NOBODY)])
    is_left_alone = found.kind in ON_OFFER and not found.crashed
    if look_of_run(found).tone in (PERSON, BROKEN) or is_left_alone:
        for remedy in found.remedies[:1]:
            lines += _next_step(remedy, width)
    return lines


def _answers(question: Question, width: int) -> Iterator[str]:
    if question.options:
        yield screen.cut(f"answers: {' / '.join(map(str, question.options))}", width)
    if question.until is not None:
        yield screen.cut(f"until {screen.when(question.until)}", width)


def _next_step(remedy: Remedy, width: int) -> list[Line]:
    """Return what to do next, and its command, so that it can be copied; not a part of a command, which would be wrong."""
    command = screen.one_line(remedy.command)
    line: Line = [("$ ", NOBODY), (command, "bold")]
    room = width - screen.width_of(command) - 2
    if room < 0:  # which answer to give is not for the command to say
        does = "" if remedy.verb == "answer" else f"Next: {remedy.words}"
        return [[(screen.cut(does, width), NOBODY)]] if does else []
    if screen.width_of(remedy.words) + 5 <= room:
        return [[*line, (f"   # {remedy.words}", NOBODY)]]
    return [[(screen.cut(f"Next: {remedy.words}", width), NOBODY)], line]


def stream_lines(streams: Sequence[StreamTail], view: Viewport, most: int) -> list[Line]:
    """Return the last lines of the stream that has grown last, below a line that names it."""
    tail = next((one for one in reversed(streams) if one.lines(1)), None)
    if tail is None:
        return []
    node, iteration, _, attempt, item = tail.streamer
    which = [f"item {item}"] if item is not None else []
    which += [f"iteration {iteration}"] if iteration > 1 else []
    which += [f"attempt {attempt}", screen.count(tail.chunks, "chunk")]
    others = len({one.streamer for one in streams}) - 1
    which += [f"and {screen.count(others, 'other stream')}"] if others else []
    head = f"{node} streams ({', '.join(which)})"
    lines = [screen.one_line(line) for line in tail.lines(most)]
    return [
        [(screen.cut(head, view.width), "bold")],
        *(_streamed(line, view.width) for line in lines),
    ]


def _streamed(line: str, width: int) -> Line:
    """Return a line of a stream; of a long one its end, which was streamed last."""
    is_long = screen.width_of(line) > width - 2
    return [("| ", NOBODY), "…" + screen.cut(line[::-1], width - 2)[-2::-1] if is_long else line]


# --- many runs ---------------------------------------------------------------------------------------


def list_rows(height: int, width: int) -> int:
    """Return how many runs fit on a screen."""
    return max(1, (height - 5) // (2 if width < _NARROW else 1))


def list_frame(seen: RunsSeen, query: Query, view: Viewport, *, attention: bool = False) -> list[Line]:
    """Return the screen for a list of runs: counts, a row for each run, and how many there are below."""
    width = view.width
    lines: list[Line] = [*count_lines(seen, width), []]
    runs = seen.runs[: list_rows(view.height, width)]
    if width < _NARROW:
        lines += [line for one in runs for line in _card(one, view)]
    elif runs:
        lines += _table(runs, view)
    if not runs:
        is_bare = not attention and query == Query(limit=query.limit)
        told = "No runs yet." if is_bare else "No run matches these options."
        lines.append([(screen.cut(told, width), NOBODY)])
    below = _below(seen, query, len(runs), attention=attention)
    if below:
        lines.append([(screen.cut(below, width), NOBODY)])
    return _fitted(lines, view, foot(view))


def count_lines(seen: RunsSeen, width: int) -> list[Line]:
    """Return how many runs need attention and how many have each status, in as many lines as that takes."""
    number = f"{seen.attention:,} {'needs' if seen.attention == 1 else 'need'} attention"
    cells: list[tuple[str, str]] = [(f"! {number}", f"bold {PERSON}")] if seen.attention else []
    for status in STATUSES:
        if count := seen.counts.get(status, 0):
            look = LOOKS[status]
            cells.append((f"{look.mark} {count:,} {status}", look.word_tone))
    if not cells:
        cells = [("0 runs", NOBODY)]
    lines: list[Line] = [[]]
    taken = 0
    for cell in cells:
        if taken and taken + 2 + screen.width_of(cell[0]) > width:
            lines.append([])
            taken = 0
        lines[-1] += ["  ", cell] if taken else [cell]
        taken += screen.width_of(cell[0]) + (2 if taken else 0)
    return lines


def _below(seen: RunsSeen, query: Query, shown_count: int, *, attention: bool) -> str:
    """Return how many runs are not shown, as far as that is known."""
    by_status = query == Query(status=query.status, limit=query.limit) and not attention
    if by_status:
        wanted = query.status or seen.counts
        more = sum(seen.counts.get(status, 0) for status in wanted) - shown_count
        return f"… {more:,} more {'run' if more == 1 else 'runs'}" if more > 0 else ""
    return "… and more runs" if seen.has_more or len(seen.runs) > shown_count else ""


def _table(runs: Sequence[ListedRun], view: Viewport) -> list[Line]:
    """Return a table of runs. The reason gets at least a third of the width, and names are cut for it."""
    looks = [look_of_run(one.found) for one in runs]
    active = [_roughly(one.active_s) if one.active_s else "—" for one in runs]
    ages = [_age(one, view) for one in runs]
    status = max(len("STATUS"), *(len(look.word) + 2 for look in looks))
    spent, age = (max(map(len, cells)) for cells in (["ACTIVE", *active], ["UPDATED", *ages]))
    room = view.width - status - spent - age - 10
    run = _widest("RUN", (one.row.run_id for one in runs), min(_RUN_MAX, room // 3))
    flow = _widest("FLOW", (one.row.flow for one in runs), min(_FLOW_MAX, room // 6))
    room -= run + flow
    widths = (status, run, flow, room, spent, age)
    heads = ("STATUS", "RUN", "FLOW", "REASON", "ACTIVE", "UPDATED")
    cells = [
        screen.padded(head, width, right=head in heads[4:]) for head, width in zip(heads, widths, strict=True)
    ]
    lines: list[Line] = [[("  ".join(cells), "bold")]]
    for one, look, took, old in zip(runs, looks, active, ages, strict=True):
        lines.append([
            *shown(look, width=status), "  ",
            screen.padded(screen.cut_middle(one.row.run_id, run), run), "  ",
            (screen.padded(screen.cut_middle(one.row.flow, flow), flow), NOBODY), "  ",
            screen.padded(_reason(one, room), room), "  ",
            (screen.padded(took, spent, right=True), NOBODY), "  ", (screen.padded(old, age, right=True), NOBODY),
        ])  # fmt: skip
    return lines


def _widest(head: str, cells: Iterable[str], most: int) -> int:
    return max(len(head), min(most, max(map(screen.width_of, map(screen.one_line, cells)))))


def _reason(one: ListedRun, width: int) -> str:
    """Return the reason of a run; if it must be cut, with its end if that says what the run executes now."""
    reason = one.found.reason
    return screen.cut_middle(reason, width) if one.found.kind == "executing" else screen.cut(reason, width)


def _roughly(seconds: float) -> str:
    """Format a duration in its largest unit: `0.31 s`, `3 min`, `5 h`."""
    return " ".join(screen.duration(seconds).split(" ")[:2])


def _age(one: ListedRun, view: Viewport) -> str:
    passed = view.now - one.row.updated_at
    if view.trouble or passed < 100:
        return view.age(one.row.updated_at).removesuffix(" ago")
    return _roughly(passed)


def _card(one: ListedRun, view: Viewport) -> list[Line]:
    look, age = look_of_run(one.found), _age(one, view)
    room = view.width - _STATUS - 2 - len(age) - 2
    name = screen.padded(screen.cut_middle(one.row.run_id, room), room)
    about = f"{screen.cut_middle(one.row.flow, _FLOW_MAX)}: "
    return [
        [*shown(look, width=_STATUS), "  ", name, "  ", (age, NOBODY)],
        [(f"  {about}{_reason(one, view.width - screen.width_of(about) - 2)}", NOBODY)],
    ]
