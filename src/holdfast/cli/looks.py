"""How a status looks in a terminal: its word, its mark and its colour, as on the web page.

The colour says who has to move: blue the engine, yellow a person, red if something is broken, and grey if nobody has to. It is
never alone: there are always a mark and a word. What is shown is decided elsewhere: the status by the log, and whether a run has
crashed or asks by `reading/diagnosis`.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.cli import screen
from holdfast.core.drawing import MARKS
from holdfast.reading.diagnosis import Diagnosis
from holdfast.reading.picture import NodeMark

ENGINE, PERSON, BROKEN, NOBODY, DONE = "bright_blue", "yellow", "red", "dim", "green"
"""Who has to move -> the colour."""


class Look(NamedTuple):
    """The word of a status, its mark, and the colours of both."""

    word: str
    mark: str
    tone: str

    @property
    def word_tone(self) -> str:
        """The colour of the word: that nothing is left to do is seen at the mark alone."""
        return NOBODY if self.tone == DONE else self.tone


_TONES = {"running": ENGINE, "failed": BROKEN, "completed": DONE}
LOOKS: dict[str, Look] = {
    **{status: Look(status, mark, _TONES.get(status, NOBODY)) for status, mark in MARKS.items()},
    "asks": Look("waiting", "◆", PERSON),
    "crashed": Look("crashed", "↯", PERSON),
    "pausing": Look("pausing", MARKS["paused"], ENGINE),
    "unreached": Look("not reached", "·", NOBODY),
    "unreadable": Look("unreadable", "!", BROKEN),
}
"""Every status, and what outranks it -> how it looks."""
WORD_COLUMNS = max(len(look.word) for look in LOOKS.values())


def look_of_run(found: Diagnosis) -> Look:
    """Return how a run looks. A crash, an open question and a pause that is recorded outrank its status."""
    if found.kind == "unreadable":
        return LOOKS["unreadable"]
    if found.crashed:
        return LOOKS["crashed"]
    if found.kind == "question" or (found.status == "waiting" and found.questions):
        return LOOKS["asks"]
    if found.kind == "signal":
        return LOOKS["waiting"]  # also while the process that executes it keeps it in memory
    if found.pausing:
        return LOOKS["pausing"]
    return LOOKS[found.status or "pending"]


def look_of_node(mark: NodeMark | None) -> Look:
    """Return how a node looks; None: the run has not reached it."""
    if mark is None:
        return LOOKS["unreached"]
    if mark.crashed:
        return LOOKS["crashed"]
    return LOOKS["asks" if mark.status == "waiting" and mark.waits_for == "question" else mark.status]


def shown(look: Look, *, width: int = 0) -> list[screen.Part]:
    """Return the mark and the word of a look, padded to `width` columns."""
    return [(look.mark, look.tone), " ", (screen.padded(look.word, width - 2), look.word_tone)]
