// The time axis of the timeline. Time is drawn to scale, except that a long gap in which nothing runs is folded into a narrow
// strip that names its length: a retry after two hours must not squeeze every bar to a hair.

import { span, timeOfDay } from "./words.js";

export const FOLD_MIN_PX = 40;
export const FOLD_MAX_PX = 62;
/** A gap is folded if it is longer than this many median attempts, and than this share of the whole span. */
const MEDIANS = 5;
const SHARE = 0.1;
/** How much of the time that is drawn to scale follows an attempt before a fold: room for words about its end. */
const MARGIN = 0.08;
const TICK_PX = 90;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

/**
 * @typedef {{ start: number, end: number }} Span
 * @typedef {{ from: number, to: number, x: number, width: number, folded: boolean, words: string }} Stretch
 * @typedef {{ x: number, words: string }} Tick
 *
 * @typedef {object} TimeScale
 * @property {Stretch[]} stretches  in order; together they cover the whole width
 * @property {Tick[]} ticks
 * @property {(at: number) => number} xOf
 * @property {(x: number) => number} timeOf
 */

/**
 * @param {object} view
 * @param {number} view.from
 * @param {number} view.to
 * @param {Span[]} view.busy  when something ran: attempts, in any order
 * @param {number} view.width
 * @param {boolean} [view.fold]
 * @returns {TimeScale}
 */
export function createTimeScale({ from, to, busy, width, fold = true }) {
  const end = Math.max(to, from + 0.001);
  const gaps = fold ? foldedGaps(busy, from, end) : [];
  const stretches = layStretches(gaps, from, end, width);
  const open = stretches.filter((stretch) => !stretch.folded);
  const seconds = open.reduce((sum, stretch) => sum + stretch.to - stretch.from, 0);
  const pixels = open.reduce((sum, stretch) => sum + stretch.width, 0);
  return {
    stretches,
    ticks: open.flatMap((stretch) => ticksOf(stretch, pixels / Math.max(seconds, 0.001))),
    xOf: (at) => xOf(stretches, at),
    timeOf: (x) => timeAt(stretches, x),
  };
}

/**
 * The gaps that are folded: nothing runs in them, and they are long beside the attempts and beside the whole.
 * @param {Span[]} busy
 * @param {number} from
 * @param {number} to
 * @returns {Span[]}
 */
export function foldedGaps(busy, from, to) {
  const sorted = busy.filter((one) => one.end >= from && one.start <= to).sort((a, b) => a.start - b.start);
  const lengths = sorted.map((one) => one.end - one.start).sort((a, b) => a - b);
  const least = Math.max(MEDIANS * (lengths[lengths.length >> 1] ?? 0), SHARE * (to - from));
  const gaps = [];
  let reached = from;
  for (const one of [...sorted, { start: to, end: to }]) {
    if (one.start - reached > least) gaps.push({ start: reached, end: one.start });
    reached = Math.max(reached, one.end);
  }
  // If nothing ever ran, the whole span is one wait, and an axis that is one fold says nothing.
  return sorted.length ? gaps : [];
}

/**
 * @param {Span[]} gaps
 * @param {number} from
 * @param {number} to
 * @param {number} width
 * @returns {Stretch[]}
 */
function layStretches(gaps, from, to, width) {
  const names = gaps.map((gap) => span(gap.end - gap.start));
  const folds = names.map(foldWidth);
  const left = Math.max(1, width - folds.reduce((sum, one) => sum + one, 0));
  const busy = to - from - gaps.reduce((sum, gap) => sum + gap.end - gap.start, 0);
  /** @param {Span} gap */
  const foldStart = (gap) => (gap.start > from ? gap.start + Math.min(MARGIN * busy, (gap.end - gap.start) / 2) : from);
  const open = Math.max(0.001, to - from - gaps.reduce((sum, gap) => sum + gap.end - foldStart(gap), 0));
  /** @type {Stretch[]} */
  const laid = [];
  let x = 0;
  let at = from;
  /** @param {number} until @param {number} wide @param {string} words */
  const add = (until, wide, words) => {
    if (until > at || words) laid.push({ from: at, to: until, x, width: wide, folded: words !== "", words });
    [x, at] = [x + wide, until];
  };
  gaps.forEach((gap, number) => {
    add(foldStart(gap), ((foldStart(gap) - at) / open) * left, "");
    add(gap.end, folds[number], names[number]);
  });
  add(to, ((to - at) / open) * left, "");
  return laid;
}

/** Wide enough for its label, within its bounds. @param {string} words */
const foldWidth = (words) => Math.min(FOLD_MAX_PX, Math.max(FOLD_MIN_PX, 12 + 6 * words.length));

/**
 * The first tick of a stretch is the time of day, the others count from it.
 * @param {Stretch} stretch
 * @param {number} perSecond
 * @returns {Tick[]}
 */
function ticksOf(stretch, perSecond) {
  const step = STEPS.find((one) => one * perSecond >= TICK_PX) ?? STEPS[STEPS.length - 1];
  const ticks = [{ x: stretch.x, words: timeOfDay(stretch.from) }];
  for (let count = 1; stretch.from + count * step < stretch.to; count += 1) {
    const x = stretch.x + count * step * perSecond;
    const after = count * step;
    ticks.push({ x, words: `+${after < 60 ? `${Number(after.toFixed(1))} s` : tickWords(after)}` });
  }
  return ticks;
}

/** "1 min", "1 min 40 s", "1 h 30 min": a tick is exact. @param {number} seconds  a minute or more */
function tickWords(seconds) {
  const rest = seconds % 60;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min${rest ? ` ${rest} s` : ""}` : span(seconds);
}

/** @param {Stretch[]} stretches @param {number} at */
function xOf(stretches, at) {
  const found = stretches.find((one) => at <= one.to) ?? stretches[stretches.length - 1];
  const share = (at - found.from) / Math.max(0.001, found.to - found.from);
  return found.x + Math.min(1, Math.max(0, share)) * found.width;
}

/** @param {Stretch[]} stretches @param {number} x */
function timeAt(stretches, x) {
  const found = stretches.find((one) => x <= one.x + one.width) ?? stretches[stretches.length - 1];
  const share = (x - found.x) / Math.max(0.001, found.width);
  return found.from + Math.min(1, Math.max(0, share)) * (found.to - found.from);
}
