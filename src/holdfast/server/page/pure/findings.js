// What the doctor found: problems, runs that wait for a person or another system, and faults of the store.

import { LOOKS } from "./statuses.js";
import { plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").Finding} Finding
 * @typedef {import("./glyphs.js").GlyphName} GlyphName
 * @typedef {import("./statuses.js").Tone} Tone
 * @typedef {{ problems: Finding[], waits: Finding[], store: Finding[] }} Findings
 */

const WAITS = new Set(["question", "signal", "child", "paused", "queue stopped"]);

/** Kind of a finding -> glyph and tone, where these are not those of a status. @type {Record<string, [GlyphName, Tone]>} */
const OWN = {
  question: ["asks", "ask"],
  signal: ["waiting", "rest"],
  "queue stopped": ["interrupted", "ask"],
  answered: ["pending", "ask"],
  "flow changed": ["warning", "fail"],
  refused: ["warning", "fail"],
  "no worker": ["pending", "ask"],
  due: ["waiting", "ask"],
  quarantined: ["failed", "fail"],
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
export function lookOfFinding({ kind }) {
  const [glyph, tone] = OWN[kind] ?? ["warning", "ask"];
  return (!OWN[kind] && LOOKS[kind]) || { word: kind, glyph, tone };
}

/**
 * The findings in one sentence.
 * @param {Findings} findings
 */
export function findingsInWords({ problems, waits, store }) {
  const runs = problems.length ? plural(problems.length, "problem") : "No problems";
  const wait = waits.length ? `, ${plural(waits.length, "run waits", "runs wait")} for a person or a program` : "";
  return `${runs}${wait}. ${store.length ? `The store has ${plural(store.length, "fault")}.` : "The store is in order."}`;
}
