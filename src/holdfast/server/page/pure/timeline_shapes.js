// Where the pieces of a timeline are drawn. Everything here becomes a list of shapes, in pixels from the left end of the lanes
// and the top of their row; the part only keeps elements in step with them.

import { HANDLED, lookOfAttempt } from "./statuses.js";
import { actWords, barWords, countWords, failsRun, holderName, isEndedBy, isItem, visitOf, waitWords } from "./timelines.js";
import { cutMiddle, duration, span, timeOfDay } from "./words.js";

/**
 * @typedef {import("./time_scale.js").TimeScale} TimeScale
 * @typedef {import("./timelines.js").TimelineRow} TimelineRow
 * @typedef {import("../shapes.js").AttemptSpan} AttemptSpan
 * @typedef {import("../shapes.js").WaitSpan} WaitSpan
 *
 * @typedef {object} Shape
 * @property {string} key  unique among its siblings
 * @property {"rect" | "path" | "line" | "text"} name
 * @property {Record<string, string | number | null>} attributes
 * @property {string} [words]  of a textShape; of another shape: what the pointer finds
 */

export const BAR_ROW_PX = 30;
const AXIS_PX = 25;
const MIDDLE = BAR_ROW_PX / 2;
const BAR_PX = 16;
const LANE_PX = 3;
/** A narrower bar has no number. */
const WORDS_PX = 18;
/** A crashed attempt is at least so wide: nothing tells how long it ran after its last sign of life. */
const TORN_PX = 24;
const HELD_Y = 20;
const LABEL_Y = HELD_Y - 8;
/** How far a label may be from what it names. */
const LABEL_OFF_PX = 80;
/** So much room is after the end of the axis, at least. */
const EDGE_PX = 20;

/** About how wide a label is. @param {string} words */
const wide = (words) => 6.3 * words.length;

/** @type {(key: string | number, name: Shape["name"], look: string, attributes: Shape["attributes"], words?: string) => Shape} */
const shape = (key, name, look, attributes, words) => ({
  key: `${name} ${key}`,
  name,
  attributes: { class: look, ...attributes },
  words,
});

/** @type {(key: string | number, look: string, x: number, y: number, words: string, anchor?: string) => Shape} */
const textShape = (key, look, x, y, words, anchor = "start") => shape(key, "text", look, { x, y, "text-anchor": anchor }, words);

/** @type {(key: string | number, look: string, d: string, words?: string) => Shape} */
const pathShape = (key, look, d, words) => shape(key, "path", look, { d }, words);

/** @type {(key: string | number, look: string, x: number) => Shape} */
const upright = (key, look, x) => shape(key, "line", look, { x1: x, x2: x, y1: AXIS_PX, y2: "100%" });

/** @type {(look: string, x: number, width: number | string, y?: number, height?: number | string) => Shape} */
const box = (look, x, width, y = AXIS_PX, height = "100%") => shape(`${look} ${x}`, "rect", look, { x, width, y, height });

/** @param {number} x @param {number} y */
const diamond = (x, y) => `M${x} ${y - 5}l5 5-5 5-5-5z`;

/** @param {number} x  to a quarter of a pixel, so that equal drawings are equal texts */
const at = (x) => Math.round(x * 4) / 4;

/**
 * Pieces with their places, without those that are outside of the axis.
 * @template {{ at?: number, started_at?: number, ended_at?: number | null }} Piece
 * @param {Piece[]} pieces
 * @param {TimeScale} scale
 */
const inView = (pieces, { from, to, now, xOf }) =>
  pieces.flatMap((piece) => {
    const start = piece.at ?? piece.started_at ?? 0;
    const end = piece.at ?? piece.ended_at ?? now;
    const x = at(xOf(start));
    return end < from || start > to ? [] : [{ piece, x, width: at(xOf(end)) - x }];
  });

/** @type {Record<string, string>} */
const BAR_TONES = { failed: "fail", crashed: "ask", running: "live" };

/** @param {AttemptSpan} bar */
const toneOf = (bar) => (lookOfAttempt(bar) === HANDLED ? "fail" : (BAR_TONES[bar.status] ?? "done"));

/** @param {{ current?: boolean }} piece */
const undone = (piece) => (piece.current === false ? " undone" : "");

/**
 * @param {TimelineRow} row
 * @param {TimeScale} scale
 * @returns {Shape[]}
 */
