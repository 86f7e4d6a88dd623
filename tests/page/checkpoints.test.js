import assert from "node:assert/strict";
import { test } from "node:test";

import { SLIDER_STEPS, firstInView, stopAt, stopsOf, tellStop } from "../../src/holdfast/server/page/pure/checkpoints.js";
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
const ACTS = [
  { seq: 1, at: 1001, verb: "start", by: "ada" },
  { seq: 9, at: 1009, verb: "answer", by: "bo", node: "ship", about: "ship" },
];
const STOPS = stopsOf(PLACES, { seq: 12, at: 1012 }, ACTS);

test("checkpoints are places, acts of people are diamonds, and the last place is now", () => {
  assert.deepEqual(
    STOPS.map((stop) => `${stop.seq} ${stop.kind}`),
    ["1 dot", "5 dot", "9 person", "12 now"],
  );
  assert.equal(stopsOf([checkpoint(5)], { seq: 5, at: 1005 }, []).length, 1, "a checkpoint at the end is now");
  const resumed = stopsOf(PLACES, { seq: 12, at: 1012 }, [{ seq: 7, at: 1007, verb: "resume", by: "ada" }]);
  assert.deepEqual(
    resumed.map((stop) => `${stop.seq} ${stop.words}`),
    ["1 the run began", "5 plan completed", "7 ada resumed", "9 ship QuestionAnswered", "12 now"],
    "also what is no checkpoint",
  );
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
    hint: `${timeOfDay(1005)} · 7 events ago`,
  });
  assert.equal(tellStop(STOPS, 0, true).words, "after the run began");
  assert.deepEqual([tellStop(STOPS, 3, true).hint, tellStop(STOPS, 3, false).hint], ["@12 · live", `@12 · ${timeOfDay(1012)}`]);
});

test("above 60, those around the place are drawn, and they stay while the place is inside", () => {
  assert.equal(firstInView(60, 10), 0);
  for (const place of [480, 495, 500, 509]) assert.equal(firstInView(1000, place) <= place - 15, true, String(place));
  assert.deepEqual(
    [464, 465, 494, 495].map((place) => firstInView(1000, place)),
    [420, 450, 450, 480],
  );
  assert.deepEqual(
    [0, 20, 999].map((place) => firstInView(1000, place)),
    [0, 0, 940],
  );
  assert.equal(firstInView(1001, 1000), 941, "now moves on");
});

test("the keys of a slider move the place", () => {
  assert.deepEqual(
    ["left", "right", "home", "end", "pageup", "pagedown", "j"].map((key) => SLIDER_STEPS[key]),
    [-1, 1, -Infinity, Infinity, 10, -10, undefined],
  );
});

test("an event after a checkpoint is named as it is, with the checkpoint before it", () => {
  const { seq, words, hint } = tellStop(STOPS, 1, true, 7);
  assert.deepEqual([seq, words.endsWith("completed @5"), hint.endsWith("5 events ago")], ["@7", true, true]);
  assert.equal(tellStop(STOPS, 1, true, 5).seq, "@5");
});
