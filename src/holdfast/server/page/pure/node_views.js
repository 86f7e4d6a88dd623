// What is shown of a node, in the graph and in the table: its look, its time, and a few words about what it does.

import { groupBy } from "./groups.js";
import { lookOfNode } from "./statuses.js";
import { cutMiddle, duration, number, plural, span, timeOfDay } from "./words.js";

/**
 * @typedef {import("../shapes.js").NodeMark} NodeMark
 * @typedef {import("../shapes.js").NodeFacts} NodeFacts
 * @typedef {import("./statuses.js").Tone} Tone
 * @typedef {{ words: string, tone: Tone }} Note
 *
 * @typedef {object} NodeView
 * @property {string} name
 * @property {import("./statuses.js").Look} look
 * @property {boolean} once  the node is not idempotent
 * @property {string} size  " ×5" for a fan-out
 * @property {string} time
 * @property {Note[]} notes
 * @property {string[]} marks  the statuses of its items
 * @property {boolean} ahead  the run has not reached it
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
  const again = Boolean(around.again);
  const latest = again ? undefined : mark;
  const look = lookOfNode(latest);
  return {
    name,
    look,
    once: facts?.idempotent === false,
    size: mark?.items ? ` ×${number(mark.items.all)}` : facts?.each ? " ×N" : "",
    time: timeOf(latest, around.now),
    notes: again ? [{ words: "runs again", tone: "rest" }] : notesOf(facts, mark, look, around),
    marks: latest?.items?.marks.map((one) => statusOfItem(one, mark)) ?? [],
    ahead: !mark,
    again,
  };
}

/** How long this attempt has run, or if none runs, all of them. @param {NodeMark | undefined} mark @param {number} now */
export function timeOf(mark, now) {
  if (mark?.status === "running" && !mark.crashed && mark.started_at) return duration(now - mark.started_at);
  return mark?.attempt && (mark.seconds || DONE.has(mark.status)) ? duration(mark.seconds ?? 0) : "";
}

/**
 * @param {NodeFacts | undefined} facts
 * @param {NodeMark | undefined} mark
 * @param {import("./statuses.js").Look} look
 * @param {Around} around
 * @returns {Note[]}
 */
function notesOf(facts, mark, look, around) {
  /** @type {Tone} */
  const tone = look.tone === "done" ? "rest" : look.tone;
  if (mark?.items) return itemNotes(mark.items, mark, tone);
  const ahead = facts?.asks ? "asks first" : around.missing ? `waits for ${plural(around.missing, "node")}` : look.word;
  return [{ words: mark ? wordsOf(mark, look, around) : ahead, tone }];
}

/** @param {NodeMark} mark @param {import("./statuses.js").Look} look @param {Around} around */
function wordsOf(mark, look, { now, chosen, loops }) {
  const { status, iteration, execution, attempt, tries } = mark;
  const counts = Object.entries({ iteration, execution, attempt })
    .filter(([, count]) => count > 1)
    .map((count) => count.join(" "));
  const end = mark.handled_by ? "failed " : status === "skipped" ? "skipped " : "";
  if (chosen?.length && DONE.has(status))
    return `${loops || iteration > 1 ? `iteration ${iteration} ` : end}→ ${chosen.join(", ")}`;
  if (status === "completed") return iteration > 1 ? `${iteration} iterations` : plural(tries || 1, "attempt");
  return [
    ...(look.turns && counts.length ? [] : [waitOf(mark, now) ?? (mark.misrouted ? "routing failed" : look.word)]),
    ...counts,
  ].join(" · ");
}

/** What a node waits for; null if it does not wait. @param {NodeMark} mark @param {number} now */
function waitOf({ waits_for: what, until }, now) {
  if (what === "question") return "waits for an answer";
  if (what === "signal" || what === "child") return `waits for a ${what}`;
  if (what === "timer") return until ? `waits until ${timeOfDay(until)}` : "waits for a time";
  return what === "retry" ? (until && until > now ? `retry in ${span(until - now)}` : "retry is due") : null;
}

/**
 * What is said of an item of a fan-out, after its label if it has one.
 * @param {string} label @param {string} words @returns {string}
 */
export const textOfItem = (label, words) => (label ? `${label} · ${words}` : words);

/** The items that ran when their process died have crashed. @param {string} status @param {NodeMark | undefined} mark */
export const statusOfItem = (status, mark) => (mark?.crashed && status === "running" ? "crashed" : status);

/**
 * Failures first: there is room for two or three counts.
 * @param {import("../shapes.js").ItemMarks} items
 * @param {NodeMark} mark
 * @param {Tone} tone
 */
function itemNotes({ all, completed, failed, running, waiting }, mark, tone) {
  const { tries = 0 } = mark;
  /** @type {(Note | false)[]} */
  const notes = [
    failed > 0 && { words: `${number(failed)} failed`, tone: "fail" },
    { words: `${number(completed)} of ${number(all)}`, tone: tone === "fail" ? "rest" : tone },
    running > 0 && { words: `${number(running)} ${statusOfItem("running", mark)}`, tone: mark.crashed ? "ask" : "accent" },
    waiting > 0 && { words: `${number(waiting)} waiting`, tone: "rest" },
    completed === all && tries > 1 && { words: plural(tries, "attempt"), tone: "rest" },
  ];
  return notes.filter((note) => note !== false);
}

/**
 * The members of a stack, counted by status, the most common first and what needs attention in its colour.
 * @param {import("./statuses.js").Look[]} looks
 * @returns {Note[]}
 */
export function countNotes(looks) {
  return [...groupBy(looks, (look) => look.word).values()]
    .sort((a, b) => b.length - a.length)
    .map((same) => ({ words: `${number(same.length)} ${same[0].word}`, tone: same[0].tone === "done" ? "rest" : same[0].tone }));
}

const [LETTER, DIGIT, ONCE] = [7.3, 6.2, 24];

/**
 * The name of a node as it fits beside its glyph, its time and its marks. Names are cut in the middle, because they often differ
 * only at their end.
 * @param {NodeView} view
 * @param {number} width  of the box
 */
export function fitName({ name, once, size, time }, width) {
  const room = width - 40 - (time ? time.length * DIGIT + 4 : 0) - (once ? ONCE : 0);
  return cutMiddle(name, Math.max(5, Math.floor(room / LETTER) - size.length)) + size;
}
