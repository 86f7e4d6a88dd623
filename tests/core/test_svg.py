"""Pictures for web pages: complete, well formed, and safe whatever a node is called."""

from __future__ import annotations

import itertools
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.demo_flow import flow as demo
from holdfast.core import svg
from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.drawing import MARKS
from holdfast.core.layout import lay_out
from holdfast.testing.builders import outline

SVG = "{http://www.w3.org/2000/svg}"
STACK = outline("START go", *(f"go load_{number} done" for number in range(8)), "done END").definition


def draw(definition: Definition, *given: object, **options: object) -> ET.Element:
    return ET.fromstring(svg.draw(definition, *given, **options))


def texts(drawn: ET.Element) -> list[str]:
    return [text.text for text in drawn.iter(f"{SVG}text")]


def classes(drawn: ET.Element) -> list[str]:
    return [found.get("class", "") for found in drawn.iter()]


def node(drawn: ET.Element, name: str) -> ET.Element:
    return next(found for found in drawn.iter(f"{SVG}g") if found.findtext(f"{SVG}title") == name)


def test_a_picture_has_the_size_of_its_geometry_and_all_its_parts():
    drawn, geometry = draw(demo.definition), lay_out(demo.definition)
    assert drawn.get("viewBox") == f"0 0 {geometry.width} {geometry.height}"
    assert {name for name in demo.nodes if name != "research"} <= set(texts(drawn))
    assert "research ×N" in texts(drawn)  # noqa: RUF001 - the sign that is meant
    assert classes(drawn).count("hf-diamond") == 1
    assert classes(drawn).count("hf-badge") == 1
    assert sum(found.startswith("hf-line") for found in classes(drawn)) == 2 * len(geometry.lines)


def test_lines_that_a_branch_may_choose_are_dashed():
    drawn = draw(demo.definition)
    assert classes(drawn).count("hf-line hf-open") == 2


def test_lines_that_a_run_did_not_take_are_pale_and_below_the_others():
    statuses = dict.fromkeys(("plan", "style"), "completed") | {"research": "running"}
    drawn = draw(demo.definition, statuses)
    lines = [found for found in classes(drawn) if found.startswith("hf-line")]
    taken = [("hf-pale" not in found) for found in lines]
    assert taken == sorted(taken)
    assert sum(taken) == 2 * 3  # START to plan and style, plan to research: each with its head


def test_a_loop_was_taken_if_its_node_ran_again():
    statuses = dict.fromkeys(demo.nodes, "completed")
    once = classes(draw(demo.definition, statuses)).count("hf-line hf-open hf-pale")
    assert (
        classes(draw(demo.definition, statuses, repeated={"write"})).count("hf-line hf-open hf-pale")
        == once - 1
    )


@pytest.mark.parametrize("status", [*MARKS, "unheard-of"])
def test_every_status_has_a_sign(status: str) -> None:
    drawn = draw(demo.definition, {"plan": status})
    (sign,) = [found for found in node(drawn, "plan") if found.get("class", "").startswith("hf-sign")]
    assert len(sign) > 0
    assert status in texts(node(drawn, "plan"))


def test_every_status_has_a_sign_of_its_own():
    assert set(svg._SIGNS) == set(MARKS)
    assert len(set(svg._SIGNS.values())) == len(MARKS)


def test_a_node_that_was_not_reached_is_dashed_and_says_so():
    drawn = draw(demo.definition, {"plan": "completed"})
    assert "hf-ahead" in node(drawn, "write").get("class")
    assert "not reached" in texts(node(drawn, "write"))
    assert "hf-ahead" not in node(drawn, "plan").get("class")


def test_a_note_takes_the_second_line():
    assert "attempt 2" in texts(draw(demo.definition, {"plan": "running"}, notes={"plan": "attempt 2"}))


def test_a_node_that_is_not_idempotent_is_marked():
    flow = outline("START pay END", nodes={"pay": {"idempotent": False, "on_interrupt": "ask"}}).definition
    assert "hf-once" in classes(draw(flow))


def test_a_long_name_is_cut_in_the_middle_and_complete_in_its_title():
    name = "a_very_long_name_of_a_node_that_does_not_fit_into_its_box"
    drawn = draw(outline(f"START {name} END").definition)
    (shown,) = texts(drawn)
    assert shown.startswith("a_very")
    assert shown.endswith("its_box")
    assert len(shown) == 15
    assert node(drawn, name) is not None


def test_a_stack_names_its_first_and_its_last_node_and_counts():
    drawn = draw(STACK)
    assert "load_0 … load_7" in texts(drawn)
    assert "8 nodes" in texts(drawn)
    statuses = {"go": "completed", "load_0": "failed", "load_1": "completed"}
    drawn = texts(draw(STACK, statuses))
    assert "1 completed · 6 not reached" in drawn
    assert "load_0" in drawn, "what failed is drawn beside its stack"


def test_an_open_stack_shows_its_members():
    shown = texts(draw(STACK, open={"stack:load_0"}))
    assert {f"load_{number}" for number in range(8)} <= set(shown)


