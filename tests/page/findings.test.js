import assert from "node:assert/strict";
import { test } from "node:test";

import { checksOf, findingsInWords, groupFindings, lookOfFinding } from "../../src/holdfast/server/page/pure/findings.js";
import { GLYPHS } from "../../src/holdfast/server/page/pure/glyphs.js";

const KINDS = [
  "unreadable",
  "quarantined",
  "failed",
  "crashed",
  "answered",
  "flow changed",
  "flow unknown",
  "queue full",
  "due",
  "no worker",
  "interrupted",
  "paused",
  "question",
  "signal",
  "not started",
  "retry",
  "store",
];

test("every kind of finding has a glyph and a word", () => {
  for (const kind of KINDS) assert.ok(GLYPHS[lookOfFinding({ kind }).glyph] && lookOfFinding({ kind }).word, kind);
});

test("problems, waits and the store come apart, and are summed up", () => {
  const groups = groupFindings(KINDS.map((kind) => ({ kind, reason: "" })));
  assert.deepEqual([groups.problems.length, groups.waits.length, groups.store.length], [13, 3, 1]);
  assert.equal(findingsInWords(groups), "13 problems, 3 runs wait for a person or a program. The store has 1 fault.");
  assert.equal(findingsInWords(groupFindings([])), "No problems. The store is in order.");
});

test("what was looked at in the store is listed once, also where something is wrong", () => {
  const checks = [
    { title: "Clocks", detail: "0.1 s apart", fault: null },
    { title: "Space", detail: "1 MB free", fault: "only 1 MB are free" },
  ];
  const found = [
    { kind: "store", reason: "only 1 MB are free" },
    { kind: "store", reason: "event 5 of run a: a blob is missing" },
  ];
  const titles = checksOf(checks, found).map((check) => `${check.title}: ${check.fault ?? check.detail}`);
  assert.deepEqual(titles, ["Clocks: 0.1 s apart", "Space: only 1 MB are free", "Content: event 5 of run a: a blob is missing"]);
});
