import assert from "node:assert/strict";
import { test } from "node:test";

import { bodyOf, editOf, nameOfFork, previewRows, whatChanged, whyOff } from "../../src/holdfast/server/page/pure/previews.js";

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
  uncleaned: [],
  cancels: [],
  leaves: [],
  missed: [],
  closes: [],
  family: [],
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
    rows.map((row) => [row.words, row.items.length]),
    [
      ["Run again", 2],
      ["Kept", 1],
      ["Questions close", 1],
    ],
  );
});

test("a visit that will not clean up is named with its iteration", () => {
  const [row] = previewRows(preview({ verb: "cancel", uncleaned: [{ node: "book", iteration: 2, why: "unwound" }] }));
  assert.deepEqual([row.words, row.items], ["Not cleaned up", [{ node: "book", words: "book 2", once: false }]]);
});

test("child runs that are cancelled or left alone, and what a fork would not have, are named", () => {
  const left = [{ node: "book", iteration: 1, why: "unwound" }];
  const rows = previewRows(
    preview({
      verb: "cancel",
      cancels: [
        { run_id: "r.a", flow: "pay", uncleaned: left },
        { run_id: "r.b", flow: "pay", uncleaned: [] },
      ],
      leaves: ["r.c"],
      missed: [{ what: "signal", name: "paid" }],
    }),
  );
  assert.deepEqual(
    rows.map((row) => [row.words, row.items.map((item) => item.words)]),
    [
      ["Child runs cancelled", ["r.a; not cleaned up: book", "r.b"]],
      ["Child runs left alone", ["r.c"]],
      ["Not in the fork", ["signal paid"]],
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

test("an edited state is sent as the fields that changed, under the name that the verb has for it", () => {
  const before = { card: "old", lines: [1, 2], note: null };
  assert.deepEqual(editOf(before, JSON.stringify(before)), { edit: null });
  const read = editOf(before, '{"note": null, "card": "new", "lines": [1, 2], "more": {"a": 1}}');
  assert.deepEqual(read, { edit: { card: "new", more: { a: 1 } } });
  const decision = { ...undecided, edit: read.edit };
  assert.deepEqual(bodyOf({ verb: "fork" }, { checkpoint: 4 }, decision), { checkpoint: 4, edit: read.edit });
  assert.deepEqual(bodyOf({ verb: "skip" }, { node: "pay" }, decision), { node: "pay", update: read.edit });
  assert.deepEqual(bodyOf({ verb: "cancel" }, {}, decision), {});
});

test("a mistake in an edited state is named by its path, and turns the button off", () => {
  assert.match(editOf({}, '{"a": }').faults[0].message, /^Not valid JSON/);
  assert.deepEqual(editOf({}, "[1]").faults, [{ path: [], message: "Must be an object" }]);
  assert.deepEqual(
    editOf({ a: 1, b: 2 }, '{"b": 3}').faults.map((fault) => fault.path),
    [["a"]],
  );
  assert.deepEqual(editOf({}, ""), { edit: null });
  assert.equal(whyOff(preview(), { ...undecided, faulty: true }), "The JSON is not valid");
});

test("a stale preview names what changed", () => {
  const before = preview({ rerun: [node("check"), node("write")] });
  assert.equal(whatChanged(before, preview({ rerun: [node("write")], kept: [node("check")] })), "check is now in “Kept”.");
  const asked = preview({ rerun: [node("check")], closes: [{ text: "Ship it?" }] });
  assert.equal(whatChanged(before, asked), "“Ship it?” is now in “Questions close”, write is no longer in “Run again”.");
  assert.equal(whatChanged(preview(), preview({ refused: "the run is over" })), "");
  assert.equal(whatChanged(before, before), "");
});

test("a node has its iterations beside it where there are several, and whether it is not idempotent", () => {
  const rerun = [node("a"), node("a", { first: 2, last: 2 }), node("a", { last: 3, idempotent: false })];
  const [{ items }] = previewRows(preview({ rerun }));
  assert.deepEqual(
    items.map(({ words, once }) => [words, once]),
    [
      ["a", false],
      ["a 2", false],
      ["a 1–3", true],
    ],
  );
});

test("a fork is named after its parent, with a number that no other fork has", () => {
  assert.equal(nameOfFork("import", []), "import-fork-1");
  assert.equal(nameOfFork("import", ["import-fork-1", "http-1", "import-fork-3"]), "import-fork-2");
  assert.equal(nameOfFork("import-fork-1", []), "import-fork-2");
  assert.deepEqual(bodyOf({ verb: "fork" }, {}, { reason: "", name: "mine", ticked: new Set(), repeat: {}, edit: null }), {
    run_id: "mine",
  });
  assert.deepEqual(bodyOf({ verb: "resume" }, {}, { reason: "", name: "mine", ticked: new Set(), repeat: {}, edit: null }), {});
});
