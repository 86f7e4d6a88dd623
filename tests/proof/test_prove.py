"""The program behind `make prove`: what it says where something is wrong, and where its figures go."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_part_that_breaks_is_a_line_that_says_so(tmp_path: Path) -> None:
    lines = prove.run("no such part", 0.0, 0, tmp_path)
    assert [(line.many, line.met) for line in lines] == [("broke", False)]
    assert "invalid choice: 'no such part'" in lines[0].told
    assert lines[0].seconds > 0 < lines[0].cpu_s


def test_the_figures_take_their_place_in_the_document_and_nothing_else_changes(tmp_path: Path) -> None:
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(f"# Before\n{prove.BEGIN}\nstale figures\n{prove.END}\nafter\n", "utf-8")
    result.write_text(json.dumps(told(WELL, Line("a", "1", "≥ 2", met=False, told="why"))), "utf-8")
    prove.write_docs(result, page, note="made on a train")
    text = page.read_text("utf-8")
    assert text.startswith(f"# Before\n{prove.BEGIN}\nA run of ")
    assert text.endswith(f"{prove.END}\nafter\n")
    assert "| zombie rounds | 200 | ≥ 200 | met | 0 | 12 | 3 |" in text
    assert "| a | 1 | ≥ 2 | **missed** | 0 |  |  |" in text
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


def test_the_shares_of_all_parts_fit_into_ten_minutes_on_two_cores() -> None:
    by_day = [part for part in PARTS.values() if not part.only_at_night]
    alone = sum(part.share_s for part in by_day if part.alone) / 2
    beside = sorted((part.share_s for part in by_day if not part.alone), reverse=True)
    hands = [0.0, 0.0]
    for share_s in beside:
        hands[hands.index(min(hands))] += share_s
    assert all(part.share_s for part in by_day)
    assert alone + max(hands) <= prove.MINUTES * 60


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
