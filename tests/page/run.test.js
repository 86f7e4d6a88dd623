import assert from "node:assert/strict";
import { test } from "node:test";

import { eventWords, kindWords } from "../../src/holdfast/server/page/pure/event_words.js";
import { familyRow, familyRows } from "../../src/holdfast/server/page/pure/families.js";
import { formatFragment } from "../../src/holdfast/server/page/pure/fragments.js";
import { actionFor } from "../../src/holdfast/server/page/pure/actions.js";
import { actionsOf, askFor } from "../../src/holdfast/server/page/pure/run_actions.js";
import {
  choiceIn,
  nextProblem,
  nodeOfInterest,
  placeAt,
  placeOfVisit,
  tabFor,
} from "../../src/holdfast/server/page/pure/run_choices.js";
import { viewNode } from "../../src/holdfast/server/page/pure/node_views.js";
import { lookOfRun } from "../../src/holdfast/server/page/pure/statuses.js";
import { standingOf } from "../../src/holdfast/server/page/pure/run_facts.js";
import { addChunk, addRecorded, beginText, isSame } from "../../src/holdfast/server/page/pure/streams.js";
import {
  attemptTime,
  attemptWords,
  excerptOf,
  leftWords,
  questionLines,
  visitFacts,
  whyItRan,
} from "../../src/holdfast/server/page/pure/visit_words.js";

const place = (query = {}, at = undefined) => ({ screen: "run", run: "r", query, ...(at === undefined ? {} : { at }) });
const mark = (status, started_at, more = {}) => ({ status, started_at, iteration: 1, execution: 1, attempt: 1, ...more });
const remedy = (verb, given = {}) => ({
  verb,
  arguments: { run: "r", ...given },
  words: `${verb} it`,
  command: `holdfast ${verb}`,
});
const run = (status, more = {}) => ({ id: "r", status, crashed: false, questions: [], remedies: [], failed_node: null, ...more });
const verbs = (actions) => actions.map((one) => one.label);

test("a choice is read from the fragment, and what is no choice is left out", () => {
  const choice = choiceIn(place({ node: ["write"], visit: ["2.1.3"], item: ["4"], tab: ["steps"], view: ["log"] }));
  assert.deepEqual(choice, { node: "write", iteration: 2, execution: 1, attempt: 3, item: 4, tab: "steps", view: "log" });
  const odd = choiceIn(place({ node: ["../meta"], visit: ["2.x"], item: ["-1"], tab: ["nothing"], view: ["nothing"] }));
  assert.deepEqual(odd, { node: null, iteration: 2, execution: null, attempt: null, item: null, tab: null, view: "timeline" });
});

test("a chosen visit is in the fragment, and another checkpoint drops what was chosen", () => {
  assert.deepEqual(placeOfVisit(place(), "write", [2, 1]).query, { node: ["write"], visit: ["2.1"] });
  const past = placeAt(place({ node: ["write"], visit: ["2.1"], view: ["state"] }), 24);
  assert.deepEqual(past, { screen: "run", run: "r", at: 24, query: { view: ["state"] } });
  assert.deepEqual(placeAt(past, null), { screen: "run", run: "r", query: { view: ["state"] } });
});

test("without a choice, what failed is shown, then what asks, then what runs, then what was last", () => {
  const nodes = { a: mark("completed", 1), b: mark("completed", 5), c: mark("running", 2) };
  assert.equal(nodeOfInterest(nodes), "c");
  assert.equal(nodeOfInterest({ ...nodes, d: mark("waiting", 3, { waits_for: "question" }) }), "d");
  assert.equal(nodeOfInterest({ ...nodes, e: mark("failed", 1) }), "e");
  assert.equal(nodeOfInterest({ a: nodes.a, b: nodes.b }), "b");
  assert.equal(nodeOfInterest({}), null);
});

test("the next problem goes around", () => {
  const nodes = { a: mark("failed", 1), b: mark("completed", 2), c: mark("running", 3, { crashed: true }) };
  assert.equal(nextProblem(nodes, null), "a");
  assert.equal(nextProblem(nodes, "a"), "c");
  assert.equal(nextProblem(nodes, "c"), "a");
  assert.equal(nextProblem({ b: nodes.b }, "b"), null);
});

