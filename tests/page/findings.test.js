import assert from "node:assert/strict";
import { test } from "node:test";

import { findingsInWords, groupFindings, lookOfFinding } from "../../src/holdfast/server/page/pure/findings.js";
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
  assert.equal(findingsInWords(groups), "13 problems, 3 runs wait for an answer or a signal. The store has 1 fault.");
  assert.equal(findingsInWords(groupFindings([])), "No problems. The store is well.");
});
