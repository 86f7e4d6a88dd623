"""What `holdfast watch` lays out on a screen, from the facts: without a terminal and without a clock."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.cli import screen
from holdfast.cli.looks import BROKEN, DONE, ENGINE, LOOKS, NOBODY, PERSON, look_of_run
from holdfast.cli.watch_frames import Line, Viewport, list_frame, list_rows, run_frame, wrap
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.watched import RunSeen, RunsSeen, RunWatch, look_at_runs
from holdfast.storage.contract import Holder, Query
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline

CHAIN = outline("START plan write publish END", nodes={"publish": {"approve": "Publish it?"}})
FAN = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})
ONCE = outline("START pay END", nodes={"pay": {"idempotent": False}})
SIZES = [(80, 24), (40, 20), (160, 50), (24, 8)]
HOSTILE = "\x1b[2J\x1b]0;title\x07 \u202eevil\n\r next"
NOW = 1000.0


def seen_of(history: History, *, held: bool = False, store: MemoryStore | None = None) -> RunSeen:
    store = store or MemoryStore(clock=lambda: NOW)
    history.write(store, holder=this_process() if held else None)
    return RunWatch(Reader(store), history.run_id, CommandLine()).seen


def listed(store: MemoryStore, **conditions: Any) -> RunsSeen:
    return look_at_runs(Reader(store), Query(**conditions), CommandLine(), attention=False)


def view(width: int = 80, height: int = 24, **more: Any) -> Viewport:
    return Viewport(width=width, height=height, now=NOW, **more)


def words(line: Line) -> str:
    return "".join(part[0] if isinstance(part, tuple) else part for part in line)


def texts(frame: list[Line]) -> list[str]:
    return [words(line).rstrip() for line in frame]


def text(frame: list[Line]) -> str:
    return "\n".join(texts(frame))


def tone(frame: list[Line], wanted: str) -> str:
    """Return the colour in which a text is shown."""
    found = {part[1] for line in frame for part in line if isinstance(part, tuple) and wanted in part[0]}
    assert found, text(frame)
    return next(iter(found))


def begun(run_id: str = "r1") -> History:
    return History(run_id, CHAIN).created().settled()


# --- every frame -------------------------------------------------------------------------------------


def many_histories() -> list[History]:
    name = "a-very-long-name-of-a-run-" * 4 + "1"
    long = "word " * 200
    return [
        begun(),
        History(name, CHAIN).created().settled().completed("plan").settled().streamed("write", long, HOSTILE),
        begun().failed("plan", ValueError(long + HOSTILE)).settled(),
        begun().completed("plan").settled().completed("write").settled(),
        History("f", FAN).created({"parts": list(range(1000))}).settled(),
    ]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("number", range(len(many_histories())))
def test_a_run_fills_the_screen_and_never_more(size: tuple[int, int], number: int) -> None:
    seen = seen_of(many_histories()[number])
    for trouble in ("", "No answer since 12:00:00: " + "why " * 50):
        frame = run_frame(seen, view(*size, trouble=trouble))
        assert len(frame) == size[1]
        assert max(screen.width_of(words(line)) for line in frame) <= size[0], text(frame)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_list_fills_the_screen_and_never_more(size: tuple[int, int]) -> None:
    store = MemoryStore(clock=lambda: NOW)
    for number, history in enumerate(many_histories()):
        history.run_id += f"-{number}"
        history.state.run_id = history.run_id
        history.write(store)
    frame = list_frame(listed(store), Query(), view(*size))
    assert len(frame) == size[1]
    assert max(screen.width_of(words(line)) for line in frame) <= size[0], text(frame)


def test_names_and_outputs_cannot_send_anything_to_the_terminal() -> None:
    flow = outline("START plan END")
    history = History("r1", flow).created().settled().streamed("plan", HOSTILE)
    seen = seen_of(history.failed("plan", ValueError(HOSTILE)).settled())
    row = msgspec.structs.replace(seen.row, labels={"label": HOSTILE}, flow=HOSTILE)
    shown = run_frame(msgspec.structs.replace(seen, row=row), view(200, 30))
    for char in ("\x1b", "\x07", "\r", "\u202e"):
        assert char not in text(shown)
    assert all("\n" not in line for line in texts(shown))
    assert "label=\\x1b[2J\\x1b]0;title\\x07 \\u202eevil\\n\\r next" in text(shown)


@pytest.mark.parametrize(
    ("name", "width", "told"),
    [
        ("order-4711", 10, "order-4711"),
        ("order-2026-11-4711", 10, "order…4711"),
        ("注文注文注文-1", 9, "注文…文-1"),
        ("\u202eabc", 20, "\\u202eabc"),
        ("עברית-4711", 10, "עברית-4711"),
    ],
)
def test_a_long_name_is_cut_in_its_middle(name: str, width: int, told: str) -> None:
    assert screen.cut_middle(name, width) == told
    assert screen.width_of(told) <= width


def test_a_long_sentence_is_wrapped_and_then_cut() -> None:
    assert wrap("one two three", 7, 3) == ["one two", "three"]
    assert wrap("one two three four", 7, 2) == ["one two", "three …"]
    assert wrap("unbreakable-word", 7, 2) == ["unbrea…"]


# --- one run -----------------------------------------------------------------------------------------


def test_the_colour_says_who_has_to_move_and_a_mark_and_a_word_are_always_there() -> None:
    asking = begun().completed("plan").settled().completed("write").settled()
    shown = {
        "running": (run_frame(seen_of(begun(), held=True), view()), "▶", ENGINE),
        "crashed": (run_frame(seen_of(begun()), view()), "↯", PERSON),
        "waiting": (run_frame(seen_of(asking), view()), "◆", PERSON),
        "failed": (
            run_frame(seen_of(begun().failed("plan", ValueError("no")).settled()), view()),
            "✗",
            BROKEN,
        ),
    }
    for word, (frame, mark, colour) in shown.items():
        assert texts(frame)[0].startswith(f"{mark} {word}  r1"), text(frame)
        assert tone(frame[:1], mark) == f"bold {colour}"
    done = run_frame(
        seen_of(asking.answered("publish", "approve").settled().completed("publish").settled()), view()
    )
    assert texts(done)[0].startswith("✓ completed")
    assert (tone(done[:1], "✓"), tone(done[:1], "completed")) == (f"bold {DONE}", f"bold {NOBODY}")
    assert {look.mark for look in LOOKS.values()} >= {"◌", "·", "»", "!"}


def test_a_run_shows_its_nodes_attempts_holder_checkpoint_and_stream() -> None:
    history = begun().completed("plan").settled().failed("write", TimeoutError("slow"), retry_in=5).passed(5)
    history.streamed("write", "once upon a time\n", "there was ", "a harbour")
    frame = run_frame(seen_of(history, held=True), view())
    assert f"checkpoint r1@{history.state.seq}" in text(frame)
    assert f"process {os.getpid()} on" in text(frame)
    assert "1 of 3 nodes done · 3 attempts" in text(frame)
    (write,) = [line for line in texts(frame) if line.startswith("▶ running      write")]
    assert "attempt 2" in write
    assert texts(frame)[-1].startswith("Live")
    stream = texts(frame).index("write streams (attempt 2, 3 chunks)")
    assert texts(frame)[stream + 1 : stream + 3] == ["| once upon a time", "| there was a harbour"]


@pytest.mark.parametrize(("length", "shown"), [(78, "| a" + "b" * 77), (79, "| …" + "b" * 77)])
def test_a_line_of_a_stream_is_cut_only_if_it_is_wider_than_the_screen(length: int, shown: str) -> None:
    history = begun().streamed("plan", "a" + "b" * (length - 1))
    assert shown in texts(run_frame(seen_of(history, held=True), view(80)))


def test_an_open_question_is_shown_once_with_its_answers_and_the_command() -> None:
    frame = text(
        run_frame(seen_of(begun().completed("plan").settled().completed("write").settled()), view(100))
    )
    assert frame.count("publish asks: Publish it?") == 1
    assert "answers: approve / reject" in frame
    assert "$ holdfast answer r1 publish approve" in frame


def test_a_command_that_does_not_fit_is_left_out_because_a_part_of_it_would_be_wrong() -> None:
    seen = seen_of(begun().failed("plan", ValueError("no")).settled())
    assert "$ holdfast resume r1" in text(run_frame(seen, view(80)))
    narrow = text(run_frame(seen, view(24)))
    assert "$" not in narrow
    assert "Next: fix the cause, th…" in narrow


def test_who_died_and_who_took_over_is_shown() -> None:
    history = begun().completed("plan").settled()
    history.record(hf.core.events.RunClaimed(holder="process 2 on b")).settled()
    frame = run_frame(seen_of(history, held=True), view())
    assert "held by process 2 on b since" in text(frame)
    assert "died after" in text(frame)
    assert "attempt 2" in text(frame)
    assert tone(frame, "died after") == PERSON


def test_a_node_that_must_not_run_twice_is_marked() -> None:
    assert "pay 1\N{MULTIPLICATION SIGN}" in text(
        run_frame(seen_of(History("r1", ONCE).created().settled()), view())
    )


def test_of_a_thousand_nodes_those_that_fail_run_or_wait_come_first_and_the_rest_is_counted() -> None:
    names = [f"n{number:03}" for number in range(1000)]
    flow = outline(*(f"START {name} END" for name in names), nodes={"n310": {"approve": "Go on?"}})
    history = History("r1", flow).created().settled()
    for name in names[:300]:
        history.completed(name)
    history.settled().failed("n320", TimeoutError("no"), retry_in=60)
    seen = seen_of(history, held=True)
    frame = texts(run_frame(seen, view(100, 30)))
    shown = [line.split()[2] for line in frame if line.startswith(("▶", "◆", "…", "✗")) and " n" in line]
    assert shown[0] == "n310"
    assert "n301" in shown
    assert "n000" not in shown
    (rest,) = [line for line in frame if line.startswith("… and ")]
    assert "300 completed" in rest
    counted = sum(int(part.split()[0]) for part in rest.removeprefix("… and ").split(", "))
    assert counted + len(shown) == 1000


def test_a_fan_out_of_a_thousand_items_is_one_line_with_counts() -> None:
    history = History("r1", FAN).created({"parts": list(range(1000))}).settled()
    for item in range(10):
        history.item_completed("fan", item)
    history.item_failed("fan", 10, ValueError("no")).settled()
    frame = text(run_frame(seen_of(history, held=True), view(120)))
    assert "10 of 1000 items, 1 failed, 16 running" in frame
    assert frame.count("fan") == 2  # in the reason, and as a node


def test_a_wait_for_a_retry_counts_down_and_has_a_time_if_the_store_does_not_answer() -> None:
    history = begun().failed("plan", TimeoutError("slow"), retry_in=1000)
    seen = seen_of(history, held=True)
    mark = seen.nodes["plan"]
    assert mark.until is not None
    at = Viewport(width=100, height=24, now=mark.until - 42)
    assert "retry in 42.0 s, TimeoutError: slow" in text(run_frame(seen, at))
    away = text(run_frame(seen, msgspec.structs.replace(at, trouble="No answer since 12:00:00")))
    assert f"retry at {screen.time_of_day(mark.until)[:8]}" in away
    assert " ago" not in away
    assert away.splitlines()[-1] == "No answer since 12:00:00"


# --- many runs ---------------------------------------------------------------------------------------


def stored(*histories: History, holder: Holder | None = None) -> MemoryStore:
    store = MemoryStore(clock=lambda: NOW)
    for history in histories:
        history.write(store, holder=holder)
    return store


def test_the_counts_begin_with_the_runs_that_need_attention() -> None:
    store = stored(begun("r1"), begun("r2").failed("plan", ValueError("no")).settled())
    frame = list_frame(listed(store), Query(), view())
    assert texts(frame)[0] == "! 2 need attention  ▶ 1 running  ✗ 1 failed"
    assert tone(frame, "need attention") == f"bold {PERSON}"


def test_a_list_has_status_run_flow_reason_active_time_and_age() -> None:
    store = stored(begun("r1").failed("plan", ValueError("no")).settled())
    (row,) = listed(store).runs
    frame = texts(list_frame(listed(store), Query(), view(100)))
    assert frame[2].split() == ["STATUS", "RUN", "FLOW", "REASON", "ACTIVE", "UPDATED"]
    assert frame[3].startswith(f"✗ failed  r1   {row.row.flow}")
    assert "node plan failed: ValueError: no" in frame[3]
    assert frame[3].split()[-4:-2] == ["1.00", "s"]
    assert look_of_run(row.found) == LOOKS["failed"]


def test_only_as_many_runs_as_fit_are_shown_and_the_others_are_counted() -> None:
    store = stored(*(begun(f"r{number:02}") for number in range(30)))
    assert list_rows(12, 100) == 7
    frame = texts(list_frame(listed(store, limit=7), Query(limit=7), view(100, 12)))
    assert [line.split()[2] for line in frame if line.startswith("↯")] == [
        f"r{n:02}" for n in range(29, 22, -1)
    ]
    assert frame[-2] == "… 23 more runs"
    by_flow = Query(limit=7, flow=CHAIN.name)
    assert (
        texts(list_frame(listed(store, limit=7, flow=CHAIN.name), by_flow, view(100, 12)))[-2]
        == "… and more runs"
    )
    assert texts(list_frame(listed(store, limit=7, status=("failed",)), Query(status=("failed",)), view()))[
        2
    ] == ("No run matches these options.")
    assert "No runs yet." in texts(list_frame(listed(stored()), Query(), view()))


def test_a_narrow_screen_gives_a_run_two_lines() -> None:
    frame = texts(list_frame(listed(stored(begun("a-run-with-a-rather-long-name-1"))), Query(), view(40, 20)))
    line = next(number for number, shown in enumerate(frame) if shown.startswith("↯ crashed"))
    assert "a-run-with…name-1" in frame[line] or "…" in frame[line]
    assert frame[line + 1].startswith(f"  {CHAIN.name}: ")
