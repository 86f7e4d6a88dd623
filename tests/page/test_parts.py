"""Parts that several screens share, each put into a page of a real server by itself."""

from __future__ import annotations

from contextlib import suppress

import pytest
from page_flows import write_flows

import holdfast as hf

MOUNT = """async ([file, name, options, value]) => {
    const made = (await import(new URL(`page/parts/${file}.js`, document.baseURI)))[name](...options);
    const part = made.element ? made : {element: made};
    document.querySelector("main").replaceChildren(part.element);
    part.update?.(value);
    window.part = part;
}"""


@pytest.fixture(scope="module")
def serving(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    shop = write_flows(folder)
    served = serve("shop.py", "--no-work", folder=folder)
    hf.run(shop.order, {}, run_id="done", store=served.store)
    with suppress(hf.RunFailed):
        hf.run(shop.order, {"fails": "declined"}, run_id="broken", store=served.store)
    return served


@pytest.fixture
def page(bare_page):
    return bare_page


def test_what_a_reader_opened_in_a_tree_stays_open_when_the_value_changes(page):
    page.evaluate(MOUNT, ["tree", "createTree", [], {"items": list(range(30)), "name": "<b>x</b>"}])
    assert page.locator(".tree-string").inner_text() == '"<b>x</b>"'
    page.get_by_text("30 items").click()
    page.locator(".tree-number").nth(29).wait_for()
    page.evaluate("part.update({items: [...Array(31).keys()], name: 'y'})")
    assert page.locator(".tree-number").count() == 31
    page.evaluate("part.update({items: [...Array(1000).keys()]})")
    assert page.locator(".tree-number").count() == 200
    page.get_by_role("button", name="800 more").click()
    assert page.locator(".tree-number").count() == 400


def test_a_change_shows_path_operation_before_and_after(page):
    changes = [
        {"operation": "add", "path": ["budget"], "was": {"value": 41}, "now": {"value": -3.1}},
        {"operation": "append", "path": ["notes"], "now": {"value": ["<i>x</i>"]}},
    ]
    page.evaluate(MOUNT, ["difference", "createDifference", [], changes])
    first, second = page.locator(".change").all()
    minus = "\N{MINUS SIGN}"
    assert first.inner_text().split() == [
        "budget",
        "add",
        f"{minus}3.1",
        "Before",
        minus,
        "41",
        "After",
        "+",
        "37.9",
    ]
    assert second.locator(".was").is_hidden()
    assert second.locator(".now code").inner_text() == '["<i>x</i>"]'


def test_an_error_shows_the_own_line_that_raised_and_folds_the_others(page):
    frames = [
        {"file": "shop/order.py", "line": 41, "function": "charge", "source": "await charge()", "own": True},
        {"file": "shop/pay.py", "line": 88, "function": "pay", "source": "raise Declined", "own": True},
        {"file": "lib/http.py", "line": 7, "function": "send", "source": "", "own": False},
    ]
    failure = {"kind": "partial", "type": "Declined", "message": "51", "frames": frames, "traceback": "…"}
    failure["advice"] = "Ask the bank."
    page.evaluate(MOUNT, ["error_frames", "createErrorFrames", [failure], None])
    assert page.locator(".raised").inner_text().split() == ["88", "raise", "Declined"]
    assert page.locator(".error-frames .advice").inner_text() == "Ask the bank."
    assert page.get_by_text("lib/http.py").is_hidden()
    page.get_by_text("1 more frame").click()
    assert page.get_by_text("lib/http.py").is_visible()


SCHEMA = {
    "type": "object",
    "required": ["decision", "cents", "lines"],
    "properties": {
        "decision": {"enum": ["refund", "partial", "reject"]},
        "cents": {"type": "integer", "maximum": 4200},
        "code": {"enum": ["a", "b", "c", "d", "e"]},
        "note": {"type": "string", "maxLength": 500},
        "notify": {"type": "boolean", "default": True},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
        "other": {},
    },
}  # fmt: skip


def test_a_form_names_a_wrong_value_at_its_field_and_returns_a_right_one(page):
    page.evaluate(MOUNT, ["schema_form", "createSchemaForm", [SCHEMA], None])
    assert page.evaluate("part.read().faults.map(fault => fault.path.join('.'))") == ["decision", "cents"]
    assert page.locator(".fault:visible").all_inner_texts() == ["Required", "Required"]
    page.get_by_label("partial").check()
    page.get_by_label("Cents").fill("8490")
    page.get_by_label("Code").select_option("c")
    page.get_by_label("Note").fill("sorry")
    page.get_by_role("button", name="Add a row").click()
    page.get_by_label("Other", exact=True).fill("{")
    assert page.evaluate("part.read().faults.map(fault => fault.path.join('.'))") == [
        "cents",
        "lines.0.sku",
        "other",
    ]
    page.get_by_label("Other", exact=True).fill("")
    assert page.evaluate("part.read().faults.map(fault => fault.path.join('.'))") == ["cents", "lines.0.sku"]
    assert page.locator(".fault:visible").all_inner_texts() == ["At most 4200", "Required"]
    page.get_by_label("Cents").fill("4200")
    page.get_by_label("Sku").fill("A1")
    assert page.evaluate("part.read().value") == {
        "decision": "partial", "cents": 4200, "code": "c", "note": "sorry", "notify": True, "lines": [{"sku": "A1"}],
    }  # fmt: skip


PREVIEW = """async ([token, asked]) => {
    const {openPreview} = await import(new URL("page/parts/preview.js", document.baseURI));
    const {createApi} = await import(new URL("page/shell/api.js", document.baseURI));
    const api = createApi(() => token, async () => {});
    window.sent = [];
    const post = api.post;
    api.post = (path, body, options) => { if (!options.query) sent.push(options.key); return post(path, body, options); };
    const app = {api, clock: {now: () => Date.now() / 1000}, meta: () => ({name: "ada"})};
    delete window.done;
    openPreview(app, {...asked, done: answer => { window.done = answer }});
}"""


def test_a_preview_lists_what_the_api_returned_and_a_double_click_asks_once(page, serving):
    asked = {
        "run": "broken",
        "verb": "resume",
        "label": "Resume",
        "title": "Resume broken",
        "options": {"force": True},
    }
    page.evaluate(PREVIEW, [serving.token, asked])
    page.get_by_role("heading", name="Run again 1").wait_for()
    assert page.locator(".preview .tag").all_inner_texts() == ["charge", "reserve"]
    page.get_by_label("Reason").fill("card updated")
    page.get_by_role("button", name="Resume", exact=True).dblclick()
    page.wait_for_function("() => window.done")
    assert page.evaluate("new Set(sent).size") == 1
    assert len(hf.requests("broken", store=serving.store)) == 1


def test_a_preview_that_is_refused_says_why_and_stays_open(page, serving):
    asked = {"run": "done", "verb": "cancel", "label": "Cancel", "title": "Cancel done", "options": {}}
    page.evaluate(PREVIEW, [serving.token, asked])
    page.get_by_role("heading", name="Refused").wait_for()
    assert page.locator(".preview footer .filled").is_disabled()
    assert page.get_by_text("It would be refused").is_visible()


def test_a_resume_from_a_checkpoint_can_become_a_fork_with_an_edited_state(page, serving):
    asked = {
        "run": "broken",
        "verb": "resume",
        "label": "Resume from @1",
        "title": "Continue from broken@1",
        "options": {"checkpoint": 1},
    }
    page.evaluate(PREVIEW, [serving.token, asked])
    page.get_by_text("Goes back to @1; nothing is deleted.").wait_for()
    page.get_by_label("Fork a new run").check()
    act = page.locator(".preview footer .filled")
    page.get_by_role("button", name="Edit state first…").click()
    area = page.get_by_label("State as JSON")
    area.fill('{"fails": ')
    page.get_by_text("Not valid JSON").wait_for()
    page.get_by_text("The JSON is not valid").wait_for()
    assert act.is_disabled()
    area.fill("{}")
    page.get_by_text("A field cannot be removed").wait_for()
    area.fill('{"fails": null}')
    page.wait_for_function("() => !document.querySelector('.preview footer .filled').disabled")
    assert act.inner_text() == "Fork from @1"
    act.click()
    page.wait_for_function("() => window.done")
    assert page.evaluate("done.state") == {"fails": None}
    assert page.evaluate("done.parent") == "broken"


REQUEST = {
    "id": "1",
    "verb": "resume",
    "about": None,
    "status": "waiting",
    "by": "ada",
    "reason": None,
    "at": 100,
    "refused": None,
    "refused_at": None,
}
WORK = {"verb": "work", "arguments": {}, "words": "start a worker", "command": "holdfast worker shop.py"}
SKIP = {
    "verb": "skip",
    "arguments": {"node": "charge"},
    "words": "continue",
    "command": "holdfast skip r charge",
}
REQUESTED = {"id": "r", "flow": "order", "held_by": None, "updated_at": 100, "remedies": [WORK, SKIP]}


def test_a_request_that_waits_says_how_long_and_then_what_is_missing(page):
    value = {"requests": [REQUEST], "run": REQUESTED, "now": 106}
    page.evaluate(MOUNT, ["requests", "createRequests", [], value])
    page.evaluate("part.element.before(part.asked)")
    assert page.get_by_text("Resume asked 6 s ago").is_visible()
    assert page.locator(".requests .command").is_hidden()
    page.evaluate("value => part.update({...value, now: 111})", value)
    assert page.get_by_text("No worker that knows flow order has claimed it yet").is_visible()
    assert page.locator(".requests .command code").inner_text() == "holdfast worker shop.py"


def test_a_refused_request_has_its_reason_in_words_and_other_ways(page):
    refused = {**REQUEST, "status": "refused", "refused": "node <b>x</b> is new", "refused_at": 100}
    page.evaluate(
        MOUNT, ["requests", "createRequests", [], {"requests": [refused], "run": REQUESTED, "now": 101}]
    )
    assert page.get_by_text("The resume was refused.").is_visible()
    assert page.get_by_text("node <b>x</b> is new").is_visible()
    assert page.get_by_role("link", name="Skip…").get_attribute("href") == "#/runs/r?do=skip&node=charge"


def test_a_panel_without_a_node_reads_nothing_when_the_run_has_an_event(page):
    asked = page.evaluate(
        """async () => {
            const { createPanel } = await import(new URL("page/parts/panel.js", document.baseURI));
            const asked = [];
            const get = async (path) => {
                asked.push(path);
                return { ok: true, value: null };
            };
            const panel = createPanel({ api: { get }, clock: { now: () => 100 } });
            const view = { place: { run: "r", query: {} }, node: null, checkpoints: [], end: 1 };
            panel.update({ ...view, signs: { readings: 1 } });
            panel.event({ seq: 2, kind: "RunPaused", node: null });
            panel.update({ ...view, signs: { readings: 2 } });
            await new Promise((resolve) => setTimeout(resolve)); // a read begins in a turn of its own
            return asked;
        }"""
    )
    assert asked == []
