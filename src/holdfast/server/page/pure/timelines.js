// What a timeline consists of: which pieces are in which row, what they are called, and when its time begins and ends. Where they
// are drawn is decided in timeline_shapes.js.

import { lookOfNode } from "./statuses.js";
import { duration, instant, number, plural, span } from "./words.js";

/**
 * @typedef {import("../shapes.js").Timeline} Timeline
 * @typedef {import("../shapes.js").AttemptSpan} AttemptSpan
 * @typedef {import("../shapes.js").WaitSpan} WaitSpan
 * @typedef {import("../shapes.js").ItemSpan} ItemSpan
 * @typedef {import("../shapes.js").HolderSpan} HolderSpan
 * @typedef {import("../shapes.js").Act} Act
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
 * @property {string} time  how long its attempts took
 * @property {AttemptSpan[]} bars
 * @property {AttemptSpan[]} lanes  attempts of items
 * @property {ItemSpan[]} bands
 * @property {WaitSpan[]} waits
 */

/**
 * A timeline with a further part. With `from`, the part has everything that overlaps the time from there on, so that a long run
 * can be brought up to date by reading its end; without, it is the next page.
 * @param {Timeline} known
 * @param {Timeline} part
 * @param {number | null} [from]
 * @returns {Timeline}
 */
export function joinTimelines(known, part, from = null) {
  /** @type {<T extends { started_at: number, ended_at?: number | null }>(was: T[], more: T[]) => T[]} */
  const join = (was, more) => [...(from === null ? was : was.filter((one) => (one.ended_at ?? Infinity) < from)), ...more];
  return {
    ...part,
    holders: join(known.holders, part.holders),
    attempts: join(known.attempts, part.attempts),
    items: join(known.items, part.items),
    waits: join(known.waits, part.waits),
    acts: [...known.acts.filter((act) => from === null || act.at < from), ...part.acts],
    forks: part.forks.length ? part.forks : known.forks,
  };
}

/**
 * When the timeline begins and ends: with the present while something is open, else with the last event.
 * @param {Timeline} timeline
 * @param {number} now
 */
export function wholeTime(timeline, now) {
  const pieces = [...timeline.holders, ...timeline.attempts, ...timeline.items, ...timeline.waits];
  const isOpen = pieces.some(isOpenPiece);
  const firsts = [...timeline.holders.slice(0, 1), ...timeline.attempts.slice(0, 1)].map((one) => one.started_at);
  const from = Math.min(timeline.started_at, ...firsts); // a fork also has what its origin did before
  return { from, to: isOpen ? Math.max(now, timeline.ended_at) : timeline.ended_at, isOpen };
}

/** @param {{ ended_at?: number | null, current?: boolean }} piece */
const isOpenPiece = (piece) => (piece.ended_at ?? null) === null && piece.current !== false;

/**
 * When something ran, for folding idle time.
 * @param {Timeline} timeline
 * @param {number} now
 */
export const busyTimes = (timeline, now) =>
  [...timeline.attempts, ...timeline.items].map((one) => ({ start: one.started_at, end: one.ended_at ?? now }));

/**
 * The rows in the order in which they first started; nodes that the run has not reached follow in the order of the flow.
 * @param {Timeline} timeline
 * @param {TimelineNode[]} nodes
 * @param {number} now
 * @returns {TimelineRow[]}
 */