test("the tab that opens follows from the place and the visit", () => {
  const fresh = { opened: null, streams: false };
  assert.equal(tabFor(true, { status: "running", chunks: 3 }, fresh), "change");
  assert.equal(tabFor(false, { status: "running", chunks: 3 }, fresh), "stream");
  assert.equal(tabFor(false, { status: "completed", chunks: 3 }, fresh), "overview");
  assert.equal(tabFor(false, { status: "running", chunks: 0 }, fresh), "overview");
  assert.equal(tabFor(false, { status: "running", chunks: 1 }, { opened: "overview", streams: false }), "stream");
  assert.equal(tabFor(false, { status: "running", chunks: 0 }, { opened: null, streams: true }), "stream");
  assert.equal(tabFor(false, { status: "completed", chunks: 3 }, { opened: "stream", streams: true }), "stream");
});

test("the first remedy of a failed run is the filled button, and the others follow", () => {
  const { shown, more } = actionsOf(run("failed", { failed_node: "charge", remedies: [remedy("resume")] }), false, []);
  assert.deepEqual(verbs(shown), ["Resume", "Retry charge", "Skip charge", "Fork"]);
  assert.deepEqual(verbs(more), ["Cancel"]);
  assert.deepEqual(
    shown.map((one) => one.filled),
    [true, false, false, false],
  );
});

test("a run that moves by itself, and an earlier checkpoint, have no filled button", () => {
  const moving = actionsOf(run("running"), false, []);
  assert.deepEqual(verbs(moving.shown), ["Pause", "Fork"]);
  assert.ok(moving.shown.every((one) => !one.filled));
  const past = actionsOf(run("failed", { remedies: [remedy("resume")] }), true, []);
  assert.ok(past.shown.every((one) => !one.filled));
});

test("a run that is pausing says so, and offers no second pause", () => {
  const pausing = run("running", { pausing: true });
  assert.deepEqual(verbs(actionsOf(pausing, false, []).shown), ["Fork"]);
  assert.deepEqual(lookOfRun(pausing), { word: "pausing", glyph: "pausing", tone: "accent", turns: true });
  assert.equal(lookOfRun({ ...pausing, crashed: true }).word, "crashed");
  const row = familyRow({ id: "r", status: "running", pausing: true });
  assert.equal(row.word, "pausing");
});

test("a run that asks is answered or cancelled, and the first of these is filled", () => {
  const remedies = [remedy("answer"), remedy("answer"), remedy("resume")];
  const { shown, more } = actionsOf(run("waiting", { questions: [{}], remedies }), false, []);
  assert.deepEqual(
    [verbs(shown), verbs(more)],
    [
      ["Answer", "Cancel"],
      ["Fork", "Resume"],
    ],
  );
  assert.deepEqual([shown[0].filled, shown[1].filled], [true, false]);
});

test("a run that cannot continue with its changed flow is forked, from the place that the server names", () => {
  const fork = { verb: "fork", arguments: { run: "r", checkpoint: 12 }, words: "", command: "" };
  const changed = run("failed", { failed_node: "charge", remedies: [fork, remedy("resume")] });
  const { shown, more } = actionsOf(changed, false, []);
  assert.deepEqual(
    [...shown, ...more].map((one) => [one.verb, one.filled]),
    [
      ["fork", true],
      ["cancel", false],
    ],
  );
  assert.equal(askFor(changed, { verb: "fork", node: null }).label, "Fork from @12");
  assert.deepEqual(askFor(changed, { verb: "fork", node: null }).options, { checkpoint: 12 });
});

test("what was asked takes the place of its button, and no other is filled", () => {
  const { shown } = actionsOf(run("failed", { remedies: [remedy("resume")] }), false, ["resume"]);
  assert.deepEqual(
    shown.map((one) => [one.verb, one.filled]),
    [["fork", false]],
  );
});

test("an ended run can only be forked, and a way that needs a terminal is no button", () => {
  const { shown, more } = actionsOf(run("completed", { remedies: [remedy("verify")] }), false, []);
  assert.deepEqual([verbs(shown), more], [["Fork"], []]);
});

test("a verb is asked for with the arguments of its remedy, or from the checkpoint that is shown", () => {
  const failed = run("failed", {
    remedies: [remedy("resume", { force: true }), remedy("skip", { run_id: "r", node: "charge" })],
  });
  assert.deepEqual(askFor(failed, { verb: "resume", node: null }).options, { force: true });
  assert.deepEqual(askFor(failed, { verb: "skip", node: "charge" }), {
    title: "Skip charge of r",
    label: "Skip charge",
    options: { node: "charge" },
  });
  assert.deepEqual(askFor(failed, { verb: "fork", node: "charge", at: 24 }), {
    title: "Fork r from @24",
    label: "Fork from @24",
    options: { checkpoint: 24 },
  });
  assert.deepEqual(askFor(failed, { verb: "resume", node: null, at: 24 }).options, { checkpoint: 24 });
});

