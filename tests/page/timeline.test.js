import assert from "node:assert/strict";
import { test } from "node:test";

import { storyOf } from "../../src/holdfast/server/page/pure/stories.js";
import { createTimeScale } from "../../src/holdfast/server/page/pure/time_scale.js";
import { actShapes, axisShapes, heldShapes, overShapes, rowShapes } from "../../src/holdfast/server/page/pure/timeline_shapes.js";
import {
  actWords,
  barWords,
  busyTimes,
  holderGaps,
  joinTimelines,
  timelineRows,
  wholeTime,
} from "../../src/holdfast/server/page/pure/timelines.js";

const bar = (seq, node, started_at, ended_at, changes = {}) => ({
  seq,
  node,
  iteration: 1,
  execution: 1,
  attempt: 1,
  status: ended_at === undefined ? "running" : "completed",
  started_at,
  ended_at,
  ...changes,
});
const empty = { run_id: "r", seq: 34, started_at: 0, ended_at: 0, beginning: "", next: null };
const timeline = (changes) => ({ ...empty, holders: [], attempts: [], items: [], waits: [], acts: [], forks: [], ...changes });
const mark = (status) => ({ status, iteration: 1, execution: 1, attempt: 1 });
const of = (shapes, name) => shapes.filter((shape) => shape.name === name);
const looks = (shapes) => shapes.map((shape) => shape.attributes.class);
const words = (shapes) => of(shapes, "text").map((shape) => shape.words);

/** A worker dies in `charge`, another takes over, the run fails, and is resumed two hours later. */
const FAILED = timeline({
  ended_at: 8802.7,
  holders: [
    { seq: 1, holder: "w-2a9", started_at: 0, ended_at: 3.8, end: "died" },
    { seq: 12, holder: "w-7c1", started_at: 10.1, ended_at: 18.4, end: "released" },
    { seq: 30, holder: "w-7c1", started_at: 8799, ended_at: 8802.7, end: "released" },
  ],
  attempts: [
    bar(2, "validate", 0, 0.3),
    bar(4, "reserve", 0.3, 1.5),
    bar(5, "fraud_check", 0.3, 2.4),
    bar(8, "charge", 2.4, 3.8, { status: "crashed" }),
    bar(14, "charge", 10.1, 12, { status: "failed", attempt: 2, retry_at: 17, error: "ConnectionError" }),
    bar(18, "charge", 17.1, 18.4, { status: "failed", attempt: 3, error: "CardDeclined" }),
    bar(32, "charge", 8799, 8802.7, { status: "failed", attempt: 4, error: "CardDeclined: insufficient funds" }),
  ],
  waits: [
    { seq: 9, kind: "holder", started_at: 3.8, ended_at: 10.1, reason: "no holder" },
    { seq: 15, kind: "retry", node: "charge", started_at: 12, ended_at: 17.1, until: 17, reason: "retry in 5 s" },
  ],
  acts: [
    { seq: 1, at: 0, verb: "start", by: "ada" },
    { seq: 30, at: 8799, verb: "resume", by: "ada", reason: "card updated" },
  ],
});
const NODES = [
  { name: "ship", once: true },
  { name: "charge", mark: { ...mark("failed"), seconds: 5.1 } },
  ...["validate", "reserve", "fraud_check"].map((name) => ({ name, mark: mark("completed") })),
];
const NOW = 9000;

/** @param {ReturnType<typeof timeline>} of */
const scaleOf = (of, { width = 800, now = NOW, ...more } = {}) =>
  createTimeScale({ ...wholeTime(of, now), busy: busyTimes(of, now), width, now, ...more });
const rowOf = (of, name, nodes = NODES) => timelineRows(of, nodes, NOW).find((row) => row.name === name);

test("rows are in the order of their first start, nodes that were not reached last", () => {
  const rows = timelineRows(FAILED, NODES, NOW);
  assert.deepEqual(
    rows.map((row) => row.name),
    ["validate", "reserve", "fraud_check", "charge", "ship"],
  );
  assert.deepEqual(
    rows.map((row) => [row.look.word, row.time, row.once])[4],
    ["not reached", "", true],
    "a node that was not reached has no time",
  );
  assert.equal(rows[3].time, "5.1 s", "the time that the graph shows");
  const unknown = timelineRows(timeline({ attempts: [bar(1, "removed", 0, 1)] }), NODES, NOW);
  assert.ok(
    unknown.some((row) => row.name === "removed"),
    "a node that the flow no longer has",
  );
});