export function timelineRows(timeline, nodes, now) {
  /** @type {Map<string, TimelineRow>} */
  const rows = new Map();
  /** @type {Map<string, number>} */
  const firsts = new Map();
  /** @param {TimelineNode} node */
  const add = ({ name, mark, once = false }) => {
    const row = { name, once, look: lookOfNode(mark), count: "", time: "", bars: [], lanes: [], bands: [], waits: [] };
    rows.set(name, row);
    return row;
  };
  /** @param {{ node?: string | null, started_at: number }} piece */
  const rowOf = (piece) => {
    const name = piece.node ?? "";
    firsts.set(name, Math.min(piece.started_at, firsts.get(name) ?? Infinity));
    return rows.get(name) ?? add({ name });
  };
  for (const node of nodes) add(node);
  for (const bar of timeline.attempts) (isItem(bar) ? rowOf(bar).lanes : rowOf(bar).bars).push(bar);
  for (const band of timeline.items) rowOf(band).bands.push(band);
  for (const wait of timeline.waits) if (wait.node) rowOf(wait).waits.push(wait);
  const gaps = timeline.waits.filter((wait) => !wait.node);
  for (const row of rows.values()) {
    row.waits.push(...gaps.filter((wait) => row.bars.some((bar) => endsAt(bar, wait))));
    // The attempt of a fan-out is the time of its items, which show more.
    if (row.lanes.length || row.bands.length) row.bars = [];
  }
  const marked = new Set(nodes.filter((node) => node.mark).map((node) => node.name));
  for (const row of rows.values()) furnishRow(row, marked.has(row.name), now);
  const first = (/** @type {TimelineRow} */ row) => firsts.get(row.name) ?? Number.MAX_VALUE;
  return [...rows.values()].sort((a, b) => first(a) - first(b));
}

/** @param {AttemptSpan} bar */
const isItem = (bar) => (bar.item ?? null) !== null;

/** The run had no holder because the process of this attempt died. @param {AttemptSpan} bar @param {WaitSpan} wait */
const endsAt = (bar, wait) => bar.status === "crashed" && Math.abs((bar.ended_at ?? 0) - wait.started_at) < 0.001;

/** @param {TimelineRow} row @param {boolean} isReached @param {number} now */
function furnishRow(row, isReached, now) {
  const items = Math.max(new Set(row.lanes.map((bar) => bar.item)).size, ...row.bands.map((band) => band.items));
  row.count = items ? `×${number(items)}` : "";
  if (!isReached) return;
  const whole = [...row.lanes, ...row.bands];
  const seconds = whole.length
    ? Math.max(...whole.map((one) => one.ended_at ?? now)) - Math.min(...whole.map((one) => one.started_at))
    : row.bars.reduce((sum, bar) => sum + (counts(bar) ? (bar.ended_at ?? now) - bar.started_at : 0), 0);
  row.time = whole.length || row.bars.some(counts) ? duration(seconds) : "";
}

/** How long a crashed attempt ran is not known. @param {AttemptSpan} bar */
const counts = (bar) => bar.status !== "crashed" && bar.status !== "skipped";

/**
 * The times without a holder that belong to no attempt that crashed.
 * @param {Timeline} timeline
 */
export const holderGaps = (timeline) =>
  timeline.waits.filter((wait) => !wait.node && !timeline.attempts.some((bar) => !isItem(bar) && endsAt(bar, wait)));

/**
 * The rows that are shown: completed ones can be hidden, except the chosen one.
 * @param {TimelineRow[]} rows
 * @param {{ hideCompleted: boolean, chosen: string | null }} view
 */
export const shownRows = (rows, { hideCompleted, chosen }) =>
  rows.filter((row) => !hideCompleted || row.name === chosen || (row.look.word !== "completed" && row.look.word !== "skipped"));

/**
 * What to write into a bar, longest first. A bar is numbered only where there are several.
 * @param {AttemptSpan} bar
 * @param {AttemptSpan[]} bars  all of its row
 * @returns {string[]}
 */
export function barWords(bar, bars) {
  const visit = visitName(bar);
  const isOneVisit = bars.every((one) => visitName(one) === visit);
  if (isOneVisit) return bars.some((one) => one.attempt !== bar.attempt) ? [String(bar.attempt)] : [];
  const short = bars.every((one) => one.execution === 1) ? String(bar.iteration) : visit;
  if (bar.attempt === 1) return [short];
  return [`${short} · attempt ${bar.attempt}`, `${short} · att. ${bar.attempt}`, short];
}

