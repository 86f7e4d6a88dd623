// What the doctor found: problems, runs that wait for a person or another system, and faults of the store.

import { LOOKS } from "./statuses.js";
import { plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").Finding} Finding
 * @typedef {{ problems: Finding[], waits: Finding[], store: Finding[] }} Findings
 */

const WAITS = new Set(["question", "signal", "paused"]);

/**
 * Kind of a finding -> how it looks, where that is not the look of a status.
 * @type {Record<string, import("./statuses.js").Look>}
 */
const OWN = {
  question: { ...LOOKS.asks, word: "question" },
  signal: { ...LOOKS.waiting, word: "signal" },
  answered: { word: "answered", glyph: "pending", tone: "ask" },
  "flow changed": { word: "flow changed", glyph: "warning", tone: "fail" },
  "flow unknown": { word: "flow unknown", glyph: "warning", tone: "ask" },
  "queue full": { word: "queue full", glyph: "warning", tone: "ask" },
  "no worker": { word: "no worker", glyph: "pending", tone: "ask" },
  due: { word: "due", glyph: "waiting", tone: "ask" },
  quarantined: { word: "quarantined", glyph: "failed", tone: "fail" },
  store: { word: "store", glyph: "warning", tone: "fail" },
};

/**
 * @param {Finding[]} found
 * @returns {Findings}
 */
export function groupFindings(found) {
  return {
    problems: found.filter((one) => one.kind !== "store" && !WAITS.has(one.kind)),
    waits: found.filter((one) => WAITS.has(one.kind)),
    store: found.filter((one) => one.kind === "store"),
  };
}

/**
 * What was looked at in the store, and faults that were found elsewhere in it, such as a blob that is missing.
 * @param {import("../shapes.js").StoreCheck[]} checks
 * @param {Finding[]} found
 */
export const checksOf = (checks, found) => [
  ...checks,
  ...found
    .filter((one) => checks.every((check) => check.fault !== one.reason))
    .map((one) => ({ title: "Content", detail: "", fault: one.reason })),
];

/** @param {Finding} finding @returns {import("./statuses.js").Look} */
export const lookOfFinding = (finding) =>
  OWN[finding.kind] ?? LOOKS[finding.kind] ?? { word: finding.kind, glyph: "warning", tone: "ask" };

/**
 * The findings in one sentence.
 * @param {Findings} findings
 */
export function findingsInWords({ problems, waits, store }) {
  const runs = problems.length ? plural(problems.length, "problem") : "No problems";
  const wait = waits.length ? `, ${plural(waits.length, "run waits", "runs wait")} for an answer or a signal` : "";
  return `${runs}${wait}. ${store.length ? `The store has ${plural(store.length, "fault")}.` : "The store is well."}`;
}