test("a bar is an attempt: numbered, in the tone of who has to move, torn where its process died", () => {
  const shapes = rowShapes(rowOf(FAILED, "charge"), scaleOf(FAILED));
  const bars = shapes.filter((shape) => shape.attributes["data-visit"]);
  assert.deepEqual(
    bars.map((shape) => [shape.name, shape.attributes.class, shape.attributes["data-visit"]]),
    [
      ["path", "bar ask", "1.1.1"],
      ["rect", "bar fail", "1.1.2"],
      ["rect", "bar fail", "1.1.3"],
      ["rect", "bar fail", "1.1.4"],
    ],
  );
  assert.match(bars[0].attributes.d, /l-4 4 4 4-4 4 4 4/);
  assert.deepEqual(words(shapes), ["retry in 5 s", "no holder", "1", "2", "3", "run failed", "4", "run failed"]);
  assert.match(bars[1].words, /attempt 2: failed, 1.9 s\nConnectionError/);
});

test("a wait that has no room for its reason still shows the seconds of a retry", () => {
  const retry = (width) => words(rowShapes(rowOf(FAILED, "charge"), scaleOf(FAILED, { width })))[0];
  assert.deepEqual([retry(800), retry(360)], ["retry in 5 s", "5 s"]);
});

test("a running bar grows up to now, and what a rewind has undone is pale", () => {
  const running = timeline({ attempts: [bar(1, "a", 0, undefined), bar(2, "b", 0, 5, { current: false })] });
  const ends = [10, 20].map((now) => {
    const scale = createTimeScale({ from: 0, to: 20, busy: [], width: 200, now });
    const [shape] = rowShapes(timelineRows(running, [], now)[0], scale);
    return [shape.attributes.class, shape.attributes.width];
  });
  assert.deepEqual(ends, [
    ["bar live", 100],
    ["bar live", 200],
  ]);
  assert.deepEqual(looks(rowShapes(rowOf(running, "b"), scaleOf(running))), ["bar done undone"]);
});

test("bars of a loop are numbered by iteration, and by attempt where there were several", () => {
  const bars = [
    bar(1, "write", 0, 1),
    bar(2, "write", 1, 2, { iteration: 2 }),
    bar(3, "write", 2, 3, { iteration: 2, attempt: 2 }),
  ];
  assert.deepEqual(
    bars.map((one) => barWords(one, bars)[0]),
    ["1", "2", "2 · attempt 2"],
  );
  assert.deepEqual(barWords(bars[0], [bars[0]]), []);
  const rewound = [bars[0], bar(4, "write", 5, 6, { execution: 2 })];
  assert.deepEqual(barWords(rewound[1], rewound), ["1.2"]);
});

test("a holder that died has a cross and is killed; the next one took over", () => {
  const shapes = heldShapes(FAILED.holders, holderGaps(FAILED), scaleOf(FAILED));
  assert.deepEqual(words(shapes), ["w-2a9", "killed", "w-7c1 took over", "w-7c1"]);
  assert.deepEqual(looks(of(shapes, "path")), ["cross"], "the wait for a holder is in the row of the attempt that crashed");
  const [cross] = of(shapes, "path");
  assert.match(cross.words, /^w-2a9, killed, last sign of life at \d/);
  const [first] = of(shapes, "rect");
  assert.match(cross.attributes.d, new RegExp(`^M${first.attributes.x + first.attributes.width - 4} `));
});

test("a holder that left in order is drained, and the time without one is dotted beside it", () => {
  const drained = timeline({
    ended_at: 30,
    holders: [
      { seq: 1, holder: "w-3d4", started_at: 0, ended_at: 10, end: "drained" },
      { seq: 9, holder: null, started_at: 20, ended_at: 30, end: "released" },
    ],
    waits: [{ seq: 8, kind: "holder", started_at: 10, ended_at: 20, reason: "no holder" }],
  });
  const shapes = heldShapes(drained.holders, holderGaps(drained), scaleOf(drained));
  assert.deepEqual(words(shapes), ["w-3d4, drained", "starting process"]);
  assert.deepEqual(looks(of(shapes, "path")), ["wait holder"]);
});

