// The time axis of the timeline. Time is drawn to scale, except that a long gap in which nothing runs is folded into a narrow
// strip that names its length: a retry after two hours must not squeeze every bar to a hair.

import { span, timeOfDay } from "./words.js";

const FOLD_MIN_PX = 40;
const FOLD_MAX_PX = 62;
/** A gap is folded if it is longer than this many median attempts, and than this share of the whole span. */
const MEDIANS = 5;
const SHARE = 0.1;
/** A shorter gap is not worth a strip, which would call it "0 s". In seconds. */
const FOLD_MIN_S = 1;
/** How much of the time that is drawn to scale follows an attempt before a fold: room for words about its end. */
const MARGIN = 0.11;
const TICK_PX = 90;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

/**
 * @typedef {{ start: number, end: number }} Span
 * @typedef {{ from: number, to: number, x: number, right: number, words: string }} Stretch  `words`: of a folded one
 * @typedef {{ x: number, words: string }} Tick
 *
 * @typedef {object} TimeScale
 * @property {number} from
 * @property {number} to
 * @property {number} now  where a piece ends that is open
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
 * @param {number} [view.now]
 * @returns {TimeScale}
 */
export function createTimeScale({ from, to, busy, width, fold = true, now = to }) {
  const end = Math.max(to, from + 0.001);
  const gaps = fold ? foldedGaps(busy, from, end) : [];
  const folds = layFolds(gaps, from, MARGIN * (end - from - addUp(gaps.map(lengthOf))));
  const pixels = Math.max(1, width - addUp(folds.map((one) => one.width)));
  const perSecond = pixels / Math.max(0.001, end - from - addUp(folds.map(lengthOf)));
  const stretches = layStretches(folds, from, end, perSecond);
  return {
    from,
    to,
    now,
    stretches,
    ticks: stretches.filter((one) => !one.words).flatMap((one) => ticksOf(one, perSecond)),
    xOf: (at) => convert(stretches, at, ["from", "to", "x", "right"]),
    timeOf: (x) => convert(stretches, x, ["x", "right", "from", "to"]),
  };
}

/** @param {number[]} numbers */
const addUp = (numbers) => numbers.reduce((all, one) => all + one, 0);

/** @param {Span} span */
const lengthOf = ({ start, end }) => end - start;

/**
 * The gaps that are folded: nothing runs in them, and they are long beside the attempts and beside the whole.
 * @param {Span[]} busy
 * @param {number} from
 * @param {number} to
 * @returns {Span[]}
 */
export function foldedGaps(busy, from, to) {
  const sorted = busy.filter((one) => one.end >= from && one.start <= to).sort((a, b) => a.start - b.start);
  const lengths = sorted.map(lengthOf).sort((a, b) => a - b);
  const least = Math.max(MEDIANS * lengths[lengths.length >> 1], SHARE * (to - from), FOLD_MIN_S);
  const gaps = [];
  let reached = from;
  for (const one of [...sorted, { start: to, end: to }]) {
    // If nothing ever ran, `least` is not a number: an axis that is one fold says nothing.
    if (one.start - reached > least) gaps.push({ start: reached, end: one.start });
    reached = Math.max(reached, one.end);
  }
  return gaps;
}

/**
 * Name the gaps, and leave room before each, for words about the end of an attempt.
 * @param {Span[]} gaps
 * @param {number} from
 * @param {number} margin  in seconds
 */
const layFolds = (gaps, from, margin) =>
  gaps.map(({ start, end }) => {
    const words = span(end - start);
    const width = Math.min(FOLD_MAX_PX, Math.max(FOLD_MIN_PX, 12 + 6 * words.length));
    return { start: start > from ? start + Math.min(margin, (end - start) / 2) : from, end, words, width };
  });

/**
 * @param {ReturnType<typeof layFolds>} folds
 * @param {number} from
 * @param {number} to
 * @param {number} perSecond
 */
function layStretches(folds, from, to, perSecond) {
  /** @type {Stretch[]} */
  const laid = [];
  let [x, at] = [0, from];
  /** @param {number} until @param {number} width */
  const add = (until, width, words = "") => {
    if (until > at) laid.push({ from: at, to: until, x, right: x + width, words });
    [x, at] = [x + width, until];
  };
  for (const { start, end, words, width } of folds) {
    add(start, (start - at) * perSecond);
    add(end, width, words);
  }
  add(to, (to - at) * perSecond);
  return laid;
}

/**
 * The first tick of a stretch is the time of day, the others count from it.
 * @param {Stretch} stretch
 * @param {number} perSecond
 * @returns {Tick[]}
 */
function ticksOf({ from, to, x }, perSecond) {
  const step = STEPS.find((one) => one * perSecond >= TICK_PX) ?? 604800;
  const ticks = [{ x, words: timeOfDay(from) }];
  for (let after = step; from + after < to; after += step)
    ticks.push({ x: x + after * perSecond, words: `+${step < 60 ? `${Number(after.toFixed(1))} s` : span(after)}` });
  return ticks;
}

/**
 * A time as a place on the axis, or the other way round.
 * @param {Stretch[]} stretches
 * @param {number} value
 * @param {("from" | "to" | "x" | "right")[]} ends  of what is given, and of what is wanted
 */
function convert(stretches, value, [from, to, start, end]) {
  const one = /** @type {Stretch} */ (stretches.find((each) => value <= each[to]) ?? stretches.at(-1));
  const share = (value - one[from]) / (one[to] - one[from]);
  return one[start] + Math.min(1, Math.max(0, share)) * (one[end] - one[start]);
}