/** @param {{ iteration: number, execution: number }} piece */
const visitName = (piece) => `${piece.iteration}.${piece.execution}`;

/** The attempt as the address names it: "1.1.2". @param {AttemptSpan} bar */
export const visitOf = (bar) => `${visitName(bar)}.${bar.attempt}`;

/** The attempt after which the run failed: it was not retried. @param {AttemptSpan} bar */
export const failsRun = (bar) => bar.status === "failed" && (bar.retry_at ?? null) === null && !isItem(bar);

/** @type {Record<string, (act: Act) => string>} */
const DEEDS = {
  start: () => "started the run",
  fork: (act) => `forked ${act.about ?? "it"}`,
  resume: () => "resumed",
  rewind: (act) => `went back to ${act.about ?? "an earlier event"}`,
  pause: () => "paused",
  cancel: () => "cancelled",
  retry: (act) => `retried ${act.node ?? ""}`,
  skip: (act) => `skipped ${act.node ?? ""}`,
  edit: (act) => `edited ${act.about || "the state"}`,
  answer: (act) => `answered ${act.about ?? ""}`,
  signal: (act) => `sent ${act.about ?? "a signal"}`,
  refused: (act) => `asked to ${act.about ?? "act"}, which was refused`,
};

/** Who did what: "ada resumed". @param {Act} act */
export const actWords = (act) => `${act.by || "somebody"} ${(DEEDS[act.verb]?.(act) ?? act.verb).trim()}`;

/** What is drawn as an act: that somebody started the run is where the axis begins. @param {Timeline} timeline */
export const drawnActs = (timeline) => timeline.acts.filter((act) => act.verb !== "start" && act.verb !== "fork");

/** A holder by name. The log does not always name the process that created the run. @param {HolderSpan} holder */
export const holderName = (holder) => holder.holder ?? "starting process";

/** @type {Record<string, string>} */
export const HOLDER_ENDS = { died: "killed", drained: "drained", replaced: "replaced" };

/** @typedef {{ what: string, from: string, length: string, how: string, at: number }} Line */

/**
 * Every piece as a line of a table, in the order of time.
 * @param {Timeline} timeline
 * @param {number} now
 * @returns {Line[]}
 */
export function timelineLines(timeline, now) {
  /** @type {(what: string, piece: { started_at: number, ended_at?: number | null }, how: string) => Line} */
  const line = (what, piece, how) => {
    const spent = (piece.ended_at ?? null) === null ? "until now" : span(Number(piece.ended_at) - piece.started_at);
    return { what, from: instant(piece.started_at, now), length: spent, how, at: piece.started_at };
  };
  return [
    ...timeline.holders.map((one) => line(`Held by ${holderName(one)}`, one, one.end ? (HOLDER_ENDS[one.end] ?? one.end) : "")),
    ...timeline.attempts.map((one) => {
      const item = isItem(one) ? `, item ${one.item}` : "";
      const visit = one.iteration > 1 || one.execution > 1 ? `, visit ${visitName(one)}` : "";
      return line(
        `${one.node}${item}${visit}, attempt ${one.attempt}`,
        one,
        one.error ? `${one.status}: ${one.error}` : one.status,
      );
    }),
    ...timeline.items.map((one) => line(`${one.node}, ${plural(one.items, "item")}`, one, countWords(one))),
    ...timeline.waits.map((one) => line(`${one.node ?? "Run"} waits`, one, one.reason)),
    ...timeline.acts.map((act) => ({
      what: actWords(act),
      from: instant(act.at, now),
      length: "",
      how: act.reason ?? "",
      at: act.at,
    })),
  ].sort((a, b) => a.at - b.at);
}

/** "815 completed, 10 failed". @param {ItemSpan} band */
export const countWords = (band) =>
  Object.entries(band.counts)
    .map(([status, count]) => `${number(count)} ${status}`)
    .join(", ");