test("labels of holders never run into each other", () => {
  const holders = Array.from({ length: 30 }, (_, at) => ({
    seq: at,
    holder: at % 3 ? `w-${at}` : `worker-with-a-long-name-${at}`,
    started_at: at,
    ended_at: at + 0.5,
    end: at % 2 ? "died" : "released",
  }));
  const scale = createTimeScale({ from: 0, to: 30, busy: [], width: 900 });
  const starts = of(heldShapes(holders, [], scale), "text").filter((one) => one.attributes["text-anchor"] === "start");
  for (let at = 1; at < starts.length; at += 1) {
    const before = starts[at - 1];
    assert.ok(starts[at].attributes.x >= before.attributes.x + 6 * before.words.length, `${before.words}, ${starts[at].words}`);
  }
});

test("up to 8 items have a lane of 3 px each, inside of their row", () => {
  const items = Array.from({ length: 8 }, (_, item) => bar(3 + item, "embed", item, 20, { item }));
  const fan = timeline({ ended_at: 20, attempts: [bar(2, "embed", 0, 20), ...items] });
  const row = rowOf(fan, "embed", [{ name: "embed", mark: mark("completed") }]);
  assert.deepEqual([row.count, row.time], ["×8", "0.0 s"]);
  const lanes = rowShapes(row, scaleOf(fan));
  assert.equal(lanes.length, 8, "the attempt of the whole fan-out is not drawn as well");
  for (const { attributes } of lanes) assert.ok(attributes.height === 3 && attributes.y >= 0 && attributes.y + 3 <= 30);
  assert.equal(new Set(lanes.map((lane) => lane.attributes.y)).size, 8);
});

test("a fan-out of a thousand is one band that shows how many ran and failed", () => {
  const band = {
    seq: 3,
    node: "embed",
    iteration: 1,
    execution: 1,
    items: 1000,
    started_at: 0,
    ended_at: 50,
    attempts: 1010,
    counts: { completed: 990, failed: 10 },
    running: [10, 40, 0, 20],
    failed: [0, 0, 0, 10],
    crashed: [0, 0, 0, 0],
  };
  const fan = timeline({ ended_at: 50, items: [band] });
  const row = rowOf(fan, "embed");
  const shapes = rowShapes(row, scaleOf(fan));
  assert.deepEqual([row.count, looks(shapes)], ["×1,000", ["bar done", "bar fail"]]);
  assert.deepEqual(
    shapes.map((shape) => shape.attributes.d.match(/M/g).length),
    [3, 1],
  );
  assert.equal(shapes[0].words, "990 completed, 10 failed");
});

test("a question is an amber diamond, dotted until it is answered", () => {
  const asks = timeline({
    ended_at: 5,
    attempts: [bar(1, "a", 0, 5)],
    waits: [{ seq: 2, kind: "question", node: "publish", started_at: 5, reason: "Publish?" }],
  });
  assert.deepEqual(wholeTime(asks, 60), { from: 0, to: 60, isOpen: true });
  const scale = createTimeScale({ from: 0, to: 60, busy: [], width: 600 });
  const [line, gem] = rowShapes(rowOf(asks, "publish"), scale);
  assert.deepEqual([line.attributes.class, line.attributes.d], ["wait question", "M50 15H600"]);
  assert.deepEqual([gem.attributes.class, gem.words], ["gem ask", "Publish?"]);
});

test("what a person did is a blue diamond with words, and a hairline over all rows", () => {
  const acts = FAILED.acts.slice(1);
  const scale = scaleOf(FAILED);
  const shapes = actShapes(acts, scale, 900);
  assert.deepEqual([looks(shapes), words(shapes)], [["gem accent", "words accent"], ["ada resumed: “card updated”"]]);
  assert.deepEqual(looks(overShapes({ acts, checkpoint: null, isRunning: false, marked: null }, scale)), ["hairline"]);
  const crowded = Array.from({ length: 50 }, (_, at) => ({ seq: at, at: at / 10, verb: "signal", by: "bo", about: "go" }));
  const many = actShapes(crowded, createTimeScale({ from: 0, to: 5, busy: [], width: 500 }), 500);
  assert.equal(of(many, "path").length, 50);
  assert.ok(of(many, "text").length <= 2, "words that have no room are left to the pointer");
  assert.equal(actWords({ seq: 1, at: 1, verb: "answer", node: "publish", about: "ok" }), "somebody answered ok");
  const answer = { seq: 1, at: 1, verb: "answer", node: "publish", about: "publish.1.1", by: "bo", answer: "reject" };
  assert.equal(actWords(answer), "bo answered “reject” to publish.1.1");
});

