// The timeline as a story, newest first, for screens that are too narrow for a drawing. What completed in a row is told in one
// entry, and idle time between two entries names its length.

import { LOOKS, lookOfAttempt } from "./statuses.js";
import { foldedGaps } from "./time_scale.js";
import {
  SLACK_S,
  actWords,
  busyTimes,
  countWords,
  failsRun,
  holderName,
  isItem,
  isOpenPiece,
  pauseWords,
  wholeTime,
} from "./timelines.js";
import { duration, number, span } from "./words.js";

/**
 * @typedef {import("../shapes.js").Timeline} Timeline
 * @typedef {import("../shapes.js").AttemptSpan} AttemptSpan
 * @typedef {import("../shapes.js").WaitSpan} WaitSpan
 *
 * @typedef {object} StoryEntry
 * @property {string} key
 * @property {number} at
 * @property {import("./statuses.js").Look} look
 * @property {{ text: string, code: boolean }[]} title
 * @property {string} detail
 * @property {string} [node]  what a tap chooses
 * @property {string} [gap]  the idle time before it, which is below it in the list
 */

/** How many nodes one entry names. */
const TOGETHER_MAX = 6;

/**
 * @param {Timeline} timeline
 * @param {number} now
 * @returns {StoryEntry[]}
 */
export function storyOf(timeline, now) {
  const told = [
    ...timeline.attempts.filter((bar) => !isItem(bar)).map((bar) => attemptEntry(bar, timeline)),
    ...timeline.items.map(bandEntry),
    ...timeline.waits.flatMap(waitEntry),
    ...timeline.acts.map(actEntry),
  ].sort((a, b) => a.at - b.at);
  const { from, to } = wholeTime(timeline, now);
  return together(told, foldedGaps(busyTimes(timeline, now), from, to)).reverse();
}

/** @param {string} text */
const code = (text) => ({ text, code: true });
/** @param {string} text */
const plain = (text) => ({ text, code: false });

/** @type {import("./statuses.js").Look} */
const PERSON = { word: "a person", glyph: "person", tone: "accent" };

/** @type {Record<string, string>} */
const ENDS = { running: "runs", waiting: "began to wait" };

/**
 * @param {AttemptSpan} bar
 * @param {Timeline} timeline
 * @returns {StoryEntry}
 */
function attemptEntry(bar, timeline) {
  const at = bar.ended_at ?? bar.started_at;
  const round = bar.iteration > 1 ? ` iteration ${bar.iteration}` : "";
  const which = round + (bar.attempt > 1 || bar.status === "failed" || bar.status === "crashed" ? ` attempt ${bar.attempt}` : "");
  const end = (ENDS[bar.status] ?? lookOfAttempt(bar).word) + (failsRun(bar) ? ", run failed" : "");
  const retry = bar.retry_at && bar.ended_at ? `, retried after ${pauseWords(bar.retry_at - bar.ended_at)}` : "";
  const spent = isOpenPiece(bar) ? "" : duration(at - bar.started_at);
  return {
    key: `attempt ${bar.seq}`,
    at,
    look: lookOfAttempt(bar),
    // That an attempt completed is what its glyph says.
    title: [code(bar.node), plain(bar.status === "completed" ? which : `${which} ${end}`)].filter((part) => part.text),
    detail: bar.status === "crashed" ? crashWords(bar, timeline) : bar.error ? bar.error + retry : spent,
    node: bar.node,
  };
}

/** Who died, and who continued: "w-2a9 was killed; w-7c1 took over". @param {AttemptSpan} bar @param {Timeline} timeline */
function crashWords(bar, { holders }) {
  const number = holders.findIndex((one) => one.end === "died" && (one.ended_at ?? 0) >= (bar.ended_at ?? 0) - SLACK_S);
  if (number < 0) return "its process died";
  const after = holders[number + 1];
  return `${holderName(holders[number])} was killed${after ? `; ${holderName(after)} took over` : ""}`;
}

/** @param {import("../shapes.js").ItemSpan} band @returns {StoryEntry} */
const bandEntry = (band) => ({
  key: `items ${band.seq}`,
  at: band.ended_at ?? band.started_at,
  look: LOOKS[isOpenPiece(band) ? "running" : band.counts.failed ? "failed" : "completed"],
  title: [code(band.node), plain(` ×${number(band.items)}`)],
  detail: countWords(band),
  node: band.node,
});

/** @param {WaitSpan} wait @returns {StoryEntry[]} */
function waitEntry(wait) {
  const { seq, kind, node, reason, started_at } = wait;
  const isOpen = isOpenPiece(wait);
  // The attempt that failed or crashed says so.
  if (kind === "retry" || (kind === "holder" && !isOpen)) return [];
  const entry = { key: `wait ${seq} ${kind}`, at: started_at, node: node ?? undefined };
  if (kind === "holder") return [{ ...entry, look: LOOKS.crashed, title: [plain("No process holds the run")], detail: "" }];
  const asks = kind === "question";
  const title = [code(node ?? "run"), plain(` ${asks ? "ask" : "wait"}${isOpen ? "s" : "ed"}`)];
  return [{ ...entry, look: LOOKS[asks ? "asks" : "waiting"], title, detail: asks ? reason : `for ${reason}` }];
}

/** @param {import("../shapes.js").Act} act @returns {StoryEntry} */
const actEntry = (act) => ({
  key: `act ${act.seq}`,
  at: act.at,
  look: PERSON,
  title: [plain(actWords(act))],
  detail: act.reason ? `“${act.reason}”` : "",
  node: act.node ?? undefined,
});

/**
 * Tell in one entry what completed in a row: "reserve, fraud_check". Idle time parts entries, and is named by the later one.
 * @param {StoryEntry[]} entries  oldest first
 * @param {import("./time_scale.js").Span[]} gaps
 * @returns {StoryEntry[]}
 */
function together(entries, gaps) {
  /** @type {StoryEntry[]} */
  const told = [];
  for (const entry of entries) {
    const last = told[told.length - 1];
    const gap = last && gaps.find((one) => last.at <= one.start + SLACK_S && entry.at >= one.end - SLACK_S);
    const names = last?.title.filter((part) => part.code).length ?? 0;
    if (!gap && isRoutine(entry) && last && isRoutine(last) && names < TOGETHER_MAX) {
      last.title = [...last.title, plain(", "), ...entry.title];
      last.detail = `${last.detail}, ${entry.detail}`;
      [last.at, last.node] = [entry.at, entry.node];
    } else told.push(gap ? { ...entry, gap: span(gap.end - gap.start) } : { ...entry });
  }
  return told;
}

/** @param {StoryEntry} entry */
const isRoutine = (entry) => entry.look === LOOKS.completed && entry.key.startsWith("attempt");
