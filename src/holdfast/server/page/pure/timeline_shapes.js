// Where the pieces of a timeline are drawn. Everything here becomes a list of shapes, in pixels from the left end of the lanes
// and the top of their row; the part only keeps elements in step with them.

import { actWords, barWords, countWords, failsRun, holderName, isItem, visitOf, waitWords } from "./timelines.js";
import { cutMiddle, duration, span } from "./words.js";

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
export const AXIS_PX = 25;
const MIDDLE = BAR_ROW_PX / 2;
const BAR_PX = 16;
const LANE_PX = 3;
/** A narrower bar has no number. */
const WORDS_PX = 18;
/** A crashed attempt is at least so wide: nothing tells how long it ran after its last sign of life. */
const TORN_PX = 20;
const HELD_Y = 20;
const LABEL_Y = HELD_Y - 8;
/** How far a label may be from what it names. */
const LABEL_OFF_PX = 80;

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

/** @param {number} x @param {number} y */
const diamond = (x, y) => `M${x} ${y - 5}l5 5-5 5-5-5z`;

/** @param {number} x  to a quarter of a pixel, so that equal drawings are equal texts */
const at = (x) => Math.round(x * 4) / 4;

/**
 * Where a time is drawn; null if it is outside of the axis.
 * @param {TimeScale} scale
 * @param {number} start
 * @param {number} [end]
 */
function spanOf({ stretches, xOf }, start, end = start) {
  if (end < stretches[0].from || start > stretches[stretches.length - 1].to) return null;
  const x = at(xOf(start));
  return { x, width: at(xOf(end)) - x };
}

/** @type {Record<string, string>} */
const BAR_TONES = { failed: "fail", crashed: "ask", running: "live" };

/** @param {{ status: string }} bar */
const toneOf = (bar) => BAR_TONES[bar.status] ?? "done";

/** @param {{ current?: boolean }} piece */
const undone = (piece) => (piece.current === false ? " undone" : "");

/**
 * @param {TimelineRow} row
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {Shape[]}
 */
export function rowShapes(row, scale, now) {
  const items = [...new Set(row.lanes.map((bar) => bar.item))].sort((a, b) => Number(a) - Number(b));
  const pitch = Math.min(4.5, (BAR_ROW_PX - 2) / items.length);
  /** @param {number | null | undefined} item */
  const laneOf = (item) => MIDDLE + (items.indexOf(item) - items.length / 2) * pitch;
  const bars = visibleBars(row.bars, scale, now);
  return [
    ...row.waits.flatMap((wait) => {
      const inLane = items.includes(wait.item);
      return waitShapes(wait, scale, now, inLane ? laneOf(wait.item) + LANE_PX / 2 : MIDDLE, inLane);
    }),
    ...row.bands.flatMap((band) => bandShapes(band, scale, now)),
    ...visibleBars(row.lanes, scale, now).map(({ bar, x, width }) =>
      barShape(bar, now, { x, width: Math.max(2, width), y: laneOf(bar.item), height: LANE_PX, rx: 1 }),
    ),
    ...bars.flatMap((drawn, number) => wholeBar(drawn, row.bars, now, bars[number + 1]?.x ?? Infinity)),
  ];
}

/** @typedef {{ bar: AttemptSpan, x: number, width: number }} DrawnBar */

/**
 * Bars that are in view, without those that are hidden behind another: a loop of a thousand rounds has no more bars than there
 * are pixels.
 * @param {AttemptSpan[]} bars
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {DrawnBar[]}
 */
function visibleBars(bars, scale, now) {
  /** @type {Map<string, number>} */
  const ends = new Map();
  return bars.flatMap((bar) => {
    const found = spanOf(scale, bar.started_at, bar.ended_at ?? now);
    const look = `${bar.item} ${toneOf(bar)}`;
    if (!found || found.x + found.width <= (ends.get(look) ?? -1)) return [];
    ends.set(look, found.x + Math.max(1.5, found.width));
    return [{ bar, ...found }];
  });
}

/**
 * @param {DrawnBar} drawn
 * @param {AttemptSpan[]} bars
 * @param {number} now
 * @param {number} next  where the next bar begins
 * @returns {Shape[]}
 */
function wholeBar({ bar, x, width: exact }, bars, now, next) {
  const width = Math.max(bar.status === "crashed" ? TORN_PX : 3, exact);
  const words = width < WORDS_PX ? undefined : barWords(bar, bars).find((one) => wide(one) + 12 <= width);
  const shapes = [barShape(bar, now, { x, width, y: MIDDLE - BAR_PX / 2, height: BAR_PX, rx: 3 })];
  if (words) shapes.push(textShape(bar.seq, `bar-words ink-${toneOf(bar)}`, x + 7, MIDDLE + 4, words));
  const end = x + width + 6;
  if (failsRun(bar) && end + wide("run failed") <= next)
    shapes.push(textShape(`end ${bar.seq}`, "words fail", end, MIDDLE + 4, "run failed"));
  return shapes;
}

