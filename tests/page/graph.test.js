import assert from "node:assert/strict";
import { test } from "node:test";

import {
  fitScale,
  foldCompleted,
  headPath,
  linePath,
  markPaths,
  markPath,
  widenBox,
  netOf,
} from "../../src/holdfast/server/page/pure/graph_shapes.js";
import { aloneNodes, edgesOf, ruleMarks, stepFrom, viewBox, viewGroup } from "../../src/holdfast/server/page/pure/graph_views.js";
import { messageOf } from "../../src/holdfast/server/page/pure/visit_words.js";
import { fitName, textOfItem, viewNode } from "../../src/holdfast/server/page/pure/node_views.js";

const mark = (status, more = {}) => ({ status, iteration: 1, execution: 1, attempt: 1, tries: 1, seconds: 2.4, ...more });
const box = (name, x, y, more = {}) => ({ name, kind: "node", x, y, w: 164, h: 48, ...more });
const line = (source, target, points, more = {}) => ({ source, target, kind: "forward", points, ...more });

// plan -> write -> check, which leads back to write or on to publish; photos leads to write too.
// prettier-ignore
const BRIEF = {
  fingerprint: "f",
  flow: "brief",
  width: 376,
  height: 476,
  max_iterations: 5,
  nodes: { plan: {}, photos: { idempotent: false }, write: {}, check: {}, publish: { idempotent: false, asks: true } },
  boxes: [
    { name: "START", kind: "start", x: 92, y: 16, w: 12, h: 12 },
    box("plan", 16, 56),
    box("write", 16, 212),
    box("check", 16, 284, { diamond: [98, 350] }),
    box("publish", 16, 376),
    box("photos", 196, 56),
    { name: "END", kind: "end", x: 92, y: 448, w: 12, h: 12 },
  ],
  lines: [
    line("START", "plan", [[98, 28], [98, 56]]),
    line("START", "photos", [[98, 28], [98, 38], [278, 38], [278, 56]]),
    line("plan", "write", [[98, 104], [98, 212]]),
    line("photos", "write", [[278, 104], [278, 194], [98, 194], [98, 212]]),
    line("write", "check", [[98, 260], [98, 284]]),
    line("check", "publish", [[98, 332], [98, 376]], { kind: "branch", branch: true }),
    line("publish", "END", [[98, 424], [98, 448]]),
    line("check", "write", [[98, 332], [98, 350], [222, 350], [222, 236], [180, 236]],
         { kind: "loop", branch: true, badge: [222, 293] }),
  ],
};
// prettier-ignore
const LIVE = {
  nodes: {
    plan: mark("completed"), photos: mark("completed"), write: mark("running", { iteration: 2, started_at: 100 }), check: mark("completed"),
  },
  taken: [["plan", "write"], ["photos", "write"], ["check", "write"]],
  chosen: { check: ["write"] },
};
const value = (states, more = {}) => ({ picture: BRIEF, states, now: 106.2, at: null, node: null, ...more });
const words = (view) => view.notes.map((note) => note.words).join(" · ");

test("a line has round corners, and its arrow points where it leads", () => {
  // prettier-ignore
  assert.equal(linePath({ points: [[0, 0], [0, 40], [40, 40]] }), "M0 0L0 32Q0 40 8 40L40 40");
  // prettier-ignore
  assert.equal(linePath({ points: [[0, 0], [0, 6], [40, 6]] }), "M0 0L0 3Q0 6 3 6L40 6");
  // prettier-ignore
  assert.equal(headPath({ points: [[5, 0], [5, 20]] }), "M9 16L5 20L1 16");
  // prettier-ignore
  assert.equal(headPath({ points: [[50, 9], [20, 9]] }), "M24 13L20 9L24 5");
});

test("up to 8 items have a cell each, and more share at most 4 rows of 50 marks", () => {
  const [[status, path]] = markPaths(Array(5).fill("completed"), 164);
  assert.deepEqual([status, path.split("M").length - 1], ["completed", 5]);
  const many = markPaths([...Array(190).fill("completed"), ...Array(10).fill("failed")], 314);
  assert.deepEqual(
    many.map(([one]) => one),
    ["completed", "failed"],
  );
  const rows = new Set(many.flatMap(([, d]) => [...d.matchAll(/M[\d.]+ ([\d.]+)/g)].map((found) => found[1])));
  assert.equal(rows.size, 4);
});

test("a picture fits the width between 60 and 100 %", () => {
  assert.deepEqual([fitScale(376, 384), fitScale(480, 384), fitScale(5000, 384)], [1, 0.8, 0.6]);
});

