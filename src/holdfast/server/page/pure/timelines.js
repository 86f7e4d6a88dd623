// What a timeline consists of: which pieces are in which row, what they are called, and when its time begins and ends. Where they
// are drawn is decided in timeline_shapes.js.

import { timeOf } from "./node_views.js";
import { lookOfNode } from "./statuses.js";
import { answerWords, number, span } from "./words.js";

/**
 * @typedef {import("../shapes.js").Timeline} Timeline
 * @typedef {import("../shapes.js").AttemptSpan} AttemptSpan
 * @typedef {import("../shapes.js").WaitSpan} WaitSpan
 * @typedef {import("../shapes.js").ItemSpan} ItemSpan
 *
 * @typedef {object} TimelineNode  a node of the flow; without `mark`, the run has not reached it
 * @property {string} name
 * @property {import("../shapes.js").NodeMark} [mark]
 * @property {boolean} [once]  it is not idempotent
 *
 * @typedef {object} TimelineRow
 * @property {string} name
 * @property {boolean} once
 * @property {import("./statuses.js").Look} look
 * @property {string} count  "×5" for a fan-out
 * @property {string} time  how long it has run, as in the graph
 * @property {number} first  when it first started
 * @property {AttemptSpan[]} bars
 * @property {AttemptSpan[]} lanes  attempts of items
 * @property {ItemSpan[]} bands
 * @property {WaitSpan[]} waits
 */

const LISTS = /** @type {const} */ (["holders", "attempts", "items", "waits", "acts"]);
/** Times of one event may differ by this, as they are read. */
export const SLACK_S = 0.001;

/**
 * A timeline with its next page.
 * @param {Timeline} known
 * @param {Timeline} page
 * @returns {Timeline}
 */
export function joinTimelines(known, page) {
  const joined = { ...page, beginning: known.beginning, forks: known.forks };
  for (const list of LISTS) joined[list] = /** @type {any[]} */ ([...known[list], ...page[list]]);
  return joined;
}

/**
 * When the timeline begins and ends: with the present while something is open, else with the last event.
 * @param {Timeline} timeline
 * @param {number} now
 */
export function wholeTime({ holders, attempts, items, waits, started_at, ended_at }, now) {
  /** @type {{ started_at: number, ended_at?: number | null, current?: boolean }[]} */
  const pieces = [...holders, ...attempts, ...items, ...waits];
  const isOpen = pieces.some((one) => isOpenPiece(one) && one.current !== false);
  // A fork also has what its origin did before.
  const from = pieces.reduce((first, one) => Math.min(first, one.started_at), started_at);
  return { from, to: isOpen ? Math.max(now, ended_at) : ended_at, isOpen };
}

/** @param {{ ended_at?: number | null }} piece */
export const isOpenPiece = (piece) => (piece.ended_at ?? null) === null;

/**
 * When something ran, for folding idle time. Items of a large fan-out run within the attempts of its node.
 * @param {Timeline} timeline
 * @param {number} now
 */
export const busyTimes = ({ attempts }, now) => attempts.map((one) => ({ start: one.started_at, end: one.ended_at ?? now }));

/**
 * The rows in the order in which they first started; nodes that the run has not reached follow in the order of the flow.
 * @param {Timeline} timeline
 * @param {TimelineNode[]} nodes
 * @param {number} now  at which the nodes are shown
 * @returns {TimelineRow[]}
 */
export function timelineRows({ attempts, items, waits }, nodes, now) {
  /** @type {Map<string, TimelineRow>} */
  const rows = new Map();
  /** @param {TimelineNode} node */
  const add = ({ name, mark, once = false }) => {
    const [look, time] = [lookOfNode(mark), timeOf(mark, now)];
    const row = { name, once, look, count: "", time, first: Number.MAX_VALUE, bars: [], lanes: [], bands: [], waits: [] };
    rows.set(name, row);
    return row;
  };
  nodes.forEach(add);
  /** @param {{ node?: string | null, started_at: number }} piece */
  const rowOf = (piece) => {
    const row = rows.get(piece.node ?? "") ?? add({ name: piece.node ?? "" });
    row.first = Math.min(row.first, piece.started_at);
    return row;
  };
  for (const bar of attempts) (isItem(bar) ? rowOf(bar).lanes : rowOf(bar).bars).push(bar);
  for (const band of items) rowOf(band).bands.push(band);
  for (const wait of waits) if (wait.node) rowOf(wait).waits.push(wait);
  const gaps = waits.filter((wait) => !wait.node);
  for (const row of rows.values()) {
    row.waits.push(...gaps.filter((gap) => row.bars.some((bar) => isEndedBy(bar, gap))));
    // The attempt of a fan-out is the time of its items, which show more.
    if (row.lanes.length || row.bands.length) row.bars = [];
    const items = Math.max(new Set(row.lanes.map((bar) => bar.item)).size, ...row.bands.map((band) => band.items));
    if (items) row.count = `×${number(items)}`;
  }
  return [...rows.values()].sort((a, b) => a.first - b.first);
}