/**
 * @param {AttemptSpan} bar
 * @param {number} now
 * @param {{ x: number, y: number, width: number, height: number, rx: number }} box
 */
function barShape(bar, now, box) {
  const spent = duration((bar.ended_at ?? now) - bar.started_at);
  const tip = `${isItem(bar) ? `item ${bar.item}, ` : ""}attempt ${bar.attempt}: ${bar.status}, ${spent}\n${bar.error ?? ""}`;
  const isTorn = bar.status === "crashed" && box.height === BAR_PX; // where its process died
  const left = box.x + 3;
  const d = `M${left} ${box.y}h${box.width - 3}l-4 4 4 4-4 4 4 4H${left}q-3 0-3-3v-10q0-3 3-3z`;
  const about = { "data-visit": visitOf(bar), "data-item": bar.item ?? null, ...(isTorn ? { d } : box) };
  return shape(`${bar.seq} ${bar.item}`, isTorn ? "path" : "rect", `bar ${toneOf(bar)}${undone(bar)}`, about, tip.trim());
}

/**
 * @param {WaitSpan} wait
 * @param {TimeScale} scale
 * @param {number} now
 * @param {number} y
 * @param {boolean} isThin  it has no room for words
 * @returns {Shape[]}
 */
function waitShapes(wait, scale, now, y, isThin) {
  const found = spanOf(scale, wait.started_at, wait.ended_at ?? now);
  if (!found) return [];
  const { seq, kind, item } = wait;
  const reason = waitWords(wait);
  const key = `${kind} ${seq} ${item}`;
  const { x } = found;
  const end = x + found.width;
  const look = `wait ${kind}${undone(wait)}`;
  if (kind === "question") {
    return [
      pathShape(key, look, `M${x} ${y}H${end}`, reason),
      pathShape(`at ${key}`, `gem ask${undone(wait)}`, diamond(x, y), reason),
    ];
  }
  const room = widestRoom(scale, x, end);
  // At least the seconds of a retry are written.
  const words = [reason, reason.replace("retry in ", "")].find((one) => !isThin && wide(one) + 20 <= room.width);
  if (!words) return [pathShape(key, look, `M${x} ${y}H${end}`, reason)];
  const middle = at(room.x + room.width / 2);
  const half = at(wide(words) / 2 + 5);
  const line = `M${x} ${y}H${middle - half}M${middle + half} ${y}H${end}`;
  return [pathShape(key, look, line, reason), textShape(key, "words", middle, y + 4, words, "middle")];
}

/**
 * The widest part of a line that crosses no folded time.
 * @param {TimeScale} scale
 * @param {number} from
 * @param {number} to
 */
function widestRoom(scale, from, to) {
  let room = { x: from, width: 0 };
  for (const stretch of scale.stretches) {
    const x = Math.max(from, stretch.x);
    const width = Math.min(to, stretch.x + stretch.width) - x;
    if (!stretch.folded && width > room.width) room = { x, width };
  }
  return room;
}

/**
 * How many items of a large fan-out ran at a time, and in red how many failed.
 * @param {import("../shapes.js").ItemSpan} band
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {Shape[]}
 */
function bandShapes(band, scale, now) {
  const end = band.ended_at ?? now;
  if (!spanOf(scale, band.started_at, end)) return [];
  const most = Math.max(1, ...band.running, ...band.failed);
  const part = (end - band.started_at) / band.running.length;
  /** @param {number} number */
  const edge = (number) => at(scale.xOf(band.started_at + number * part));
  /** @param {number} count @param {number} number */
  const column = (count, number) =>
    count && `M${edge(number)} 25v${at(-Math.max(2, (count / most) * 20))}H${Math.max(edge(number + 1), edge(number) + 1)}V25z`;
  /** @type {(look: string, counts: number[]) => Shape} */
  const draw = (look, counts) =>
    pathShape(`${look} ${band.seq}`, `bar ${look}${undone(band)}`, counts.map(column).filter(Boolean).join(""), countWords(band));
  return [draw(band.ended_at === null ? "live" : "done", band.running), draw("fail", band.failed)];
}

/** @type {Record<string, string>} */
const HOLDER_ENDS = { died: "killed", drained: "drained", replaced: "replaced" };

/**
 * Who held the run: a bar for each holder, a cross where it died.
 * @param {import("../shapes.js").HolderSpan[]} holders
 * @param {WaitSpan[]} gaps
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {Shape[]}
 */
