"""The program of `make prove`: its output when something is wrong, and the files it writes its figures to."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import covered
import mutation
import parts
import prove
import pytest
from parts import PARTS, Line

WELL = Line("zombie rounds", "200", "≥ 200", met=True, seconds=12.0, cpu_s=3.4)


def told(*lines: Line) -> dict:
    return prove.document(list(lines), 61.0, 7, 0.0)


@pytest.mark.parametrize(
    "line",
    [Line("a", "1", "≥ 2", met=False), Line("a", "2", "≥ 2", met=True, violations=1)],
    ids=["a target that was missed", "a violation"],
)
def test_one_bad_line_is_enough(line: Line) -> None:
    assert told(WELL)["well"]
    assert not told(WELL, line)["well"]


def test_every_test_of_which_make_test_runs_a_quarter_is_run_whole_by_a_part() -> None:
    rotating = [
        str(file.relative_to(parts.ROOT))
        for file in parts.TESTS.rglob("test_*.py")
        if "@pytest.mark.rotating" in file.read_text("utf-8").splitlines()
    ]
    assert len(rotating) > 15
    covered_by_a_part = (*parts.WITH_OTHER_CASES, *parts.OF_OTHER_PARTS)
    assert [file for file in rotating if not file.startswith(covered_by_a_part)] == []


def test_a_part_that_breaks_is_a_line_that_says_so(tmp_path: Path) -> None:
    lines = prove.run("no such part", 0.0, 0, tmp_path)
    assert [(line.many, line.met) for line in lines] == [("failed to run", False)]
    assert "invalid choice: 'no such part'" in lines[0].told
    assert lines[0].seconds > 0 < lines[0].cpu_s


def test_the_figures_take_their_place_in_the_document_and_nothing_else_changes(tmp_path: Path) -> None:
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(f"# Before\n{prove.BEGIN}\nstale figures\n{prove.END}\nafter\n", "utf-8")
    result.write_text(json.dumps(told(WELL, Line("a", "1", "≥ 2", met=False, told="why"))), "utf-8")
    prove.write_docs(result, page, note="made on a train")
    text = page.read_text("utf-8")
    assert text.startswith(f"# Before\n{prove.BEGIN}\nThe figures are those of one `make prove` on ")
    assert text.endswith(f"{prove.END}\nafter\n")
    assert "| zombie rounds | 200 | target: ≥ 200 (met) | no violation | 12 s, processor time 3 s |" in text
    assert "| a | 1 | target: ≥ 2 (**missed**) | no violation |  |" in text
    assert "- a: why" in text
    assert "**made on a train**" in text
    assert "stale figures" not in text


def test_the_document_has_a_place_for_the_figures() -> None:
    text = prove.PAGE.read_text("utf-8")
    assert text.index(prove.BEGIN) < text.index(prove.END)


def test_what_only_a_night_has_time_for_is_left_out_by_day() -> None:
    by_day = [name for name, part in PARTS.items() if not part.only_at_night]
    assert {"simulated schedules", "crash points", "power loss", "zombie rounds", "planted bugs"} < set(
        by_day
    )
    assert {"branch coverage", "mutants of the core"} == set(PARTS) - set(by_day)


def test_a_number_is_read_out_of_what_a_program_prints() -> None:
    assert parts.number("12,345 on 2 processes") == 12_345
    assert parts.number("checked in 14.2 s") == 14.2


def test_the_shares_of_all_parts_fit_into_twelve_minutes_on_two_cores() -> None:
    by_day = [part for part in PARTS.values() if not part.only_at_night]
    alone = sum(part.share_s for part in by_day if part.alone) / 2
    beside = sorted((part.share_s for part in by_day if not part.alone), reverse=True)
    hands = [0.0, 0.0]
    for share_s in beside:
        hands[hands.index(min(hands))] += share_s
    assert all(part.share_s for part in by_day)
    assert alone + max(hands) <= prove.MINUTES * 60


def test_an_hour_of_a_night_has_room_for_its_share_of_all_parts() -> None:
    alone = sum(part.night_s for part in PARTS.values() if part.alone)
    beside = sum(part.night_s for part in PARTS.values() if not part.alone)
    assert alone + beside / 2 <= 3600
    assert all(bool(part.night_s) == bool(part.nightly) for part in PARTS.values())


def test_branches_count_that_any_of_the_groups_of_tests_has_taken_and_failures_are_told() -> None:
    pytest.importorskip("coverage", reason="the extra night is not installed")
    tests = "tests/core/fold/test_waits.py"
    files, failed = covered.measure([[tests], [tests, "-k", "no such test"]])
    inside = next(told for name, told in files.items() if name.endswith("core/fold/waits.py"))
    assert inside["summary"]["covered_branches"] > 0
    assert failed == 1


def test_coverage_over_tests_that_failed_is_not_called_whole(monkeypatch) -> None:
    for failed, well in ((0, True), (1, False)):
        monkeypatch.setattr(covered, "main", lambda failed=failed: covered.Covered(100.0, "", failed))
        (line,) = PARTS["branch coverage"].prove(0.0, 0)
        assert (line.met, "tests failed" in line.many) == (well, not well)


@pytest.mark.parametrize(("seconds", "least", "tried"), [(0.0, 0, 0), (0.0, 3, 3), (60.0, 0, 7)])
def test_mutants_are_tried_while_there_is_time_and_so_many_in_any_case(
    seconds, least, tried, monkeypatch
) -> None:
    monkeypatch.setattr(mutation, "attempt", lambda mutant: (mutant, "killed", ""))
    with ThreadPoolExecutor(1) as pool:
        done = list(mutation.try_all(pool, range(7), time.monotonic() + seconds, least))
    assert sorted(mutant for mutant, *_ in done) == list(range(tried))


@pytest.mark.parametrize(
    ("outcomes", "met"),
    [
        ({"killed": 90, "survived": 10}, True),
        ({"killed": 84, "survived": 16}, False),
        ({"killed": 9, "survived": 1}, False),
        ({"killed": 84, "survived": 16, "incompetent": 100}, False),
    ],
    ids=["enough", "too many live", "too few tried", "what nobody could load is not found"],
)
def test_mutants_count_when_enough_were_tried_and_found(outcomes, met, monkeypatch) -> None:
    told = mutation.figures(2_000, Counter(outcomes))
    monkeypatch.setattr(mutation, "main", lambda seconds, least: told)
    assert PARTS["mutants of the core"].prove(1.0, 0)[0].met is met


@pytest.mark.parametrize("name", ["crash points", "power loss"])
def test_without_a_compiler_the_table_says_loudly_what_was_skipped(name, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    lines = PARTS[name].prove(1.0, 0)
    assert all(line.many == "SKIPPED" and not line.met for line in lines)
    prove.show(told(WELL, *lines))
    said = capsys.readouterr().out
    assert said.count("SKIPPED") >= 2 * len(lines) + 1
    names = ", ".join(line.what for line in lines)
    assert f"SKIPPED: {names}: no C compiler (cc)" in " ".join(said.split())
    assert not told(*lines)["well"]