test("an earlier checkpoint has a playhead with its name and a veil over what follows; now has a line while something runs", () => {
  const scale = createTimeScale({ from: 0, to: 10, busy: [], width: 100 });
  const view = { acts: [], checkpoint: { seq: 24, at: 5 }, isRunning: true, marked: null };
  const shapes = overShapes(view, scale);
  assert.deepEqual(looks(shapes), ["veil", "playhead", "place", "place-words"]);
  assert.deepEqual([shapes[0].attributes.x, shapes[3].words], [50, "@24"]);
  assert.deepEqual(looks(overShapes({ ...view, checkpoint: null }, scale)), ["playhead"]);
  assert.deepEqual(overShapes({ ...view, checkpoint: null, isRunning: false }, scale), []);
});

test("labels of the axis do not touch, and folded time is named", () => {
  for (const width of [300, 500, 800, 1300]) {
    const labels = axisShapes(scaleOf(FAILED, { width }), width)
      .map((shape) => ({ middle: shape.attributes.x, half: 3 * shape.words.length, words: shape.words }))
      .sort((a, b) => a.middle - b.middle);
    assert.ok(
      labels.some((label) => label.words === "2 h 26 min"),
      String(width),
    );
    for (let at = 1; at < labels.length; at += 1) {
      assert.ok(labels[at - 1].middle + labels[at - 1].half < labels[at].middle - labels[at].half, labels[at].words);
    }
  }
});

test("words about the end of an attempt have room before a fold", () => {
  const scale = scaleOf(FAILED);
  const fold = scale.stretches.find((one) => one.words);
  assert.ok(fold.x - scale.xOf(18.4) > 30);
  assert.ok(fold.right - fold.x <= 62);
  assert.equal(fold.words, "2 h 26 min");
});

test("ticks beyond a minute are exact", () => {
  const scale = createTimeScale({ from: 0, to: 130, busy: [{ start: 0, end: 130 }], width: 700 });
  assert.deepEqual(
    scale.ticks.slice(1).map((tick) => tick.words),
    ["+20 s", "+40 s", "+60 s", "+80 s", "+100 s", "+120 s"],
  );
});

test("what is outside of the zoomed time is not drawn", () => {
  const scale = createTimeScale({ from: 9, to: 13, busy: busyTimes(FAILED, NOW), width: 400 });
  const shapes = rowShapes(rowOf(FAILED, "charge"), scale);
  assert.deepEqual(
    shapes.flatMap((shape) => shape.attributes["data-visit"] ?? []),
    ["1.1.2"],
  );
  assert.deepEqual(actShapes(FAILED.acts, scale, 400), []);
});

test("a loop of ten thousand rounds is drawn at once, with no more bars than pixels", () => {
  const attempts = Array.from({ length: 10000 }, (_, at) => bar(at + 1, "a", at, at + 0.9, { iteration: at + 1 }));
  const loop = timeline({ ended_at: 10000, attempts });
  const began = performance.now();
  const shapes = rowShapes(rowOf(loop, "a"), scaleOf(loop));
  assert.ok(shapes.length <= 800, String(shapes.length));
  assert.ok(performance.now() - began < 500);
});

test("the pages of a timeline are one timeline, which ends where the last page does", () => {
  const first = timeline({
    beginning: "forked",
    next: 5,
    attempts: [bar(1, "a", 0, 1)],
    acts: [{ seq: 1, at: 0, verb: "start" }],
  });
  const whole = joinTimelines(first, timeline({ seq: 40, attempts: [bar(6, "b", 1, undefined)] }));
  assert.deepEqual(
    whole.attempts.map((one) => one.seq),
    [1, 6],
  );
  assert.deepEqual([whole.seq, whole.next, whole.beginning, whole.acts.length], [40, null, "forked", 1]);
});

test("time ends with the last event once nothing is open, and begins with what a fork took over", () => {
  assert.deepEqual(wholeTime(FAILED, NOW), { from: 0, to: 8802.7, isOpen: false });
  const undone = timeline({ started_at: 50, ended_at: 60, attempts: [bar(1, "a", 10, undefined, { current: false })] });
  assert.deepEqual(wholeTime(undone, NOW), { from: 10, to: 60, isOpen: false });
});