/** @param {AttemptSpan} bar */
export const isItem = (bar) => (bar.item ?? null) !== null;

/** The run had no holder because the process of this attempt died. @param {AttemptSpan} bar @param {WaitSpan} gap */
export const isEndedBy = (bar, gap) => bar.status === "crashed" && Math.abs((bar.ended_at ?? 0) - gap.started_at) < SLACK_S;

/**
 * The times without a holder that belong to no attempt that crashed.
 * @param {Timeline} timeline
 */
export const holderGaps = ({ waits, attempts }) =>
  waits.filter((wait) => !wait.node && !attempts.some((bar) => isEndedBy(bar, wait)));

/**
 * What to write into a bar, longest first. A bar is numbered only where there are several.
 * @param {AttemptSpan} bar
 * @param {AttemptSpan[]} bars  all of its row
 * @returns {string[]}
 */
export function barWords(bar, bars) {
  const visit = visitName(bar);
  if (bars.every((one) => visitName(one) === visit))
    return bars.some((one) => one.attempt !== bar.attempt) ? [String(bar.attempt)] : [];
  const short = bars.every((one) => one.execution === 1) ? String(bar.iteration) : visit;
  return bar.attempt === 1 ? [short] : [`${short} · attempt ${bar.attempt}`, short];
}

/** @param {AttemptSpan} bar */
const visitName = (bar) => `${bar.iteration}.${bar.execution}`;

/** The attempt as the address names it: "1.1.2". @param {AttemptSpan} bar */
export const visitOf = (bar) => `${visitName(bar)}.${bar.attempt}`;

/** The attempt after which the run failed: it was not retried, and no edge took its failure. @param {AttemptSpan} bar */
export const failsRun = (bar) => bar.status === "failed" && !bar.retry_at && !bar.handled && !isItem(bar);

/** What a verb is called afterwards, if that is not the verb with "ed". @type {Record<string, string>} */
const DEEDS = {
  start: "started the run",
  rewind: "went back to",
  cancel: "cancelled",
  retry: "retried",
  skip: "skipped",
  signal: "sent",
  refused: "was refused:",
};

/** Who did what: "ada resumed", "bo answered “approve” to publish.1.1". @param {import("../shapes.js").Act} act */
export const actWords = ({ by, verb, about, node, answer }) => {
  const said = verb === "answer" && answer !== undefined ? `${answerWords(answer)} to ` : "";
  return `${by || "somebody"} ${DEEDS[verb] ?? verb.replace(/e?$/, "ed")} ${said}${about ?? node ?? ""}`.trimEnd();
};

/** A holder by name. The log does not always name the process that created the run. @param {{ holder: string | null }} span */
export const holderName = ({ holder }) => holder?.replace(/^process (\d+) on .*/, "pid $1") ?? "starting process";

/** "5 s", "2.5 s", "3 min". @param {number} seconds */
export const pauseWords = (seconds) => (seconds < 10 ? `${Number(seconds.toFixed(1))} s` : span(seconds));

/** @param {WaitSpan} wait */
export const waitWords = ({ kind, reason, until, started_at }) =>
  kind === "retry" && until ? `retry in ${pauseWords(until - started_at)}` : reason;

/** "815 completed, 10 failed". @param {ItemSpan} band */
export const countWords = (band) =>
  Object.entries(band.counts)
    .map(([status, count]) => `${number(count)} ${status}`)
    .join(", ");