const attempt = (number, status, more = {}) => ({
  attempt: number,
  status,
  started_at: 10,
  ended_at: 12,
  failure: null,
  retry_at: null,
  reason: null,
  by: null,
  because: null,
  left: null,
  ...more,
});
const visit = (more) => ({
  node: "charge",
  causes: [],
  attempts: [],
  questions: [],
  options: {},
  cost: { usd: 0, tokens: 0 },
  ...more,
});
const cause = (node, seq, why = "edge") => ({ node, seq, iteration: 1, why });
const texts = (lines) => lines.map((line) => line.text);

test("why a visit ran names edge, join and branch", () => {
  assert.deepEqual(texts(whyItRan(visit({ causes: [cause("reserve", 5)] }), null)), ["reserve completed"]);
  const join = visit({ causes: [cause("reserve", 9), cause("check", 11)] });
  assert.deepEqual(texts(whyItRan(join, null)), ["reserve @9 and check @11 arrived (join)"]);
  assert.deepEqual(texts(whyItRan(visit({ causes: [cause("check", 40, "branch")] }), null)), ["check chose charge"]);
});

test("why an attempt began names who resumed, and the process that claimed the run", () => {
  const because = { kind: "resumed", seq: 32, by: "ada", reason: "card updated" };
  const second = attempt(2, "failed", { because });
  assert.deepEqual(texts(whyItRan(visit({ attempts: [second] }), second)), ["Attempt 2: ada resumed the run, “card updated”"]);
  const claimed = attempt(2, "running", { because: { kind: "claimed", seq: 8, holder: "w-7c1" } });
  const all = visit({ attempts: [attempt(1, "crashed"), claimed] });
  assert.deepEqual(texts(whyItRan(all, claimed)), ["Attempt 2: the process of attempt 1 died, w-7c1 claimed the run"]);
});

test("an answer is told with what was answered", () => {
  const said = { seq: 5, at: 9, answer: { value: "reject" }, by: "ada", reason: "change window", refused: true };
  const asked = { key: "charge.1.1", text: "Charge it?", item: null, seq: 4, at: 1, answers: [said] };
  assert.deepEqual(texts(questionLines(visit({ questions: [asked] }))), [
    "Charge it?",
    "ada answered “reject”, “change window”: the node failed",
  ]);
  const number = { ...said, seq: 6, answer: { value: { cents: 5 } }, by: null, reason: null, refused: false };
  const began = attempt(1, "running", { because: { kind: "answered", seq: 6, by: null } });
  const all = visit({ attempts: [began], questions: [{ ...asked, answers: [number] }] });
  assert.deepEqual(texts(whyItRan(all, began)), ['Attempt 1: somebody answered {"cents":5}']);
});

test("an excerpt of an input shows both ends of a long value, and says what it leaves out", () => {
  const rows = Array.from({ length: 40 }, (_, id) => ({ id, since: id === 39 ? "n/a" : "2019" }));
  const text = excerptOf({ rows: { value: rows }, tool: { value: "" } }, String);
  assert.match(text, /^\{ "rows": \[\{"id":0,"since":"2019"\}.*….*\{"id":39,"since":"n\/a"\}\], "tool": "" \}$/);
  const many = Object.fromEntries(Array.from({ length: 9 }, (_, name) => [`field${name}`, { value: "x".repeat(100) }]));
  assert.ok(excerptOf(many, String).endsWith(", … 6 more fields }"));
});

test("an attempt says how it ended and how long it took", () => {
  const failure = { kind: "recoverable", type: "ConnectionError", message: "", frames: [], traceback: "" };
  const failed = attempt(1, "failed", { failure, retry_at: 17 });
  assert.deepEqual(attemptWords(failed), { text: "ConnectionError", note: "retried in 5 s" });
  assert.equal(attemptTime(failed, 99), "2.0 s");
  assert.equal(attemptTime(attempt(1, "running", { ended_at: null }), 13), "3.0 s");
  assert.equal(attemptTime(attempt(1, "crashed", { ended_at: null }), 13), "–");
});

test("what a crashed attempt left is listed", () => {
  const left = { steps: ["quote"], chunks: 2, last_lines: ["the almanac"], files: ["draft.md"] };
  assert.deepEqual(
    leftWords(left).map((one) => one.text),
    ["1 step kept: quote", "draft.md, not complete", "2 chunks, ending “the almanac”"],
  );
  assert.deepEqual(visitFacts(visit({ cost: { usd: 0.041, tokens: 9210 }, options: { timeout_s: 60 } })), [
    ["Cost", "$0.041 · 9,210 tokens"],
    ["Time limit", "60.0 s"],
  ]);
});