export function rowShapes(row, scale) {
  const items = [...new Set(row.lanes.map((bar) => bar.item))].sort((a, b) => Number(a) - Number(b));
  const pitch = Math.min(4.5, (BAR_ROW_PX - 2) / items.length);
  /** @param {number | null | undefined} item */
  const laneOf = (item) => MIDDLE + (items.indexOf(item) - items.length / 2) * pitch;
  const bars = visibleBars(row.bars, scale);
  return [
    ...row.waits.flatMap((wait) => {
      const inLane = items.includes(wait.item);
      const torn = bars.find(({ piece }) => wait.kind === "holder" && isEndedBy(piece, wait));
      return waitShapes(wait, scale, inLane ? laneOf(wait.item) + LANE_PX / 2 : MIDDLE, inLane, torn && torn.x + TORN_PX);
    }),
    ...inView(row.bands, scale).flatMap(({ piece }) => bandShapes(piece, scale)),
    ...visibleBars(row.lanes, scale).map(({ piece, x, width }) =>
      barShape(piece, scale, { x, width: Math.max(2, width), y: laneOf(piece.item), height: LANE_PX, rx: 1 }),
    ),
    ...bars.flatMap(({ piece, x, width }, number) => wholeBar(piece, scale, x, width, row.bars, bars[number + 1]?.x ?? Infinity)),
  ];
}

/**
 * Bars that are in view, without those that are hidden behind another: a loop of a thousand rounds has no more bars than there
 * are pixels.
 * @param {AttemptSpan[]} bars
 * @param {TimeScale} scale
 */
function visibleBars(bars, scale) {
  /** @type {Record<string, number>} */
  const ends = {};
  return inView(bars, scale).filter(({ piece, x, width }) => {
    const look = `${piece.item} ${toneOf(piece)}`;
    const isHidden = x + width <= ends[look];
    if (!isHidden) ends[look] = x + Math.max(1.5, width);
    return !isHidden;
  });
}

/**
 * @param {AttemptSpan} bar
 * @param {TimeScale} scale
 * @param {number} x
 * @param {number} exact
 * @param {AttemptSpan[]} bars
 * @param {number} next  where the next bar begins
 * @returns {Shape[]}
 */
function wholeBar(bar, scale, x, exact, bars, next) {
  const width = Math.max(bar.status === "crashed" ? TORN_PX : 3, exact);
  const words = width < WORDS_PX ? "" : barWords(bar, bars).find((one) => wide(one) + 12 <= width);
  const shapes = [barShape(bar, scale, { x, width, y: MIDDLE - BAR_PX / 2, height: BAR_PX, rx: 3 })];
  if (words) shapes.push(textShape(bar.seq, `bar-words ink-${toneOf(bar)}`, x + 7, MIDDLE + 4, words));
  const end = x + width + 6;
  if (failsRun(bar) && end + wide("run failed") <= next)
    shapes.push(textShape(`end ${bar.seq}`, "words fail", end, MIDDLE + 4, "run failed"));
  return shapes;
}

/**
 * @param {AttemptSpan} bar
 * @param {TimeScale} scale
 * @param {{ x: number, y: number, width: number, height: number, rx: number }} box
 */
function barShape(bar, { now }, box) {
  const spent = duration((bar.ended_at ?? now) - bar.started_at);
  const end = `attempt ${bar.attempt}: ${lookOfAttempt(bar).word}, ${spent}`;
  const tip = `${isItem(bar) ? `item ${bar.item}, ` : ""}${end}\n${bar.error ?? ""}`;
  const isTorn = bar.status === "crashed" && box.height === BAR_PX; // where its process died
  const left = box.x + 3;
  const d = `M${left} ${box.y}h${box.width - 3}l-4 4 4 4-4 4 4 4H${left}q-3 0-3-3v-10q0-3 3-3z`;
  const about = { "data-visit": visitOf(bar), "data-item": bar.item ?? null, ...(isTorn ? { d } : box) };
  return shape(`${bar.seq} ${bar.item}`, isTorn ? "path" : "rect", `bar ${toneOf(bar)}${undone(bar)}`, about, tip.trim());
}

/**
 * @param {WaitSpan} wait
 * @param {TimeScale} scale
 * @param {number} y
 * @param {boolean} isThin  it has no room for words
 * @param {number} [from]  where the bar ends after which it waits: a torn one is drawn longer than it is
 * @returns {Shape[]}
 */
function waitShapes(wait, scale, y, isThin, from = 0) {
  return inView([wait], scale).flatMap(({ x: exact, width: whole }) => {
    const [x, end] = [Math.max(exact, from), exact + whole];
    const width = Math.max(0, end - x);
    const reason = waitWords(wait);
    const key = `${wait.kind} ${wait.seq} ${wait.item}`;
    /** @param {string} d */
    const line = (d) => pathShape(key, `wait ${wait.kind}${undone(wait)}`, `M${x} ${y}${d}H${x + width}`, reason);
    if (wait.kind === "question") return [line(""), pathShape(`at ${key}`, `gem ask${undone(wait)}`, diamond(x, y), reason)];
    const room = widestRoom(scale, x, x + width);
    // At least the seconds of a retry are written.
    const words = [reason, reason.replace("retry in ", "")].find((one) => !isThin && wide(one) + 20 <= room.width);
    if (!words) return [line("")];
    const [middle, half] = [at(room.x + room.width / 2), at(wide(words) / 2 + 5)];
    return [line(`H${middle - half}M${middle + half} ${y}`), textShape(key, "words", middle, y + 4, words, "middle")];
  });
}

