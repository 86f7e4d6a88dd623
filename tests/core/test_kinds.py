"""What is known about a kind of event is one row of `core/kinds`, and a kind that was forgotten somewhere is found.

A new kind of event is named in seven places: its class in the closed union, its row, its handler, what it does to attempts,
its words, the second reading, and what documents and pins it (reference, schema, golden history). Each of them complains
while it lacks the kind.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast.core import events, kinds
from holdfast.core.events import KINDS, Event, NodeEvent
from holdfast.core.fold import fold
from holdfast.core.kinds import TABLE, Kind
from holdfast.core.run_state import NodeStatus, RunState, Status
from holdfast.reading import words
from holdfast.testing import replay
from holdfast.testing.builders import History
from holdfast.testing.flows import attended, nested
from holdfast.testing.random_histories import play

ROOT = Path(__file__).resolve()
while not (ROOT / "pyproject.toml").exists():
    ROOT = ROOT.parent
DOCS, HISTORIES = ROOT / "docs", ROOT / "tests" / "histories"

# --- every place knows every kind ----------------------------------------------------------------------


def declared() -> set[str]:
    return {cls.__name__ for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, Event)}


def in_golden_histories() -> set[str]:
    logs = [path.read_text("utf-8").splitlines()[1:] for path in HISTORIES.glob("v*/*.jsonl")]
    return {json.loads(line)["kind"] for log in logs for line in log}


PLACES: dict[str, Callable[[], set[str]]] = {
    "union": lambda: {cls.__name__ for cls in get_args(events.AnyEvent)},
    "row": lambda: {kind.event.__name__ for kind in TABLE},
    "words": lambda: set(words._WORDS),
    "second reading": lambda: set(replay._HANDLERS),
    "reference": lambda: set(re.findall(r"`(\w+)`", (DOCS / "api.md").read_text("utf-8"))),
    "schema": lambda: set(json.loads((DOCS / "events.schema.json").read_text("utf-8"))["$defs"]),
    "golden history": in_golden_histories,
}
"""Where a kind must be named -> what is named there. Without a handler, or without what it does to attempts, a module cannot
be imported, so these are not listed."""


def lacking() -> dict[str, list[str]]:
    """Place -> the kinds that it lacks."""
    wanted = declared() - {"Event", "NodeEvent"}
    found = {place: sorted(wanted - known()) for place, known in PLACES.items()}
    return {place: missing for place, missing in found.items() if missing}


def test_no_place_lacks_a_kind() -> None:
    assert lacking() == {}


def test_no_place_names_a_kind_that_is_not_there() -> None:
    for place in ("union", "row", "words", "second reading", "golden history"):
        assert PLACES[place]() == set(KINDS), place


# --- a kind is added -------------------------------------------------------------------------------------

CLASS = '''
class NodeApplauded(NodeEvent, frozen=True, kw_only=True):
    """An audience liked the result of a node."""

    hands: int


AnyEvent: TypeAlias = (
'''
HANDLER = '''
def node_applauded(state: RunState, event: events.NodeApplauded, stored: Stored) -> None:
    """Applause changes nothing."""


def try_again('''
CHANGES: dict[str, tuple[str, str, str]] = {
    "class": ("core/events.py", "\nAnyEvent: TypeAlias = (\n", CLASS),
    "union": ("core/events.py", "| ChildEnded\n", "| ChildEnded | NodeApplauded\n"),
    "row": (
        "core/kinds.py",
        "    # --- items\n",
        '    Kind(events.NodeApplauded, "nodes.node_applauded", LIVE, _RUNNING, "node"),\n',
    ),
    "handler": ("core/fold/nodes.py", "\ndef try_again(", HANDLER),
    "attempts": (
        "reading/visits.py",
        "            events.RunCreated, events.RunForked,",
        "            events.NodeApplauded, events.RunCreated, events.RunForked,",
    ),
    "words": (
        "reading/words.py",
        '"NodeStreamed": _streamed,',
        '"NodeStreamed": _streamed, "NodeApplauded": None,',
    ),
    "second reading": (
        "testing/replay.py",
        '"ResumeRefused": "_ignore",',
        '"ResumeRefused": "_ignore", "NodeApplauded": "_ignore",',
    ),
}
"""Place -> the file, and what is replaced there by what."""


class Copy:
    """A copy of the package, in which a kind is added step by step."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "holdfast"
        shutil.copytree(
            Path(holdfast.__file__).parent, self.source, ignore=shutil.ignore_patterns("__pycache__")
        )

    def change(self, place: str) -> None:
        path, old, new = CHANGES[place]
        text = (self.source / path).read_text("utf-8")
        assert text.count(old) == 1, f"{path} does not say {old!r} any more"
        (self.source / path).write_text(text.replace(old, new), "utf-8")

    def say(self, program: str) -> str:
        """What a program prints last that uses the copy, or the last line of its error."""
        environment = {**os.environ, "PYTHONPATH": str(self.source.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", program, str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]

    def lacking(self) -> list[str]:
        asked = "import sys; sys.path.append(sys.argv[1]); import json, test_kinds; print(json.dumps(test_kinds.lacking()))"
        found = json.loads(self.say(asked))
        assert {name for missing in found.values() for name in missing} <= {"NodeApplauded"}
        return list(found)


def test_a_kind_that_is_added_is_asked_for_in_every_place_that_must_name_it(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.change("class")
    assert "union" in copy.lacking()
    copy.change("union")
    lacks_row = "core/kinds.py must have one row for each kind of event; lacking: ['NodeApplauded']"
    assert lacks_row in copy.say("import holdfast.core.kinds")
    copy.change("row")
    lacks_handler = "NodeApplauded: core/fold/nodes.py has no handler 'node_applauded'"
    assert lacks_handler in copy.say("import holdfast.core.fold")
    copy.change("handler")
    lacks_attempts = (
        "Visits._READS must say what every kind of event does to attempts; lacking: ['NodeApplauded']"
    )
    assert lacks_attempts in copy.say("import holdfast.reading.visits")
    copy.change("attempts")
    assert copy.lacking() == ["words", "second reading", "reference", "schema", "golden history"]
    copy.change("words")
    assert copy.lacking() == ["second reading", "reference", "schema", "golden history"]
    copy.change("second reading")
    assert copy.lacking() == ["reference", "schema", "golden history"]


def test_a_kind_is_named_in_at_most_seven_places() -> None:
    documents = {"reference", "schema", "golden history"}
    assert CHANGES.keys() - {"class"} == PLACES.keys() - documents | {"handler", "attempts"}
    assert len(CHANGES.keys() - {"class"}) + 1 <= 7


def test_a_kind_that_is_named_in_its_places_needs_no_other(tmp_path: Path) -> None:
    """It is recorded, folded, shown, read back by the engine and by the checker, with nothing else said about it anywhere."""
    copy = Copy(tmp_path)
    for place in CHANGES:
        copy.change(place)
    assert copy.say(
        "from holdfast.reading.story import Story\n"
        "from holdfast.core import events\n"
        "from holdfast.reading import history, verification\n"
        "from holdfast.reading.views import event_view\n"
        "from holdfast.storage.memory.store import MemoryStore\n"
        "from holdfast.testing.builders import History, example, outline\n"
        "from holdfast.testing.checker import check\n"
        "played = History('r', outline('START a END')).created().started('a')\n"
        "played.record(example(events.NodeApplauded)).completed('a').settled()\n"
        "store, story = MemoryStore(), Story()\n"
        "played.write(store)\n"
        "for stored in played.events():\n"
        "    story.tell(event_view(stored))\n"
        "print(history.load(store, 'r').status, story.status, verification.verify(store, 'r').problems, check(store))"
    ) == "completed completed [] []"  # fmt: skip


def test_a_kind_that_ends_an_attempt_needs_one_line_more(tmp_path: Path) -> None:
    """The timeline, the page of its node, the receipts and the story of the run follow from how it ends the attempt."""
    copy = Copy(tmp_path)
    for place in CHANGES:
        copy.change(place)
    visits = copy.source / "reading" / "visits.py"
    text = visits.read_text("utf-8").replace("            events.NodeApplauded, ", "            ")
    ends = '    events.NodeSkipped: "skipped",\n'
    assert text.count(ends) == 1
    visits.write_text(text.replace(ends, ends + '    events.NodeApplauded: "interrupted",\n'), "utf-8")
    assert copy.say(
        "import json\n"
        "from holdfast.core import events\n"
        "from holdfast.documents.receipts import documents\n"
        "from holdfast.reading.node_visits import VisitWanted, show_visit\n"
        "from holdfast.reading.story import Story\n"
        "from holdfast.reading.timeline import Part, timeline\n"
        "from holdfast.reading.views import event_view\n"
        "from holdfast.storage.memory.store import MemoryStore\n"
        "from holdfast.testing.builders import History, example, outline\n"
        "played = History('r', outline('START a END')).created().started('a').record(example(events.NodeApplauded))\n"
        "store, story, flow = MemoryStore(), Story(), played.flow.definition\n"
        "played.write(store)\n"
        "for stored in played.events():\n"
        "    story.tell(event_view(stored))\n"
        "row = store.run('r')\n"
        "found = documents(row, played.events(), lambda fingerprint: flow)['receipts/a-engine.json']\n"
        "drawn, shown = timeline(store, row, Part()), show_visit(store, row, flow, 'a', VisitWanted())\n"
        "print(story.nodes['a'].status, json.loads(found)['status'], drawn.attempts[0].status, shown.attempts[0].status)"
    ) == " ".join(["interrupted"] * 4)  # fmt: skip


# --- the columns are true --------------------------------------------------------------------------------


def test_a_column_knows_no_status_that_does_not_exist() -> None:
    of_nodes = {"", *get_args(NodeStatus)}
    for kind in TABLE:
        assert kind.run <= set(get_args(Status)), kind.event
        assert kind.node is None or kind.node <= of_nodes, kind.event


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.event.__name__)
def test_a_row_fits_its_event(kind: Kind) -> None:
    fields = {*kind.event.__struct_fields__}
    of_node = issubclass(kind.event, NodeEvent)
    assert of_node or (kind.node, kind.node_after, kind.counts) == (None, None, "none")
    assert of_node == (kind.look in ("node", "routes"))
    assert kind.look != "routes" or "routes" in fields
    assert kind.look != "layer" or {"routes", "nodes"} <= fields
    assert kind.counts != "visit" or "item" in fields
    assert kind.writes != "fields" or "changes" in fields


@pytest.mark.parametrize("seed", range(12))
def test_what_a_column_says_of_the_time_after_an_event_holds_in_random_histories(seed: int) -> None:
    luck = random.Random(seed)
    sketch = attended(nested(luck, depth=2), luck)
    history = History("r", sketch.flow(schedule=luck.choice(("eager", "layered")), max_parallel=2)).created()
    for _ in play(history, sketch, luck, trouble=0.08, inside=0.4):
        pass
    rows = {kind.event: kind for kind in TABLE}
    state = RunState("r")
    for stored in history.events():
        kind, event = rows[type(stored.event)], stored.event
        fold(state, stored)
        assert kind.run_after in (None, state.status), stored
        assert kind.node_after in (None, state.nodes[event.node].status if kind.node_after else None), stored


def test_the_columns_to_look_things_up_in_are_the_table() -> None:
    names = {
        "checkpoint": kinds.CHECKPOINTS,
        "ours": kinds.OURS,
        "ends_stream": kinds.ENDS_STREAM,
        "from_process": kinds.FROM_PROCESS,
        "takes_over": kinds.TAKES_OVER,
        "from_outside": kinds.FROM_OUTSIDE,
        "result": {cls.__name__ for cls in kinds.RESULTS},
        "heard": {cls.__name__ for cls in kinds.HEARD},
    }
    for column, found in names.items():
        assert found == {kind.event.__name__ for kind in TABLE if getattr(kind, column)}, column
    assert set(kinds.LOOKS) == set(kinds.WRITES) == set(KINDS.values())


@pytest.mark.parametrize("wrong", [TABLE[1:], (*TABLE, TABLE[0])])
def test_a_table_with_a_row_too_few_or_too_many_is_refused(
    wrong: tuple[Kind, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "TABLE", wrong)
    with pytest.raises(AssertionError, match="RunCreated"):
        kinds._require_all()
