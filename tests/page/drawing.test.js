import assert from "node:assert/strict";
import { test } from "node:test";

import { GLYPHS } from "../../src/holdfast/server/page/pure/glyphs.js";
import { commandFor, mayAct, nameOfKey } from "../../src/holdfast/server/page/pure/keys.js";
import { applyEvent } from "../../src/holdfast/server/page/pure/node_states.js";
import { LOOKS, STATUS_ORDER, lookOfNode, lookOfRun } from "../../src/holdfast/server/page/pure/statuses.js";
import { createTimeScale, foldedGaps } from "../../src/holdfast/server/page/pure/time_scale.js";
import { visibleRows } from "../../src/holdfast/server/page/pure/windows.js";

test("every status has a word, a glyph of its own and a tone", () => {
  for (const look of Object.values(LOOKS)) assert.ok(look.word && GLYPHS[look.glyph] && look.tone);
  assert.equal(new Set(Object.values(LOOKS).map((look) => look.glyph)).size, Object.keys(LOOKS).length);
  for (const status of STATUS_ORDER) assert.ok(LOOKS[status]);
});

test("a crash and a question outrank the status", () => {
  assert.equal(lookOfRun({ status: "running", crashed: true }).word, "crashed");
  assert.deepEqual(
    [lookOfRun({ status: "waiting", asks: 1 }).tone, lookOfRun({ status: "waiting", asks: 0 }).tone],
    ["ask", "rest"],
  );
  assert.equal(lookOfRun({ status: "dreaming" }).word, "dreaming");
});

test("a gap of two hours is a strip of at most 62 px that names its length", () => {
  const busy = [
    { start: 0, end: 2 },
    { start: 2, end: 4 },
    { start: 7204, end: 7206 },
  ];
  const scale = createTimeScale({ from: 0, to: 7206, busy, width: 800 });
  const fold = scale.stretches.find((one) => one.words);
  const width = fold.right - fold.x;
  assert.deepEqual([fold.words, width <= 62 && width >= 40], ["2 h", true]);
  const last = scale.stretches.at(-1);
  assert.ok(Math.abs(last.right - 800) < 0.001);
  assert.ok(scale.xOf(4) - scale.xOf(2) > 200, "attempts have the room that the gap gave up");
});

test("time and place are inverse, also inside a fold", () => {
  const scale = createTimeScale({
    from: 0,
    to: 1000,
    busy: [
      { start: 0, end: 10 },
      { start: 900, end: 1000 },
    ],
    width: 500,
  });
  for (const at of [0, 5, 10, 400, 900, 1000]) assert.ok(Math.abs(scale.timeOf(scale.xOf(at)) - at) < 0.01, String(at));
});

test("folding can be turned off, and nothing is folded where attempts are long", () => {
  const busy = [
    { start: 0, end: 10 },
    { start: 60, end: 70 },
  ];
  assert.equal(createTimeScale({ from: 0, to: 1000, busy, width: 500, fold: false }).stretches.length, 1);
  assert.deepEqual(foldedGaps(busy, 0, 70), []);
  assert.deepEqual(foldedGaps([], 0, 1000), []);
});

test("ticks count from the time of day, and keep their distance", () => {
  const scale = createTimeScale({ from: 0, to: 20, busy: [{ start: 0, end: 20 }], width: 500 });
  assert.deepEqual(
    scale.ticks.slice(1).map((tick) => tick.words),
    ["+5 s", "+10 s", "+15 s"],
  );
  const places = scale.ticks.map((tick) => tick.x);
  for (let at = 1; at < places.length; at += 1) assert.ok(places[at] - places[at - 1] >= 90);
});

test("an instant, and a run of no length, are drawn too", () => {
  const scale = createTimeScale({ from: 5, to: 5, busy: [], width: 300 });
  assert.ok(scale.xOf(5) >= 0 && scale.xOf(5) <= 300);
});

test("only rows in view are drawn, and the others keep their space", () => {
  const seen = visibleRows({ count: 100000, rowHeight: 40, scrolled: 40000, height: 800, spare: 5 });
  assert.deepEqual(seen, { from: 995, to: 1025, above: 39800, below: (100000 - 1025) * 40 });
  assert.deepEqual(visibleRows({ count: 0, rowHeight: 40, scrolled: 0, height: 800 }), { from: 0, to: 0, above: 0, below: 0 });
  assert.equal(visibleRows({ count: 10, rowHeight: 40, scrolled: 9000, height: 800 }).to, 10);
});

test("letters act outside of fields only, and can be turned off", () => {
  assert.equal(nameOfKey({ key: "Enter", metaKey: true }), "ctrl+enter");
  assert.equal(nameOfKey({ key: "ArrowLeft" }), "left");
  assert.ok(!mayAct("j", { typing: true, lettersOff: false }));
  assert.ok(!mayAct("j", { typing: false, lettersOff: true }));
  assert.ok(mayAct("left", { typing: false, lettersOff: true }));
  assert.ok(mayAct("esc", { typing: true, lettersOff: true }));
});

test("the screen has a key before the shell", () => {
  const command = (keys, words) => ({ keys, words, act: () => {} });
  assert.equal(commandFor([command(["j"], "inner"), command(["j"], "outer")], "j").words, "inner");
});

test("events after the picture change the states of nodes", () => {
  let states = {
    seq: 5,
    nodes: { charge: { status: "running", iteration: 1, execution: 1, attempt: 1, tries: 3 } },
    stale: false,
  };
  const event = (seq, kind, more = {}) => ({
    seq,
    at: seq,
    kind,
    node: "charge",
    iteration: 1,
    execution: 1,
    attempt: 1,
    ...more,
  });
  assert.equal(applyEvent(states, event(5, "NodeFailed")), states);
  states = applyEvent(states, event(6, "NodeFailed", { body: { retry_at: 99 } }));
  assert.deepEqual(
    [states.nodes.charge.status, states.nodes.charge.waits_for, states.nodes.charge.until],
    ["waiting", "retry", 99],
  );
  states = applyEvent(states, event(7, "NodeStarted", { attempt: 2 }));
  assert.deepEqual(
    [states.nodes.charge.status, states.nodes.charge.attempt, states.nodes.charge.waits_for],
    ["running", 2, null],
  );
  states = applyEvent(states, event(8, "QuestionAsked"));
  assert.deepEqual([lookOfNode(states.nodes.charge).tone, lookOfNode(undefined).word], ["ask", "not reached"]);
  states = applyEvent(states, event(9, "NodeStreamed"));
  assert.equal(states.stale, false);
  assert.ok(applyEvent(states, event(10, "RunRewound", { node: null })).stale);
  assert.ok(applyEvent(states, event(12, "NodeStarted")).stale, "an event is missing");
});