/**
 * The widest part of a line that crosses no folded time.
 * @param {TimeScale} scale
 * @param {number} from
 * @param {number} to
 */
const widestRoom = ({ stretches }, from, to) =>
  stretches
    .map((one) => ({ x: Math.max(from, one.x), width: one.words ? 0 : Math.min(to, one.right) - Math.max(from, one.x) }))
    .reduce((most, one) => (one.width > most.width ? one : most));

/**
 * How many items of a large fan-out ran at a time; how many failed in red, and how many crashed in amber.
 * @param {import("../shapes.js").ItemSpan} band
 * @param {TimeScale} scale
 * @returns {Shape[]}
 */
function bandShapes(band, { now, xOf }) {
  const most = Math.max(1, ...band.running, ...band.failed);
  const part = ((band.ended_at ?? now) - band.started_at) / band.running.length;
  /** @param {number} number */
  const edge = (number) => at(xOf(band.started_at + number * part));
  /** @param {number} count @param {number} number */
  const column = (count, number) =>
    count && `M${edge(number)} 25v${at(-Math.max(2, (count / most) * 20))}H${Math.max(edge(number + 1), edge(number) + 1)}V25z`;
  /** @type {(look: string, counts: number[]) => Shape[]} */
  const draw = (look, counts) => {
    const columns = counts.map(column).filter(Boolean).join("");
    return columns ? [pathShape(`${look} ${band.seq}`, `bar ${look}${undone(band)}`, columns, countWords(band))] : [];
  };
  // Of those that failed or crashed in the same part of the time, the lower ones crashed.
  const ran = draw(band.ended_at === null ? "live" : "done", band.running);
  return [...ran, ...draw("fail", band.failed), ...draw("ask", band.crashed)];
}

/** @type {Record<string, string>} */
const HOLDER_ENDS = { died: "killed", drained: "drained", replaced: "replaced" };

/**
 * Who held the run: a bar for each holder, a cross where it died.
 * @param {import("../shapes.js").HolderSpan[]} holders
 * @param {WaitSpan[]} gaps
 * @param {TimeScale} scale
 * @returns {Shape[]}
 */
export function heldShapes(holders, gaps, scale) {
  const shapes = gaps.flatMap((gap) => waitShapes(gap, scale, HELD_Y, true));
  let free = 0; // where the label before ends
  const edge = (scale.stretches.at(-1)?.right ?? 0) + EDGE_PX;
  inView(holders, scale).forEach(({ piece: holder, x, width }, number, drawn) => {
    const end = HOLDER_ENDS[holder.end ?? ""] ?? "";
    const died = holder.end === "died";
    const right = x + Math.max(3, width);
    const spent = span((holder.ended_at ?? scale.now) - holder.started_at);
    const seen = died && holder.ended_at && `last sign of life at ${timeOfDay(holder.ended_at)}`;
    const tip = [holder.holder ?? "the process that started the run", end, seen, spent].filter(Boolean).join(", ");
    shapes.push(shape(holder.seq, "rect", "held", { x, y: HELD_Y - 3, width: right - x, height: 6, rx: 2 }, tip));
    const left = Math.max(x, free);
    const room = (drawn[number + 1]?.x ?? edge) - left - (died ? wide(end) + 12 : 4);
    const name = holderName(holder);
    const tookOver = drawn[number - 1]?.piece.end === "died" ? " took over" : "";
    const fits = [name + (end && !died ? `, ${end}` : tookOver), name, cutMiddle(name, Math.floor(room / 6.3))];
    const isNear = left < x + LABEL_OFF_PX;
    /** @param {string} one */
    const hasRoom = (one) => isNear && one.length > 3 && wide(one) <= room;
    const whole = fits.slice(0, 2);
    // The last one has room before its bar, if there is none after it.
    const before = whole.some(hasRoom) || drawn[number + 1] ? undefined : whole.find((one) => edge - wide(one) - 4 >= free);
    const words = before ? undefined : fits.find(hasRoom);
    if (words) {
      shapes.push(textShape(holder.seq, "words", left + 4, LABEL_Y, words));
      free = left + wide(words) + 6;
    } else if (before) {
      shapes.push(textShape(holder.seq, "words", edge, LABEL_Y, before, "end"));
      free = edge;
    }
    if (!died) return;
    shapes.push(pathShape(holder.seq, "cross", `M${right - 4} ${HELD_Y - 4}l8 8m0-8l-8 8`, tip));
    const inside = right - 8 - wide(end);
    const from = inside > free ? inside : Math.max(right + 6, free);
    // Too far away to be read with its cross, it is left to the pointer.
    if (from > right + LABEL_OFF_PX) return;
    shapes.push(textShape(`end ${holder.seq}`, "words ask", from, LABEL_Y, end));
    free = from + wide(end) + 6;
  });
  return shapes;
}

