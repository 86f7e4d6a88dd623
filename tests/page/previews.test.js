import assert from "node:assert/strict";
import { test } from "node:test";

import { bodyOf, nodeWords, previewRows, whatChanged, whyOff } from "../../src/holdfast/server/page/pure/previews.js";

const node = (name, more = {}) => ({ node: name, first: 1, last: 1, status: "completed", at: 1, idempotent: true, ...more });
const preview = (more = {}) => ({
  run_id: "r",
  verb: "resume",
  at: null,
  kept: [],
  rerun: [],
  confirm: [],
  asks: [],
  skips: [],
  stops: [],
  closes: [],
  refused: null,
  error: null,
  remedies: [],
  unknown: [],
  command: null,
  digest: "d",
  ...more,
});
const undecided = { reason: "", ticked: new Set(), repeat: {} };

test("empty rows are left out", () => {
  const rows = previewRows(preview({ rerun: [node("a"), node("b")], kept: [node("c")], closes: [{ text: "Ship it?" }] }));
  assert.deepEqual(
    rows.map((row) => [row.words, row.count]),
    [
      ["Run again", 2],
      ["Kept", 1],
      ["Questions close", 1],
    ],
  );
});

test("the button is off until each node that is not idempotent is ticked, and says why", () => {
  const shown = preview({ confirm: [node("ship"), node("mail")], refused: "ship is not idempotent" });
  assert.equal(whyOff(shown, undecided), "Needs 2 ticks above");
  assert.equal(whyOff(shown, { ...undecided, ticked: new Set(["ship"]) }), "Needs the tick above");
  assert.equal(whyOff(shown, { ...undecided, ticked: new Set(["ship", "mail"]) }), "");
  assert.equal(whyOff(preview({ refused: "the run is over" }), undecided), "It would be refused");
  assert.equal(whyOff(preview({ verb: "fork", confirm: [node("ship")] }), undecided), "");
});

test("what was decided is sent, and nothing else", () => {
  assert.deepEqual(bodyOf(preview(), { checkpoint: 4 }, undecided), { checkpoint: 4 });
  const ticked = { reason: "card updated", ticked: new Set(["ship"]), repeat: { ship: "run" } };
  assert.deepEqual(bodyOf(preview(), {}, ticked), { reason: "card updated", confirm: ["ship"] });
  assert.deepEqual(bodyOf(preview({ verb: "fork" }), {}, ticked), { reason: "card updated", repeat: { ship: "run" } });
});

test("a stale preview names what changed", () => {
  const before = preview({ rerun: [node("check"), node("write")] });
  assert.equal(whatChanged(before, preview({ rerun: [node("write")], kept: [node("check")] })), "check is kept now.");
  assert.equal(whatChanged(before, preview({ refused: "the run is over" })), "the run is over.");
  assert.equal(whatChanged(before, before), "");
});

test("a node has its iterations beside it where there are several", () => {
  assert.deepEqual(
    [nodeWords(node("a")), nodeWords(node("a", { first: 2, last: 2 })), nodeWords(node("a", { last: 3 }))],
    ["a", "a 2", "a 1–3"],
  );
});