test("a line is taken if the run took it", () => {
  const taken = [...edgesOf(BRIEF, LIVE.taken)].map((one) => `${one.source} ${one.target}`);
  assert.deepEqual(taken, ["plan write", "photos write", "check write"]);
});

test("a guard or an error edge has a mark that says its verdict", () => {
  const rules = [
    { source: "plan", target: "write", guard: "context.ok" },
    { source: "check", target: "publish", errors: ["*"] },
    { source: "photos", target: "write", errors: ["Timeout", "partial"], guard: "now > 1.0" },
    { source: "nowhere", target: "write", guard: "true" },
  ];
  const taken = edgesOf(BRIEF, [["plan", "write"]]);
  const marks = ruleMarks(BRIEF, taken, edgesOf(BRIEF, [["check", "publish"]]), rules);
  assert.deepEqual(
    marks.map((one) => [one.words, one.isTaken, one.isError]),
    [
      ["if context.ok: taken", true, false],
      ["on Timeout or partial, if now > 1.0: not decided", undefined, true],
      ["on any failure: not taken", false, true],
    ],
  );
  assert.deepEqual(ruleMarks(BRIEF, taken, new Set()), []);
});

test("the mark of a guard is on its line, shortly before its end", () => {
  const down = { points: [[10, 0], [10, 40]] }; // prettier-ignore
  assert.match(markPath(down, true), /^M4.5 24a/);
  assert.notEqual(markPath(down, true), markPath(down, false));
  assert.ok(markPath(down, false).startsWith(markPath(down, undefined)));
  assert.match(markPath({ points: [[0, 0], [0, 8]] }, true), /^M-5.5 4a/); // prettier-ignore
});

test("a node that failed without stopping the run says how the run continues", () => {
  const took = viewNode("copy", {}, mark("skipped", { handled_by: ["repair"] }), { now: 100 });
  assert.deepEqual([took.look.word, took.look.glyph, took.look.tone], ["failed, taken by repair", "failed", "rest"]);
  const ignored = viewNode("copy", {}, mark("skipped", { handled_by: [] }), { now: 100 });
  assert.equal(ignored.notes[0].words, "failed, run continues");
});

test("a node that was skipped before it began has no time", () => {
  assert.equal(viewNode("pickup", {}, mark("skipped", { attempt: 0, seconds: 0 }), { now: 100 }).time, "");
  assert.equal(viewNode("pickup", {}, mark("skipped"), { now: 100 }).time, "2.4 s");
});

test("a node says its counts above 1, or what it waits for", () => {
  const said = (status, more = {}, around = {}) => words(viewNode("charge", {}, mark(status, more), { now: 100, ...around }));
  assert.equal(said("completed"), "1 attempt");
  assert.equal(said("completed", { tries: 3, attempt: 3 }), "3 attempts");
  assert.equal(said("completed", { iteration: 2 }), "2 iterations");
  assert.equal(said("completed", {}, { chosen: ["ship"] }), "→ ship");
  assert.equal(said("completed", {}, { chosen: ["write"], loops: true }), "iteration 1 → write");
  assert.equal(said("running"), "running");
  assert.equal(said("running", { iteration: 2, attempt: 3 }), "iteration 2 · attempt 3");
  assert.equal(said("failed", { attempt: 4 }), "failed · attempt 4");
  assert.equal(said("running", { crashed: true }), "crashed");
  assert.equal(said("waiting", { waits_for: "question" }), "waits for an answer");
  assert.equal(said("waiting", { waits_for: "retry", until: 105 }), "retry in 5 s");
  assert.equal(said("waiting", { waits_for: "retry", until: 99 }), "retry is due");
  assert.equal(said("completed", {}, { again: true }), "runs again");
});

test("a node that was not reached says what it will do", () => {
  const said = (facts, missing = 0) => words(viewNode("ship", facts, undefined, { now: 0, missing }));
  assert.deepEqual([said({}), said({ asks: true }), said({}, 3)], ["not reached", "asks first", "waits for 3 nodes"]);
  const states = { nodes: { plan: mark("completed"), photos: mark("running") }, taken: [], chosen: {} };
  assert.equal(words(viewBox(value(states), netOf(BRIEF), "write")), "waits for 1 node");
});

