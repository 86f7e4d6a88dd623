import assert from "node:assert/strict";
import { test } from "node:test";

import { budgetFacts } from "../../src/holdfast/server/page/pure/budgets.js";
import { eventWords } from "../../src/holdfast/server/page/pure/event_words.js";
import { damagedSeqs, verifiedWords } from "../../src/holdfast/server/page/pure/ledgers.js";
import { applyEvent } from "../../src/holdfast/server/page/pure/node_states.js";
import { checkLines, edgeLines, policyLines } from "../../src/holdfast/server/page/pure/reasons.js";
import { whyItRan } from "../../src/holdfast/server/page/pure/visit_words.js";

const edge = (more) => ({ source: "charge", passage: "taken", guard: "", verdict: null, reads: {}, seq: null, why: "", ...more });
const REASONS = { edges: [], skipped: "", policies: [], verifications: [] };
const told = (lines) => lines.map((one) => [one.tone, one.text + (one.rest ?? "")]);

test("each edge to a node says whether it was taken, with the guard and what it read", () => {
  const edges = [
    edge({ source: "START" }),
    edge({ guard: "context.ok", verdict: true, reads: { "context.ok": true }, seq: 6 }),
    edge({ passage: "not taken", guard: "context.ok", verdict: false, reads: {} }),
    edge({ passage: "not taken", why: "which did not fail" }),
    edge({ passage: "undecided", guard: "now > 1.0" }),
  ];
  assert.deepEqual(told(edgeLines({ ...REASONS, edges })), [
    ["done", "charge led here: context.ok is true (context.ok = true)"],
    ["rest", "charge did not lead here: context.ok is false"],
    ["rest", "charge did not lead here, which did not fail"],
    ["rest", "charge has not ended; it must be that now > 1.0"],
  ]);
});

test("a value that a rule has read is cut", () => {
  const [line] = edgeLines({ ...REASONS, edges: [edge({ guard: "a", verdict: true, reads: { a: "x".repeat(500) } })] });
  assert.ok(line.rest.length < 120);
});

test("policies say what they decided, and why", () => {
  const policies = [
    {
      seq: 2,
      stage: "pre",
      verdict: "allow",
      decisions: [{ policy: "small", verdict: "allow", reads: { "input.cents": 1 } }],
      fault: "",
    },
    { seq: 9, stage: "post", verdict: "ask", decisions: [{ policy: "seen", verdict: "ask", reason: "Is it seen?" }], fault: "" },
    {
      seq: 11,
      stage: "pre",
      verdict: "deny",
      decisions: [{ policy: "night", verdict: "deny" }],
      fault: "PolicyError: it raised",
    },
  ];
  assert.deepEqual(told(policyLines({ ...REASONS, policies })), [
    ["done", "small allows it (input.cents = 1)"],
    ["ask", "seen asks about its result: Is it seen?"],
    ["fail", "night denies it"],
    ["fail", "The policies could not decide, which denies it: PolicyError: it raised"],
  ]);
});

test("a verification says which rule did not pass", () => {
  const verifications = [
    {
      seq: 5,
      ok: false,
      checks: [
        { id: "amount", ok: false, reason: "another amount" },
        { id: "id", ok: true },
      ],
    },
  ];
  assert.deepEqual(told(checkLines({ ...REASONS, verifications })), [
    ["fail", "amount did not pass: another amount"],
    ["done", "id passed"],
  ]);
});

test("a visit of a plan says by which edges it was reached, and a root that the run began there", () => {
  const visit = { node: "ship", causes: [{ node: "START", seq: 1, why: "edge" }], attempts: [], reasons: REASONS };
  assert.deepEqual(told(whyItRan(visit, null)), [["rest", "The run began here"]]);
  assert.deepEqual(told(whyItRan({ ...visit, reasons: { ...REASONS, edges: [edge({})] } }, null)), [["done", "charge led here"]]);
});

test("a budget has a meter for each of its limits, in the colour of how much is left", () => {
  const run = { cost: { usd: 1, tokens: 90 }, children_cost: { usd: 0.5, tokens: 0 }, active_s: 12 };
  assert.deepEqual(budgetFacts(run), []);
  assert.deepEqual(budgetFacts({ ...run, budget: { usd: 10, tokens: 100, active_s: 12 } }), [
    { name: "Budget", value: "$1.50 of $10.00", meter: { part: 0.15, tone: "accent" } },
    { name: "Token budget", value: "90 of 100", meter: { part: 0.9, tone: "ask" } },
    { name: "Time budget", value: "12.0 s of 12.0 s", meter: { part: 1, tone: "fail" } },
  ]);
});

test("a ledger says whether it is what was written, and which events are not", () => {
  assert.equal(verifiedWords(true, []), "Verified: the log is exactly what was written");
  assert.equal(verifiedWords(false, ["event 4 was altered"]), "Not what was written: event 4 was altered");
  assert.deepEqual([...damagedSeqs({ damage: [{ seq: 4 }, { seq: 9 }] })], [4, 9]);
});

test("guards, policies and verifications change no node, and a skip of several is read again", () => {
  const states = { seq: 1, nodes: {}, stale: false };
  for (const kind of ["GuardEvaluated", "PolicyDecided", "OutputVerified", "NodeReturned"])
    assert.deepEqual(applyEvent(states, { seq: 2, kind, node: "charge" }), { ...states, seq: 2 });
  assert.equal(applyEvent(states, { seq: 2, kind: "NodesSkipped" }).stale, true);
});

test("the log says what a guard decided, and which nodes were skipped", () => {
  assert.equal(eventWords({ body: { verdicts: { ship: true, pickup: false } } }, 0), "to ship, not to pickup");
  assert.equal(eventWords({ body: { nodes: ["pickup", "tell"] } }, 0), "pickup, tell");
  assert.equal(eventWords({ body: { stage: "post", verdict: "ask" } }, 0), "post · ask");
});