/**
 * What people did: a diamond each, with words where there is room.
 * @param {import("../shapes.js").Act[]} acts
 * @param {TimeScale} scale
 * @param {number} width
 * @returns {Shape[]}
 */
export function actShapes(acts, scale, width) {
  let free = 0;
  return inView(acts, scale).flatMap(({ piece: act, x }, number, drawn) => {
    const whole = actWords(act) + (act.reason ? `: “${act.reason}”` : "");
    const next = drawn[number + 1]?.x ?? width;
    // With its reason if that has room at either side.
    const sides = [whole, actWords(act)].flatMap((words) => [
      { words, isRight: true, fits: x + 18 + wide(words) <= next },
      { words, isRight: false, fits: x - 10 - wide(words) >= free },
    ]);
    const { words, isRight } = sides.find((one) => one.fits) ?? { words: "", isRight: false };
    free = x + 10 + (isRight ? wide(words) : 0);
    const gem = pathShape(act.seq, "gem accent", diamond(x, MIDDLE), whole);
    const text = textShape(act.seq, "words accent", x + (isRight ? 10 : -10), MIDDLE + 4, words, isRight ? "start" : "end");
    return words ? [gem, text] : [gem];
  });
}

/**
 * Times along the axis, and how long each folded time is. A label that would touch another is left out.
 * @param {TimeScale} scale
 * @param {number} width
 * @param {number} [head]  when the chosen checkpoint was made: its name is on the axis too
 * @returns {Shape[]}
 */
export function axisShapes({ stretches, ticks, xOf }, width, head) {
  const taken = head === undefined ? [] : [{ x: xOf(head), half: 20 }];
  const starts = new Set(stretches.map((one) => one.x));
  const folds = stretches.filter((one) => one.words).map((one) => ({ x: (one.x + one.right) / 2, words: one.words }));
  // What comes first has its place first: folded times, then times of day, then what counts from them.
  const labels = [...folds, ...ticks.filter((one) => starts.has(one.x)), ...ticks.filter((one) => !starts.has(one.x))];
  return labels.flatMap(({ x, words }, number) => {
    const half = wide(words) / 2;
    const middle = at(number >= folds.length && x && starts.has(x) ? x + 8 + half : x); // beside the name of a fold
    const isTaken = taken.some((one) => Math.abs(one.x - middle) < one.half + half + 6);
    if (isTaken || middle + half > width + 8) return [];
    taken.push({ x: middle, half });
    return [textShape(number, number < folds.length ? "fold-words" : "tick", middle, 16, words, "middle")];
  });
}

/** The lines below the times, and the folded times. @param {TimeScale} scale */
export const gridShapes = ({ ticks, stretches }) => [
  ...ticks.map((tick, number) => upright(number, "grid", at(tick.x))),
  ...stretches.flatMap(({ x, right, words }) =>
    words ? [box("fold", at(x), at(right) - at(x)), upright(`fold ${x}`, "grid", at(x))] : [],
  ),
];

/**
 * What lies over all rows: the acts of people as hairlines, the present, what a reader marks with the pointer, and the chosen
 * checkpoint with a veil over everything after it.
 * @param {object} view
 * @param {import("../shapes.js").Act[]} view.acts
 * @param {{ seq: number, at: number } | null} view.checkpoint
 * @param {boolean} view.isRunning
 * @param {[number, number] | null} view.marked  in pixels
 * @param {TimeScale} scale
 * @returns {Shape[]}
 */
export function overShapes({ acts, checkpoint, isRunning, marked }, scale) {
  const shapes = inView(acts, scale).map(({ piece, x }) => upright(`act ${piece.seq}`, "hairline", x));
  if (marked) shapes.push(box("marked", Math.min(...marked), Math.abs(marked[1] - marked[0])));
  const head = checkpoint?.at ?? (isRunning ? scale.now : -1);
  const playhead = inView([{ at: head }], scale).map(({ x }) => upright("head", "playhead", x));
  if (!checkpoint) return [...shapes, ...playhead];
  const x = at(scale.xOf(head));
  const words = `@${checkpoint.seq}`;
  const half = wide(words) / 2 + 7;
  const place = [box("place", x - half, 2 * half, 3, 19), textShape("place", "place-words", x, 17, words, "middle")];
  return [...shapes, box("veil", x, "100%"), ...playhead, ...place];
}