test("a fan-out counts its items, failures first and in their colour", () => {
  const items = { all: 1000, completed: 815, failed: 10, running: 40, waiting: 0, marks: ["failed"] };
  const view = viewNode("embed", { each: true }, mark("running", { items }), { now: 0 });
  assert.deepEqual([view.size, words(view)], [" ×1,000", "10 failed · 815 of 1,000 · 40 running"]);
  assert.deepEqual(
    view.notes.map((note) => note.tone),
    ["fail", "accent", "accent"],
  );
  const crashed = viewNode("embed", { each: true }, mark("running", { crashed: true, items: { ...items, marks: ["running"] } }), {
    now: 0,
  });
  assert.deepEqual([words(crashed), crashed.marks], ["10 failed · 815 of 1,000 · 40 crashed", ["crashed"]]);
});

test("the box of a large fan-out is wider where nothing is beside it", () => {
  const box = (name, x, y) => ({ name, kind: "node", x, y, w: 164, h: 60 });
  const [fan, below, beside] = [box("fan", 12, 40), box("below", 12, 140), box("beside", 192, 40)];
  const line = { source: "fan", target: "below", kind: "forward", points: [[94, 100], [94, 140]] }; // prettier-ignore
  const wide = widenBox({ width: 188, height: 220, boxes: [fan, below], lines: [line] }, fan);
  assert.deepEqual([wide.x, wide.w, wide.h], [-63, 314, 60]);
  assert.equal(widenBox({ width: 368, height: 220, boxes: [fan, below, beside], lines: [line] }, fan).w, 164);
});

test("a node that would run again shows nothing of what it did", () => {
  const view = viewNode("photos", {}, mark("running", { started_at: 1 }), { now: 9, again: true });
  assert.deepEqual([view.look.word, view.time, words(view)], ["not reached", "", "runs again"]);
});

test("a running node shows the time of its attempt, and any other all of its time", () => {
  const view = (name) => viewBox(value(LIVE), netOf(BRIEF), name);
  assert.deepEqual([view("write").time, view("plan").time, view("publish").time], ["6.2 s", "2.4 s", ""]);
});

test("a long name is cut in the middle", () => {
  const view = viewNode("a".repeat(100) + "z".repeat(100), { idempotent: false }, mark("completed"), { now: 0 });
  assert.match(fitName(view, 164), /^a+…z+$/);
  assert.ok(fitName(view, 164).length <= 8);
});

test("arrow keys follow lines, and lead in the order of reading to the side", () => {
  const net = netOf({ ...BRIEF, boxes: BRIEF.boxes.toSorted((a, b) => a.y - b.y || a.x - b.x) });
  const step = (name, key, states = LIVE) => stepFrom(net, edgesOf(BRIEF, states.taken), name, key);
  assert.deepEqual([step("plan", "down"), step("plan", "up")], ["write", undefined]);
  assert.deepEqual([step("plan", "right"), step("photos", "left"), step("photos", "right")], ["photos", "plan", "write"]);
  assert.deepEqual([step("check", "down"), step("write", "up"), step("publish", "down")], ["publish", "plan", undefined]);
});

// A chain of 80 nodes below START, beside which one node stands in the middle.
const LONG = {
  ...BRIEF,
  height: 80 * 72 + 100,
  nodes: Object.fromEntries(Array.from({ length: 80 }, (_, at) => [`n${at}`, {}])),
  boxes: [
    ...Array.from({ length: 80 }, (_, at) => box(`n${at}`, 16, 56 + at * 72)),
    box("aside", 196, 56 + 20 * 72),
    { name: "END", kind: "end", x: 92, y: 56 + 80 * 72, w: 12, h: 12 },
  ],
  lines: Array.from({ length: 80 }, (_, at) =>
    line(`n${at}`, at < 79 ? `n${at + 1}` : "END", [
      [98, 104 + at * 72],
      [98, 128 + at * 72],
    ]),
  ),
};
const isBefore = (limit) => (name) => name !== "aside" && Number(name.slice(1)) < limit;

test("a completed stretch of a large flow is one box, and what is below it moves up", () => {
  const folded = foldCompleted(LONG, isBefore(60), new Set());
  const [fold, next] = [folded.boxes[0], folded.boxes[1]];
  assert.deepEqual([fold.kind, fold.members.length, next.name], ["fold", 60, "n60"]);
  assert.deepEqual(viewGroup(fold, { nodes: {} }, false).name, "60 completed");
  const aside = folded.boxes.find((one) => one.name === "aside");
  assert.deepEqual([aside.y - fold.y - fold.h, next.y - aside.y - aside.h], [24, 24]);
  assert.deepEqual(folded.lines[0].points, [
    [98, fold.y + 48],
    [98, next.y],
  ]);
  assert.equal(folded.height, LONG.height - (LONG.boxes[60].y - next.y));
  assert.equal(folded.lines.length, 21);
});

