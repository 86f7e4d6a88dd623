// What is shown of a node, in the graph and in the table: its look, its time, and a few words about what it does.

import { lookOfNode } from "./statuses.js";
import { cutMiddle, duration, number, plural, span, timeOfDay } from "./words.js";

/**
 * @typedef {import("../shapes.js").NodeMark} NodeMark
 * @typedef {import("../shapes.js").NodeFacts} NodeFacts
 * @typedef {{ words: string, tone: import("./statuses.js").Tone }} Note
 *
 * @typedef {object} NodeView
 * @property {string} name
 * @property {import("./statuses.js").Look} look
 * @property {boolean} once  the node is not idempotent
 * @property {string} size  "×5" for a fan-out
 * @property {string} time
 * @property {Note[]} notes
 * @property {import("../shapes.js").ItemStatus[]} marks
 * @property {boolean} again  it would run again from the place that is shown
 *
 * @typedef {object} Around
 * @property {number} now
 * @property {boolean} [again]
 * @property {string[]} [chosen]  the targets that its branch chose
 * @property {boolean} [loops]  its branch may lead back
 * @property {number} [missing]  how many nodes it still waits for, if others of those that lead to it are done
 */

/** Statuses after which a node leads on. */
export const DONE = new Set(["completed", "skipped"]);

/**
 * @param {string} name
 * @param {NodeFacts | undefined} facts
 * @param {NodeMark | undefined} mark  undefined: not reached
 * @param {Around} around
 * @returns {NodeView}
 */
export function viewNode(name, facts, mark, around) {
  const look = lookOfNode(around.again ? undefined : mark);
  const items = mark?.items;
  return {
    name,
    look,
    once: facts?.idempotent === false,
    size: items ? `×${number(items.all)}` : facts?.each ? "×N" : "",
    time: around.again ? "" : timeOf(mark, around.now),
    notes: notesOf(facts, mark, look, around),
    marks: (!around.again && items?.marks) || [],
    again: Boolean(around.again),
  };
}

/** @param {NodeMark | undefined} mark @param {number} now */
function timeOf(mark, now) {
  if (!mark) return "";
  if (mark.status === "running" && !mark.crashed && mark.started_at) return duration(now - mark.started_at);
  return mark.seconds || DONE.has(mark.status) ? duration(mark.seconds ?? 0) : "";
}

/**
 * @param {NodeFacts | undefined} facts
 * @param {NodeMark | undefined} mark
 * @param {import("./statuses.js").Look} look
 * @param {Around} around
 * @returns {Note[]}
 */
function notesOf(facts, mark, look, { now, again, chosen = [], loops, missing = 0 }) {
  /** @type {(words: string) => Note[]} */
  const quiet = (words) => [{ words, tone: "rest" }];
  if (again) return quiet("runs again");
  if (!mark) return quiet(facts?.asks ? "asks first" : missing ? `waits for ${missing}` : "not reached");
  const tone = look.tone === "done" ? "rest" : look.tone;
  if (mark.items) return itemNotes(mark.items, mark, tone);
  const counts = countsOf(mark);
  if (DONE.has(mark.status)) {
    const [first] = chosen;
    if (first) return quiet(`${loops || mark.iteration > 1 ? `iteration ${mark.iteration} ` : ""}→ ${chosen.join(", ")}`);
    if (mark.status === "skipped") return quiet(["skipped", ...counts].join(" · "));
    return quiet(mark.iteration > 1 ? `${mark.iteration} iterations` : plural(Math.max(1, mark.tries ?? 1), "attempt"));
  }
  if (look.turns && counts.length) return [{ words: counts.join(" · "), tone }];
  return [{ words: [waitOf(mark, now) ?? look.word, ...counts].join(" · "), tone }];
}

/** The counts of a visit that are above 1. @param {NodeMark} mark */
const countsOf = ({ iteration, execution, attempt }) =>
  Object.entries({ iteration, execution, attempt }).flatMap(([word, count]) => (count > 1 ? [`${word} ${count}`] : []));

/** What a node waits for; null if it does not wait. @param {NodeMark} mark @param {number} now */
function waitOf({ waits_for: what, until }, now) {
  if (what === "question") return "waits for an answer";
  if (what === "signal") return "waits for a signal";
  if (what === "timer") return until ? `waits until ${timeOfDay(until)}` : "waits for a time";
  return what === "retry" ? (until && until > now ? `retry in ${span(until - now)}` : "retry is due") : null;
}

/**
 * @param {import("../shapes.js").ItemMarks} items
 * @param {NodeMark} mark
 * @param {import("./statuses.js").Tone} tone
 * @returns {Note[]}
 */
function itemNotes(items, mark, tone) {
  /** @type {Note[]} */
  const notes = [{ words: `${number(items.completed)} of ${number(items.all)}`, tone }];
  if (items.failed) notes.push({ words: `${number(items.failed)} failed`, tone: "fail" });
  if (items.running) notes.push({ words: `${number(items.running)} running`, tone: "accent" });
  if (items.waiting) notes.push({ words: `${number(items.waiting)} waiting`, tone: "rest" });
  if (notes.length === 1 && (mark.tries ?? 0) > 1) notes.push({ words: plural(mark.tries ?? 0, "attempt"), tone: "rest" });
  return notes;
}

/**
 * The members of a stack, counted by status, the most common first and what needs attention in its colour.
 * @param {import("./statuses.js").Look[]} looks
 * @returns {Note[]}
 */
export function countNotes(looks) {
  /** @type {Map<string, { count: number, tone: import("./statuses.js").Tone }>} */
  const counts = new Map();
  for (const { word, tone } of looks) {
    counts.set(word, { count: (counts.get(word)?.count ?? 0) + 1, tone: tone === "done" ? "rest" : tone });
  }
  const sorted = [...counts].sort(([, a], [, b]) => b.count - a.count);
  return sorted.map(([word, { count, tone }]) => ({ words: `${number(count)} ${word}`, tone }));
}

const [LETTER, DIGIT, ONCE] = [7.3, 6.6, 26];

/**
 * The name of a node as it fits beside its glyph, its time and its marks. Names are cut in the middle, because they often differ
 * only at their end.
 * @param {NodeView} view
 * @param {number} width  of the box
 */
export function fitName({ name, once, size, time }, width) {
  const taken = 44 + (time ? time.length * DIGIT + 6 : 0) + (once ? ONCE : 0) + (size ? (size.length + 1) * LETTER : 0);
  return cutMiddle(name, Math.max(5, Math.floor((width - taken) / LETTER)));
}

/**
 * Everything about a node in one sentence, for those who do not see the drawing.
 * @param {NodeView} view
 */
export function tellNode({ name, look, once, size, time, notes }) {
  const words = notes.map((note) => note.words).filter((note) => note !== look.word);
  return [size ? `${name} ${size}` : name, look.word, ...words, time, once && "not idempotent"].filter(Boolean).join(", ");
}
