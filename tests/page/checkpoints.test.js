import assert from "node:assert/strict";
import { test } from "node:test";

import { stopAt, stopByKey, stopsInView, stopsOf, tellStop } from "../../src/holdfast/server/page/pure/checkpoints.js";
import { timeOfDay } from "../../src/holdfast/server/page/pure/words.js";

const checkpoint = (seq, kind = "NodeCompleted", node = "plan", current = true) => ({
  seq,
  at: 1000 + seq,
  kind,
  node,
  iteration: 1,
  execution: 1,
  current,
});
const PLACES = [checkpoint(1, "RunCreated", null), checkpoint(5), checkpoint(9, "QuestionAnswered", "ship")];
const STOPS = stopsOf(PLACES, { seq: 12, at: 1012 });

test("checkpoints are places, acts of people are diamonds, and the last place is now", () => {
  assert.deepEqual(
    STOPS.map((stop) => `${stop.seq} ${stop.kind}`),
    ["1 dot", "5 dot", "9 person", "12 now"],
  );
  assert.equal(stopsOf([checkpoint(5)], { seq: 5, at: 1005 }).length, 1, "a checkpoint at the end is now");
  assert.ok(stopsOf([checkpoint(5, "NodeCompleted", "plan", false)], { seq: 9, at: 0 })[0].left);
});

test("an event is shown at the last checkpoint up to it", () => {
  assert.deepEqual(
    [null, 12, 11, 9, 6, 0, 99].map((at) => stopAt(STOPS, at)),
    [3, 3, 2, 2, 1, 0, 3],
  );
});

test("the bar says where the reader is", () => {
  assert.deepEqual(tellStop(STOPS, 1, true), {
    seq: "@5",
    words: "after plan completed",
    node: "plan",
    hint: `${timeOfDay(1005)} · 7 events ago`,
  });
  assert.equal(tellStop(STOPS, 0, true).words, "after the run began");
  assert.deepEqual([tellStop(STOPS, 3, true).hint, tellStop(STOPS, 3, false).hint], ["@12 · live", `@12 · ${timeOfDay(1012)}`]);
});

test("above 60, those around the place are drawn, and they stay while the place is inside", () => {
  assert.deepEqual(stopsInView(60, 10, null), { from: 0, to: 60 });
  const first = stopsInView(1000, 500, null);
  assert.deepEqual(first, { from: 470, to: 530 });
  assert.equal(stopsInView(1000, 471, first), first);
  assert.deepEqual(stopsInView(1000, 470, first), { from: 440, to: 500 }, "there is always a dot to go on to");
  assert.deepEqual(stopsInView(1000, 999, first), { from: 940, to: 1000 });
  assert.deepEqual(stopsInView(1000, 0, first), { from: 0, to: 60 });
  assert.deepEqual(stopsInView(1001, 1000, { from: 940, to: 1000 }), { from: 941, to: 1001 }, "now moves on");
});

test("the keys of a slider move the place", () => {
  assert.deepEqual(
    ["ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "j"].map((key) => stopByKey(key, 20, 30)),
    [19, 21, 0, 29, 29, 10, null],
  );
  assert.deepEqual([stopByKey("ArrowLeft", 0, 3), stopByKey("ArrowRight", 2, 3)], [0, 2]);
});