export function heldShapes(holders, gaps, scale, now) {
  const shapes = gaps.flatMap((gap) => waitShapes(gap, scale, now, HELD_Y, true));
  const drawn = holders.flatMap((holder, number) => {
    const found = spanOf(scale, holder.started_at, holder.ended_at ?? now);
    return found ? [{ ...found, holder, tookOver: holders[number - 1]?.end === "died" }] : [];
  });
  let free = 0; // where the label before ends
  drawn.forEach(({ holder, x, width, tookOver }, number) => {
    const end = HOLDER_ENDS[holder.end ?? ""] ?? "";
    const died = holder.end === "died";
    const right = x + Math.max(3, width);
    const tip = [holder.holder, end, span((holder.ended_at ?? now) - holder.started_at)].filter(Boolean).join(", ");
    shapes.push(shape(holder.seq, "rect", "held", { x, y: HELD_Y - 3, width: right - x, height: 6, rx: 2 }, tip));
    const left = Math.max(x, free);
    const room = (drawn[number + 1]?.x ?? Infinity) - left - (died ? wide(end) + 12 : 4);
    const name = holderName(holder);
    const whole = name + (end && !died ? `, ${end}` : tookOver ? " took over" : "");
    const words =
      left < x + LABEL_OFF_PX && [whole, name, cutMiddle(name, Math.floor(room / 6.3))].find((one) => wide(one) <= room);
    if (words && words.length > 3) {
      shapes.push(textShape(holder.seq, "words", left, LABEL_Y, words));
      free = left + wide(words) + 6;
    }
    if (!died) return;
    shapes.push(pathShape(holder.seq, "cross", `M${right - 4} ${HELD_Y - 4}l8 8m0-8l-8 8`, tip));
    const before = right - 8 - wide(end);
    const from = before > free ? before : Math.max(right + 6, free);
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
  const places = acts.map((act) => spanOf(scale, act.at)?.x ?? -1);
  let free = 0;
  return acts.flatMap((act, number) => {
    const x = places[number];
    if (x < 0) return [];
    const whole = actWords(act) + (act.reason ? `: “${act.reason}”` : "");
    const next = places[number + 1] ?? -1;
    const fits = [whole, actWords(act)];
    const right = fits.find((one) => x + 18 + wide(one) <= (next < 0 ? width : next));
    const left = fits.find((one) => x - 10 - wide(one) >= free);
    free = x + 10 + wide(right ?? "");
    const words = right
      ? [textShape(act.seq, "words accent", x + 10, MIDDLE + 4, right)]
      : left
        ? [textShape(act.seq, "words accent", x - 10, MIDDLE + 4, left, "end")]
        : [];
    return [pathShape(act.seq, "gem accent", diamond(x, MIDDLE), whole), ...words];
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
  const folds = stretches.map((one) => ({ x: one.x + one.width / 2, words: one.words }));
  // What comes first has its spanOf first: folded times, then times of day, then what counts from them.
  const labels = [...folds, ...ticks.filter((one) => starts.has(one.x)), ...ticks.filter((one) => !starts.has(one.x))];
  return labels.flatMap(({ x, words }, number) => {
    const half = wide(words) / 2;
    const middle = at(number >= folds.length && x && starts.has(x) ? x + 8 + half : x); // beside the name of a fold
    const isTaken = taken.some((one) => Math.abs(one.x - middle) < one.half + half + 6);
    if (!words || isTaken || middle + half > width + 8) return [];
    taken.push({ x: middle, half });
    return [textShape(number, number < folds.length ? "fold-words" : "tick", middle, 16, words, "middle")];
  });
}

/** The lines below the times. @param {TimeScale} scale */
export const gridShapes = (scale) => scale.ticks.map((tick, number) => upright(number, "grid", at(tick.x)));

/**
 * What lies over all rows: the acts of people as hairlines, the present, what a reader marks with the pointer, and the chosen
 * checkpoint with a veil over everything after it.
 * @param {object} view
 * @param {import("../shapes.js").Act[]} view.acts
 * @param {{ seq: number, at: number } | null} view.checkpoint
 * @param {number | null} view.now  null if nothing runs
 * @param {[number, number] | null} view.marked  in pixels
 * @param {TimeScale} scale
 * @returns {Shape[]}
 */
export function overShapes({ acts, checkpoint, now, marked }, scale) {
  /** @type {(key: string, look: string, time: number) => Shape[]} */
  const line = (key, look, time) => {
    const found = spanOf(scale, time);
    return found ? [upright(key, look, found.x)] : [];
  };
  /** @type {(look: string, x: number, width: number | string, y?: number, height?: number | string) => Shape} */
  const box = (look, x, width, y = AXIS_PX, height = "100%") => shape(look, "rect", look, { x, width, y, height });
  const shapes = acts.flatMap((act) => line(`act ${act.seq}`, "hairline", act.at));
  if (marked) shapes.push(box("marked", Math.min(...marked), Math.abs(marked[1] - marked[0])));
  if (!checkpoint) return now === null ? shapes : [...shapes, ...line("now", "playhead", now)];
  const x = at(scale.xOf(checkpoint.at));
  const words = `@${checkpoint.seq}`;
  const half = wide(words) / 2 + 7;
  shapes.push(box("veil", x, "100%"), ...line("head", "playhead", checkpoint.at), box("place", x - half, 2 * half, 3, 19));
  return [...shapes, textShape("place", "place-words", x, 17, words, "middle")];
}