test("a chunk that comes live and then with its event is in the text once", () => {
  let text = addChunk(addChunk(beginText(), { number: 1, value: "a" }), { number: 2, value: "b" });
  text = addChunk(text, { number: 2, value: "b" });
  text = addRecorded(text, 1, ["a", "b", "c"]);
  assert.deepEqual([text.text, text.count, text.recorded], ["abc", 3, 3]);
  assert.equal(addChunk(text, { number: 3, value: "c" }), text);
});

test("only the end of a long text is kept, and other values are JSON", () => {
  const long = addRecorded(beginText(), 1, ["x".repeat(500_000)]);
  assert.deepEqual([long.text.length, long.isCut], [50_000, true]);
  assert.equal(addRecorded(beginText(), 1, [{ a: 1 }, "b"]).text, '{"a":1}\nb');
});

test("chunks of another attempt or item are others", () => {
  const one = { node: "write", iteration: 1, execution: 1, attempt: 2, item: null };
  assert.ok(isSame({ ...one, item: undefined }, one));
  assert.ok(!isSame({ ...one, attempt: 1 }, one));
  assert.ok(!isSame({ ...one, item: 0 }, one));
});

test("an event of the log reads as words", () => {
  assert.equal(kindWords("NodeFailed"), "node failed");
  const event = { seq: 1, at: 1, kind: "NodeFailed", by: "ada", body: { failure: { type: "E", message: "no" } } };
  assert.equal(eventWords(event, 1), "by ada · E: no");
  assert.equal(eventWords({ seq: 1, at: 1, kind: "NodeStreamed", body: { chunks: ["a"] } }, 1), "1 chunk");
  assert.equal(eventWords({ seq: 1, at: 1, kind: "ItemStarted", body: { item: 0 } }, 1), "item 0");
  assert.equal(eventWords({ seq: 1, at: 1, kind: "CostIncurred", body: { usd: 0.02, tokens: 7 } }, 1), "$0.020 · 7 tokens");
});

test("the head of a run has its reason letter by letter, and a row alone is enough for it", () => {
  const row = {
    id: "r",
    flow: "order",
    status: "failed",
    reason: "node charge failed: E: no",
    labels: {},
    seq: 9,
    created_at: 1,
    updated_at: 2,
    active_s: 1,
    queue: "default",
    held_by: null,
    parent: null,
    remedy: remedy("resume"),
  };
  const context = { now: 100, isLive: true, readOnly: "dashboard" };
  const shown = standingOf({ row, run: null, picture: null, timeline: null }, context);
  assert.equal(shown.reason.map((part) => part.text).join(""), row.reason);
  assert.equal(shown.look.word, "failed");
  assert.equal(shown.next, ". Resume it.");
  assert.equal(shown.note, "Token “dashboard” may only read");
  assert.ok(shown.facts.some((fact) => fact.name === "Held by" && fact.value === "nobody"));
});

test("the facts name the newest fork", () => {
  const row = { id: "r", status: "failed", reason: "", labels: {}, seq: 9, created_at: 1, updated_at: 2, active_s: 1 };
  const timeline = { acts: [], forks: [{ run_id: "newest" }, { run_id: "oldest" }] };
  const shown = standingOf({ row, run: null, picture: null, timeline }, { now: 5, isLive: true, readOnly: "" });
  const fork = shown.facts.find((fact) => fact.name === "Last fork");
  assert.deepEqual([fork.value, fork.place.run, fork.act.place.query.b], ["newest", "newest", ["newest"]]);
});

test("the link of a fork leads to its parent at the checkpoint, and comparing them is an action of its own", () => {
  const row = { id: "r", status: "failed", reason: "", labels: {}, seq: 9, created_at: 1, updated_at: 2, active_s: 1 };
  const known = { row: { ...row, parent: "order-17@12" }, run: null, picture: null, timeline: null };
  const { facts } = standingOf(known, { now: 5, isLive: true, isPast: false, readOnly: "" });
  const { place, act } = facts.find((fact) => fact.name === "Forked from");
  assert.deepEqual(place, { screen: "run", run: "order-17", at: 12, query: {} });
  assert.deepEqual(act, { words: "Compare", place: { screen: "compare", query: { a: ["order-17"], b: ["r"] } } });
});

