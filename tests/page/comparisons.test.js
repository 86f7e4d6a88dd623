import assert from "node:assert/strict";
import { test } from "node:test";

import {
  changesFor,
  editedFields,
  factsOf,
  forkWords,
  linesOf,
  sideTime,
  sideWords,
  timeApart,
} from "../../src/holdfast/server/page/pure/comparisons.js";

const side = (seconds, more = {}) => ({
  status: "completed",
  iteration: 1,
  tries: 1,
  seconds,
  cost: { usd: 0, tokens: 0 },
  ...more,
});
const FOUND = {
  a: { id: "order", status: "failed", seq: 34 },
  b: { id: "order-2", status: "completed", seq: 33 },
  shared: { run_id: "order", seq: 12 },
  forked: { seq: 13, body: { parent: "order", to: 12, by: "ada", reason: "another card" } },
  edits: [{ seq: 14, body: { changes: { set: { card: 1 }, unset: ["fails"] } } }],
  nodes: [
    { node: "check", a: side(0.3), b: side(0.3), shared: true, differs: [] },
    {
      node: "charge",
      a: side(4.4, { tries: 4, status: "failed", cost: { usd: 0.002, tokens: 9 } }),
      b: side(1.1),
      shared: false,
      differs: ["receipt"],
    },
    { node: "ship", a: null, b: side(0.9), shared: false, differs: ["shipped"] },
  ],
  changes: [
    { operation: "set", path: ["card"] },
    { operation: "set", path: ["receipt", "id"] },
  ],
  equal: 7,
};
const facts = (which) => factsOf(FOUND, which, null).map((fact) => fact.join(" "));

test("a fork counts what it did itself", () => {
  assert.deepEqual(facts("a"), ["Attempts 5", "Cost $0.002", "Events 34"]);
  assert.deepEqual(facts("b"), ["Attempts 2", "Events 21", "Edited card, fails"]);
  assert.deepEqual(editedFields(FOUND), ["card", "fails"]);
});

test("a fork says from where, by whom and why it was made", () => {
  assert.equal(forkWords(FOUND), "Forked from A at @12 by ada: “another card”");
  assert.equal(forkWords({ ...FOUND, a: { id: "other" } }), "Forked from order at @12 by ada: “another card”");
  assert.equal(forkWords({ ...FOUND, forked: null }), "");
});

test("the lines part where the shared history ends", () => {
  const lines = linesOf(FOUND);
  assert.equal(lines.a, 1);
  assert.ok(Math.abs(lines.shared - 12 / 34) < 1e-9);
  assert.ok(lines.b < 1 && lines.b > lines.shared);
  assert.equal(linesOf({ ...FOUND, shared: null }).shared, 0);
});

test("a node has its attempts in both runs, and how much longer one took", () => {
  const [check, charge, ship] = FOUND.nodes;
  assert.equal(sideWords(charge.a).words, "4 attempts");
  assert.equal(sideWords(ship.a).words, "not reached");
  assert.deepEqual([check, charge, ship].map(timeApart), ["", "−3.3 s", ""]);
});

test("a node that has not ended has no time to compare", () => {
  const running = side(0, { status: "running" });
  assert.deepEqual([sideTime(running), sideTime(side(2)), sideTime(null)], ["", "2.0 s", ""]);
  assert.equal(timeApart({ node: "charge", a: side(5.1), b: running, shared: false, differs: [] }), "");
});

test("a chosen node has the changes of its fields", () => {
  assert.equal(changesFor(FOUND, undefined).length, 2);
  assert.deepEqual(changesFor(FOUND, "charge"), [{ operation: "set", path: ["receipt", "id"], note: "", was: {}, now: {} }]);
  assert.equal(changesFor(FOUND, undefined)[0].note, "edited before B continued");
  assert.equal(changesFor(FOUND, "nowhere").length, 2);
});