test("the story is told newest first: who died, what was retried, what a person did, how long nothing happened", () => {
  const told = storyOf(FAILED, NOW).map((entry) => [
    entry.title.map((part) => part.text).join(""),
    entry.detail,
    entry.look.glyph,
    entry.gap,
  ]);
  assert.deepEqual(told, [
    ["charge attempt 4 failed, run failed", "CardDeclined: insufficient funds", "failed", undefined],
    ["ada resumed", "“card updated”", "person", "2 h 26 min"],
    ["charge attempt 3 failed, run failed", "CardDeclined", "failed", undefined],
    ["charge attempt 2 failed", "ConnectionError, retried after 5 s", "failed", undefined],
    ["charge attempt 1 crashed", "w-2a9 was killed; w-7c1 took over", "crashed", undefined],
    ["validate, reserve, fraud_check", "0.3 s, 1.2 s, 2.1 s", "completed", undefined],
    ["ada started the run", "", "person", undefined],
  ]);
});

test("what completed before and after a long idle time is told apart", () => {
  const apart = timeline({ ended_at: 102, attempts: [bar(1, "a", 0, 1), bar(2, "b", 1, 2), bar(3, "c", 100, 102)] });
  assert.deepEqual(
    storyOf(apart, NOW).map((entry) => [entry.title.map((part) => part.text).join(""), entry.gap]),
    [
      ["c", "98 s"],
      ["a, b", undefined],
    ],
  );
});

test("the story says what is open: what runs, what asks, that nobody holds the run", () => {
  const open = timeline({
    ended_at: 9,
    attempts: [bar(1, "write", 1, undefined, { iteration: 2 })],
    waits: [
      { seq: 2, kind: "question", node: "publish", started_at: 2, reason: "Publish?" },
      { seq: 3, kind: "holder", started_at: 3, reason: "no holder" },
      { seq: 4, kind: "retry", node: "x", started_at: 4, reason: "retry in 5 s" },
    ],
  });
  assert.deepEqual(
    storyOf(open, 9).map((entry) => [entry.title.map((part) => part.text).join(""), entry.detail]),
    [
      ["No process holds the run", ""],
      ["publish asks", "Publish?"],
      ["write iteration 2 runs", ""],
    ],
  );
});

test("the time without a holder begins where the torn bar ends as it is drawn", () => {
  const crashed = bar(3, "charge", 0, 0.1, { status: "crashed" });
  const gap = { seq: 4, kind: "holder", node: null, reason: "no holder", started_at: 0.1, ended_at: null };
  const [row] = timelineRows(timeline({ attempts: [crashed], waits: [gap] }), [{ name: "charge", mark: mark("running") }], 60);
  const scale = createTimeScale({ from: 0, to: 60, busy: [], width: 600 });
  const [torn, wait] = rowShapes(row, scale)
    .filter((shape) => shape.name === "path")
    .sort((a) => (a.attributes.class.startsWith("bar") ? -1 : 1));
  const end = Number(
    /^M([\d.]+).*?h([\d.]+)/
      .exec(torn.attributes.d)
      ?.slice(1)
      .reduce((a, b) => Number(a) + Number(b)),
  );
  assert.ok(Number(/^M([\d.]+)/.exec(wait.attributes.d)[1]) >= end, `${wait.attributes.d} after ${torn.attributes.d}`);
});

test("a run that took no time has no folded time", () => {
  const { stretches } = createTimeScale({
    from: 5,
    to: 5.02,
    busy: [
      { start: 5, end: 5 },
      { start: 5.01, end: 5.01 },
    ],
    width: 600,
  });
  assert.deepEqual(
    stretches.map((one) => one.words),
    [""],
  );
});

test("the label of the last holder stays on the page", () => {
  const holders = [
    { seq: 1, holder: "w-1", started_at: 0, ended_at: 40, end: "died" },
    { seq: 9, holder: "process 31583 on box", started_at: 59.8, ended_at: null, end: null },
  ];
  const shapes = of(heldShapes(holders, [], createTimeScale({ from: 0, to: 60, busy: [], width: 600, now: 60 })), "text");
  const last = shapes.find((shape) => shape.words.startsWith("pid 31583"));
  assert.equal(last.attributes["text-anchor"], "end");
  assert.ok(last.attributes.x <= 624);
});