test("a run that waits for an answer needs no resume if a worker continues it", () => {
  const row = {
    id: "r",
    status: "waiting",
    reason: "ok waits",
    labels: {},
    seq: 9,
    created_at: 1,
    updated_at: 2,
    active_s: 1,
  };
  const context = { now: 5, isLive: true, isPast: false, readOnly: "" };
  const cost = { usd: 0, tokens: 0 };
  const nextOf = (...remedies) =>
    standingOf({ row, run: { remedies, questions: [], cost, children_cost: cost }, picture: null, timeline: null }, context).next;
  const [answer, resume] = ["answer", "resume"].map((verb) => ({ verb, words: `${verb} it`, arguments: {}, command: "" }));
  assert.equal(nextOf(answer), ". A worker resumes the run once it is answered.");
  assert.equal(nextOf(answer, resume), ". Resume it.");
});

test("in the past, the head says nothing that only the picture of then could tell", () => {
  const row = { id: "r", status: "failed", reason: "", labels: {}, seq: 9, created_at: 1, updated_at: 2, active_s: 1 };
  const known = { row, run: null, picture: { nodes: { a: { tries: 3 } } }, timeline: null };
  const namesAt = (isPast) => standingOf(known, { now: 5, isLive: true, isPast, readOnly: "" }).facts.map((fact) => fact.name);
  assert.ok(namesAt(false).includes("Attempts"));
  assert.ok(!namesAt(true).includes("Attempts"));
});

test("a node whose router failed says so in the graph and in its attempt", () => {
  const view = viewNode("decide", undefined, mark("failed", 1, { misrouted: true }), { now: 2 });
  assert.deepEqual([view.look.word, view.notes[0].words], ["failed", "routing failed"]);
  const failure = { type: "AttributeError", message: "no score", kind: "fatal", frames: [] };
  assert.deepEqual(attemptWords({ status: "failed", failure, reason: "routing failed" }), {
    text: "AttributeError",
    note: "routing failed · fatal",
  });
});

test("a run that cannot be read says so, and offers the command that looks into it", () => {
  const row = {
    id: "r",
    status: "running",
    reason: "cannot be read",
    labels: {},
    remedy: remedy("verify"),
    updated_at: 1,
    created_at: 1,
    active_s: 0,
  };
  const shown = standingOf({ row, run: null, picture: null, timeline: null }, { now: 5, isLive: true, readOnly: "" });
  assert.equal(shown.look.word, "unreadable");
  assert.deepEqual(
    shown.commands.map((one) => one.command),
    ["holdfast verify"],
  );
});

test("a remedy of a child run leads to the child, and is not asked of its caller", () => {
  const answer = { verb: "answer", arguments: { run_id: "r.1", question: "q" }, words: "", command: "" };
  const of = (/** @type {string} */ run) => ({ verb: "resume", arguments: { run }, words: "", command: "" });
  const place = { screen: "questions", query: { run: ["r.1"], key: ["q"] } };
  assert.deepEqual(actionFor("r", answer)?.place, place);
  const run = { id: "r", remedies: [{ ...of("r.1"), arguments: { run: "r.1", force: true } }, of("r")] };
  assert.deepEqual(askFor(/** @type {any} */ (run), { verb: "resume", node: null }).options, {});
});

test("a family is a tree below its first caller, and a run with more children leads to all of them", () => {
  const member = (/** @type {string} */ id, /** @type {number} */ depth, more = {}) =>
    /** @type {any} */ ({ id, depth, flow: "pay", status: "waiting", node: "settle", reason: "Why", asks: 0, ...more });
  const rows = familyRows({
    callers: [member("b", -1), member("a", -2)],
    members: [member("c", 0, { more: true }), member("d", 1)],
  });
  assert.deepEqual(
    rows.map((row) => [
      row.text.trimStart(),
      row.text.split("\u2003").length - 1,
      Boolean(row.chosen),
      formatFragment(row.place),
    ]),
    [
      ["a", 0, false, "#/runs/a"],
      ["b", 1, false, "#/runs/b"],
      ["c", 2, true, "#/runs/c"],
      ["all its child runs", 3, false, "#/runs?origin=c"],
      ["d", 3, false, "#/runs/d"],
    ],
  );
});

test("a row of a family has the reason if the run needs attention, and says so if the run was deleted", () => {
  const run = { id: "r", flow: "pay", node: "settle", reason: "It failed" };
  assert.equal(familyRow({ ...run, status: "failed", needs_attention: true }).note, "pay · called by settle · It failed");
  assert.equal(familyRow({ ...run, status: "waiting", needs_attention: false }).note, "pay · called by settle");
  assert.equal(familyRow({ ...run, status: null }).word, "deleted");
});