test("a stretch that the reader opened, a small flow and a branch are not folded", () => {
  assert.equal(foldCompleted(LONG, isBefore(60), new Set(["fold:n0"])), LONG);
  assert.equal(
    foldCompleted(BRIEF, () => true, new Set()),
    BRIEF,
  );
  const lines = LONG.lines.with(10, { ...LONG.lines[10], kind: "branch", branch: true });
  const parts = foldCompleted({ ...LONG, lines }, isBefore(60), new Set()).boxes.filter((one) => one.kind === "fold");
  assert.deepEqual(
    parts.map((part) => part.members.length),
    [11, 49],
  );
});

test("a line that goes around other boxes parts two stretches, because it would run behind those boxes", () => {
  const [[x, from], [, to]] = LONG.lines[30].points;
  const around = [
    [x, from],
    [x, from + 8],
    [8, from + 8],
    [8, to - 8],
    [x, to - 8],
    [x, to],
  ];
  const lines = LONG.lines.with(30, { ...LONG.lines[30], points: around });
  const folded = foldCompleted({ ...LONG, lines }, isBefore(60), new Set());
  const parts = folded.boxes.filter((one) => one.kind === "fold");
  assert.deepEqual(
    parts.map((part) => part.members.length),
    [31, 29],
  );
  assert.ok(folded.lines.find((one) => one.source === parts[0].name).points.some(([at]) => at === 8));
});

const MEMBERS = Array.from({ length: 24 }, (_, at) => `load_${at}`);
// prettier-ignore
const STACKED = {
  ...BRIEF,
  nodes: Object.fromEntries(MEMBERS.map((name) => [name, {}])),
  boxes: [{ name: "stack:load_0", kind: "stack", x: 0, y: 0, w: 284, h: 52, members: MEMBERS }, box("merge", 60, 100)],
  lines: [line("stack:load_0", "merge", [[142, 52], [142, 100]])],
};

test("a stack counts its members by status, and its line is taken once a member is done", () => {
  const status = (at) => (at < 21 ? "completed" : at < 23 ? "running" : "failed");
  const nodes = Object.fromEntries(MEMBERS.map((name, at) => [name, mark(status(at))]));
  const view = viewGroup(STACKED.boxes[0], { nodes }, false);
  assert.deepEqual([view.name, words(view), view.act], ["load_0 … load_23", "21 completed · 2 running · 1 failed", "open 24"]);
  assert.equal(viewGroup(STACKED.boxes[0], { nodes }, true).act, "close");
  assert.equal(edgesOf(STACKED, [["load_3", "merge"]]).size, 1);
});

test("a member that runs, waits or failed is drawn alone, failures first, and stays alone", () => {
  const nodes = { load_1: mark("running"), load_2: mark("failed"), load_3: mark("completed"), load_4: mark("pending") };
  assert.deepEqual(aloneNodes(STACKED, nodes, []), ["load_2", "load_1"]);
  assert.deepEqual(aloneNodes(STACKED, {}, ["load_2"]), ["load_2"]);
  const all = Object.fromEntries(MEMBERS.map((name) => [name, mark("running")]));
  assert.equal(aloneNodes(STACKED, all, []).length, 8);
});

test("arrow keys lead through an open stack, and out of it", () => {
  const cells = [0, 1].map((row) => box(`load_${row}`, 12, 28 + row * 64, { stack: "stack:load_0" }));
  const net = netOf({ ...STACKED, boxes: [...STACKED.boxes, ...cells] });
  assert.equal(stepFrom(net, new Set(), "load_0", "right"), "load_1");
  assert.equal(stepFrom(net, new Set(), "load_1", "down"), "merge");
  assert.equal(stepFrom(net, new Set(), "merge", "up"), "load_0");
});

test("an item of a fan-out is named by its label, if it has one", () => {
  assert.equal(textOfItem("a.example", "completed"), "a.example · completed");
  assert.equal(textOfItem("", "completed"), "completed");
});

test("a failed fan-out says which item failed, before the message of its exception", () => {
  assert.equal(messageOf({ message: "torn" }), "torn");
  assert.equal(messageOf({ message: "torn", item: 0, label: "" }), "item 0: torn");
  assert.equal(messageOf({ message: "torn", item: 1, label: "a.example" }), "item 1 (a.example): torn");
});