def test_no_name_and_no_note_becomes_markup():
    evil = '<script>alert(1)</script>"\x1b[31m'
    flow = Definition(name=evil, nodes={evil: NodeOptions()}, edges=[Edge(START, evil), Edge(evil, END)])
    drawn = draw(flow, {evil: evil}, notes={evil: evil})
    assert not list(drawn.iter(f"{SVG}script"))
    assert drawn.findtext(f"{SVG}title") == "Flow " + evil.replace("\x1b", "?")
    assert texts(drawn) == ['<script…>"?[31m', '<script>al…ipt>"?[31m']
    assert "\x1b" not in svg.draw(flow)


def test_a_picture_refers_to_nothing_and_has_no_ids():
    text = svg.draw(demo.definition, {"plan": "completed"})
    assert "url(" not in text
    assert "href" not in text
    for found in ET.fromstring(text).iter():
        assert "id" not in found.attrib
        assert "style" not in found.attrib


def test_a_picture_has_a_title_and_its_nodes_in_words():
    drawn = draw(demo.definition, {"plan": "completed"}, title="Run r1")
    assert drawn.findtext(f"{SVG}title") == "Run r1"
    assert drawn.findtext(f"{SVG}desc").startswith("7 nodes: plan completed, style not reached, ")
    assert draw(demo.definition).findtext(f"{SVG}title") == "Flow report"
    many = outline(" ".join(["START", *(f"n{number}" for number in range(100)), "END"])).definition
    assert draw(many).findtext(f"{SVG}desc").endswith("n59, and 40 more.")


def test_the_picture_in_the_docs_is_the_one_that_is_drawn():
    kept = Path(__file__).parents[2] / "docs" / "demo-flow.svg"
    assert kept.read_text("utf-8") == svg.draw(demo.definition) + "\n", (
        "make it again: holdfast graph src/holdfast/cli/demo_flow.py --svg > docs/demo-flow.svg"
    )


def test_a_flow_of_1000_nodes_is_drawn_in_little_time():
    names = [f"n{number:03}" for number in range(1000)]
    lines = [f"{names[max(0, number - 3)]} {names[number]}" for number in range(1, 1000)]
    flow = outline(f"START {names[0]}", *lines, *(f"{name} END" for name in names[-3:])).definition
    begun = time.process_time()
    drawn = draw(flow, dict.fromkeys(names[:900], "completed"))
    assert time.process_time() - begun < 4, "seconds"
    assert len([found for found in classes(drawn) if found.startswith("hf-node")]) > 900


def test_a_notebook_shows_flows_and_runs_as_pictures():
    flow = outline("START a b END")
    assert texts(ET.fromstring(flow._repr_html_())) == ["a", "b"]
    run = hf.run(flow, {}, run_id="r", store="memory://pictures")
    drawn = ET.fromstring(run._repr_html_())
    assert drawn.findtext(f"{SVG}title") == "Run r of flow outline: completed"
    assert texts(drawn) == ["a", "completed", "b", "completed"]
    assert hf.get("r", store="memory://pictures")._repr_html_() is None, "the flow is not known there"


# --- plans -------------------------------------------------------------------------------------------

PLAN = Definition(
    name="shop",
    nodes={name: NodeOptions(join="every") for name in ("charge", "ship", "call")},
    edges=[Edge(START, "charge"), Edge("charge", "ship"), Edge("charge", "call"), Edge("ship", END), Edge("call", END)],
    plan={
        "edges": [
            {"from": "charge", "to": "ship", "guard": '"<DE>" in facts.countries && facts.hour < 20'},
            {"from": "charge", "to": "call", "on_error": True},
        ]
    },
)  # fmt: skip


def labels(drawn: ET.Element) -> dict[str, str]:
    """The text at each edge -> its whole condition."""
    found = [text for text in drawn.iter(f"{SVG}text") if (text.get("class") or "").startswith("hf-label")]
    return {
        (text[0].tail or ""): text.findtext(f"{SVG}title", "") + (" (error)" * ("hf-error" in text.get("class", "")))
        for text in found
    }  # fmt: skip


def test_the_edges_of_a_plan_have_their_conditions():
    assert labels(draw(PLAN)) == {
        '"<DE>" in facts.countries…': 'if "<DE>" in facts.countries && facts.hour < 20',
        "on any failu…": "on any failure (error)",
    }


def test_the_edges_of_a_run_are_marked_as_its_guards_decided():
    statuses = {"charge": "completed", "ship": "completed", "call": "skipped"}
    drawn = draw(PLAN, statuses, routes={"charge": ["ship"], "ship": [END], "call": []})
    assert [text[:2] for text in labels(drawn)] == ["✓ ", "✗ "]
    lines = [one for one in classes(drawn) if one.startswith("hf-line")]
    assert lines.count("hf-line hf-open hf-pale") == 2, "to the node that was skipped, and from it"
    assert "not reached" not in texts(drawn)


def test_a_plan_of_1000_nodes_with_guards_is_drawn_in_little_time():
    nodes = [f"n{number}" for number in range(1000)]
    edges = [{"from": one, "to": other, "guard": f"facts.{one}"} for one, other in itertools.pairwise(nodes)]
    definition = Definition(
        name="long",
        nodes=dict.fromkeys(nodes, NodeOptions(join="every")),
        edges=[Edge(START, "n0"), *(Edge(edge["from"], edge["to"]) for edge in edges), Edge("n999", END)],
        plan={"edges": edges},
    )
    begun = time.perf_counter()
    drawn = svg.draw(definition)
    assert drawn.count("hf-label") == 1000
    assert time.perf_counter() - begun < 5
