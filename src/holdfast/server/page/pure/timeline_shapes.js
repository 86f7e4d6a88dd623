// Where the pieces of a timeline are drawn. Everything here becomes a list of shapes, in pixels from the left end of the lanes and
// the top of their row; the part only keeps elements in step with them.

import { HOLDER_ENDS, actWords, barWords, countWords, failsRun, holderName, visitOf } from "./timelines.js";
import { cutMiddle, duration, span } from "./words.js";

/**
 * @typedef {import("./time_scale.js").TimeScale} TimeScale
 * @typedef {import("./timelines.js").TimelineRow} TimelineRow
 * @typedef {import("../shapes.js").AttemptSpan} AttemptSpan
 * @typedef {import("../shapes.js").WaitSpan} WaitSpan
 * @typedef {import("../shapes.js").ItemSpan} ItemSpan
 *
 * @typedef {object} Shape
 * @property {string} key  unique among its siblings
 * @property {"rect" | "path" | "line" | "text"} name
 * @property {Record<string, string | number | null>} attributes
 * @property {string} [words]  the text of a text
 * @property {string} [tip]  what the pointer finds
 */

export const ROW_PX = 30;
export const AXIS_PX = 25;
const MIDDLE = ROW_PX / 2;
const BAR_PX = 16;
const LANE_PX = 3;
/** A narrower bar has no number. */
const WORDS_PX = 18;
const TEXT_Y = MIDDLE + 4;
const HELD_Y = 20;

/** About how wide a label is. @param {string} words */
const wide = (words) => 6.3 * words.length;

/** @type {(key: string, look: string, x: number, y: number, words: string, anchor?: string) => Shape} */
const text = (key, look, x, y, words, anchor = "start") => ({
  key: `text ${key}`,
  name: "text",
  attributes: { class: look, x, y, "text-anchor": anchor },
  words,
});

/** @type {(key: string, look: string, d: string, tip?: string) => Shape} */
const path = (key, look, d, tip) => ({ key: `path ${key}`, name: "path", attributes: { class: look, d }, tip });

/** @type {(key: string, look: string, x: number) => Shape} */
const upright = (key, look, x) => ({
  key: `line ${key}`,
  name: "line",
  attributes: { class: look, x1: x, x2: x, y1: AXIS_PX, y2: "100%" },
});

/** @param {number} x  to a quarter of a pixel, so that equal drawings are equal texts */
const at = (x) => Math.round(x * 4) / 4;

/**
 * Where a time is drawn; null if it is outside of the axis.
 * @param {TimeScale} scale
 * @param {number} start
 * @param {number} end
 */
function place(scale, start, end) {
  const { stretches } = scale;
  if (end < stretches[0].from || start > stretches[stretches.length - 1].to) return null;
  const x = at(scale.xOf(start));
  return { x, width: at(scale.xOf(end)) - x };
}

/** @type {Record<string, string>} */
const TONES = { failed: "fail", crashed: "ask", running: "live" };

/** @param {string} status */
const toneOf = (status) => TONES[status] ?? "done";

/**
 * @param {TimelineRow} row
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {Shape[]}
 */
export function rowShapes(row, scale, now) {
  const items = [...new Set(row.lanes.map((bar) => bar.item))].sort((a, b) => Number(a) - Number(b));
  const pitch = Math.min(4.5, (ROW_PX - 2) / Math.max(1, items.length));
  /** @param {number | null | undefined} item */
  const laneOf = (item) => MIDDLE - (items.length * pitch) / 2 + items.indexOf(item) * pitch;
  return [
    ...row.waits.flatMap((wait) => {
      const inLane = items.includes(wait.item);
      return waitShapes(wait, scale, now, inLane ? laneOf(wait.item) + LANE_PX / 2 : MIDDLE, inLane);
    }),
    ...row.bands.flatMap((band) => bandShapes(band, scale, now)),
    ...visibleBars(row.lanes, scale, now).map(([bar, { x, width }]) =>
      barShape(bar, now, { x, width: Math.max(2, width), y: laneOf(bar.item), height: LANE_PX, rx: 1 }),
    ),
    ...visibleBars(row.bars, scale, now).flatMap((drawn, number, all) =>
      wholeBar(drawn, row.bars, now, all[number + 1]?.[1].x ?? Infinity),
    ),
  ];
}

/**
 * Bars that are in view, without those that are hidden behind the one before: a loop of a thousand rounds has no more bars than
 * there are pixels.
 * @param {AttemptSpan[]} bars
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {[AttemptSpan, { x: number, width: number }][]}
 */
function visibleBars(bars, scale, now) {
  /** @type {[AttemptSpan, { x: number, width: number }][]} */
  const seen = [];
  /** @type {Map<string, number>} */
  const ends = new Map();
  for (const bar of bars) {
    const found = place(scale, bar.started_at, bar.ended_at ?? now);
    if (!found) continue;
    const look = `${bar.item} ${toneOf(bar.status)}`;
    if (found.x + found.width <= (ends.get(look) ?? -1)) continue;
    seen.push([bar, found]);
    ends.set(look, found.x + Math.max(1.5, found.width));
  }
  return seen;
}

/**
 * @param {[AttemptSpan, { x: number, width: number }]} drawn
 * @param {AttemptSpan[]} bars
 * @param {number} now
 * @param {number} next  where the next bar begins
 * @returns {Shape[]}
 */
function wholeBar([bar, found], bars, now, next) {
  const width = Math.max(3, found.width);
  const tone = toneOf(bar.status);
  const y = MIDDLE - BAR_PX / 2;
  const words = width < WORDS_PX ? undefined : barWords(bar, bars).find((one) => wide(one) + 12 <= width);
  const shapes = [barShape(bar, now, { x: found.x, width, y, height: BAR_PX, rx: 3 })];
  if (words) shapes.push(text(`bar ${bar.seq}`, `bar-words ink-${tone}`, found.x + 7, TEXT_Y, words));
  const end = found.x + width + 6;
  if (failsRun(bar) && end + wide("run failed") <= next)
    shapes.push(text(`end ${bar.seq}`, "words fail", end, TEXT_Y, "run failed"));
  return shapes;
}

/**
 * @param {AttemptSpan} bar
 * @param {number} now
 * @param {{ x: number, y: number, width: number, height: number, rx: number }} box
 * @returns {Shape}
 */
function barShape(bar, now, box) {
  const spent = duration((bar.ended_at ?? now) - bar.started_at);
  const item = (bar.item ?? null) === null ? "" : `item ${bar.item}, `;
  const tip = `${item}attempt ${bar.attempt}: ${bar.status}, ${spent}${bar.error ? `\n${bar.error}` : ""}`;
  const look = `bar ${toneOf(bar.status)}${bar.current === false ? " undone" : ""}`;
  const about = { class: look, "data-visit": visitOf(bar), "data-item": bar.item ?? null };
  const key = `${bar.seq} ${bar.item ?? ""}`;
  if (bar.status !== "crashed" || box.height < BAR_PX || box.width < 8) {
    return { key: `rect ${key}`, name: "rect", attributes: { ...about, ...box }, tip };
  }
  // Where its process died, the end is torn.
  const d = `M${box.x + 3} ${box.y}h${box.width - 3}l-4 4 4 4-4 4 4 4H${box.x + 3}q-3 0-3-3v-10q0-3 3-3z`;
  return { key: `path ${key}`, name: "path", attributes: { ...about, d }, tip };
}

/**
 * @param {WaitSpan} wait
 * @param {TimeScale} scale
 * @param {number} now
 * @param {number} y
 * @param {boolean} [isThin]  it has no room for words
 * @returns {Shape[]}
 */
function waitShapes(wait, scale, now, y, isThin = false) {
  const found = place(scale, wait.started_at, wait.ended_at ?? now);
  if (!found) return [];
  const key = `wait ${wait.seq} ${wait.item ?? ""} ${wait.kind}`;
  const asks = wait.kind === "question";
  const undone = wait.current === false ? " undone" : "";
  const look = `wait${asks ? " ask" : ""}${undone}`;
  const end = found.x + found.width;
  if (asks) {
    const line = path(key, look, `M${found.x + 7} ${y}H${Math.max(end, found.x + 9)}`, wait.reason);
    return isThin ? [line] : [line, path(`mark ${key}`, `gem ask${undone}`, diamond(found.x, y), wait.reason)];
  }
  const room = widestRoom(scale, found.x, end);
  const words = isThin ? undefined : waitWords(wait).find((one) => wide(one) + 20 <= room.width);
  if (!words) return [path(key, look, `M${found.x} ${y}H${end}`, wait.reason)];
  const middle = at(room.x + room.width / 2);
  const half = wide(words) / 2 + 5;
  const d = `M${found.x} ${y}H${at(middle - half)}M${at(middle + half)} ${y}H${end}`;
  return [path(key, look, d, wait.reason), text(key, "words", middle, y + 4, words, "middle")];
}

/** What to write on a wait, longest first: "retry in 5 s", or at least its seconds. @param {WaitSpan} wait */
const waitWords = (wait) => (wait.kind === "retry" ? [wait.reason, wait.reason.replace(/^retry in /, "")] : [wait.reason]);

/**
 * The widest part of a line that crosses no folded time.
 * @param {TimeScale} scale
 * @param {number} from
 * @param {number} to
 */
function widestRoom(scale, from, to) {
  let room = { x: from, width: 0 };
  for (const stretch of scale.stretches) {
    const [x, end] = [Math.max(from, stretch.x), Math.min(to, stretch.x + stretch.width)];
    if (!stretch.folded && end - x > room.width) room = { x, width: end - x };
  }
  return room;
}

/** @param {number} x @param {number} y */
const diamond = (x, y) => `M${x} ${y - 5}l5 5-5 5-5-5z`;

/**
 * How many items of a large fan-out ran at a time, and in red how many failed.
 * @param {ItemSpan} band
 * @param {TimeScale} scale
 * @param {number} now
 * @returns {Shape[]}
 */
function bandShapes(band, scale, now) {
  const end = band.ended_at ?? now;
  if (!place(scale, band.started_at, end)) return [];
  const most = Math.max(1, ...band.running, ...band.failed);
  const part = (end - band.started_at) / Math.max(1, band.running.length);
  const bottom = ROW_PX - 5;
  /** @param {number[]} counts */
  const columns = (counts) =>
    counts
      .map((count, number) => {
        if (!count) return "";
        const x = at(scale.xOf(band.started_at + number * part));
        const next = at(scale.xOf(band.started_at + (number + 1) * part));
        return `M${x} ${bottom}v${at(-Math.max(2, (count / most) * 20))}H${Math.max(next, x + 1)}V${bottom}z`;
      })
      .join("");
  const undone = band.current === false ? " undone" : "";
  const tip = `${countWords(band)}; ${band.attempts} attempts`;
  return [
    path(`band ${band.seq}`, `bar ${band.ended_at === null ? "live" : "done"}${undone}`, columns(band.running), tip),
    path(`failed ${band.seq}`, `bar fail${undone}`, columns(band.failed), tip),
  ];
}

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
  let free = -Infinity; // where the label before ends
  holders.forEach((holder, number) => {
    const found = place(scale, holder.started_at, holder.ended_at ?? now);
    if (!found) return;
    const { x } = found;
    const width = Math.max(3, found.width);
    const [name, end] = [holderName(holder), holder.end ? (HOLDER_ENDS[holder.end] ?? "") : ""];
    const tip = `${name}${end && `, ${end}`}, ${span((holder.ended_at ?? now) - holder.started_at)}`;
    const attributes = { class: "held", x, y: HELD_Y - 3, width, height: 6, rx: 2 };
    shapes.push({ key: `rect ${holder.seq}`, name: "rect", attributes, tip });
    const after = holders[number + 1];
    const died = holder.end === "died";
    const inside = died && width >= wide(name) + wide(end) + 28;
    const room = Math.min(after ? scale.xOf(after.started_at) : Infinity, inside ? x + width - 14 - wide(end) : Infinity) - x - 4;
    const took = holders[number - 1]?.end === "died" ? `${name} took over` : name;
    const [long, plain] = end && !died ? [`${name}, ${end}`, name] : [took, name];
    const words = [long, plain, cutMiddle(name, Math.floor(room / 6.3))].find((one) => wide(one) <= room && one.length > 3);
    const clear = words && x >= free;
    if (clear) shapes.push(text(`held ${holder.seq}`, "words", x, HELD_Y - 8, words));
    if (clear) free = x + wide(words) + 4;
    if (!died) return;
    const cross = x + width + (inside ? -2 : 2);
    shapes.push(path(`died ${holder.seq}`, "cross", `M${cross - 4} ${HELD_Y - 4}l8 8m0-8l-8 8`, tip));
    const from = inside ? cross - 10 : Math.max(cross + 6, free);
    shapes.push(text(`killed ${holder.seq}`, "words ask", from, HELD_Y - 8, end, inside ? "end" : "start"));
    free = Math.max(free, inside ? from + 4 : from + wide(end) + 4);
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
  const seen = acts.flatMap((act) => {
    const found = place(scale, act.at, act.at);
    return found ? [{ act, x: found.x }] : [];
  });
  let free = 0;
  return seen.flatMap(({ act, x }, number) => {
    const whole = actWords(act) + (act.reason ? `: “${act.reason}”` : "");
    const until = seen[number + 1]?.x ?? width;
    const mark = path(`act ${act.seq}`, "gem accent", diamond(x, MIDDLE), whole);
    const words = [whole, actWords(act)];
    const right = words.find((one) => x + 10 + wide(one) <= until - 8);
    const left = words.find((one) => x - 10 - wide(one) >= free);
    free = right ? x + 10 + wide(right) : x + 8;
    if (right) return [mark, text(`act ${act.seq}`, "words accent", x + 10, TEXT_Y, right)];
    return left ? [mark, text(`act ${act.seq}`, "words accent", x - 10, TEXT_Y, left, "end")] : [mark];
  });
}

/**
 * Times along the axis, and how long each folded time is. A label that would touch another is left out.
 * @param {TimeScale} scale
 * @param {number} width
 * @param {{ seq: number, at: number } | null} [checkpoint]  its name is on the axis too
 * @returns {Shape[]}
 */
export function axisShapes(scale, width, checkpoint = null) {
  const head = checkpoint && place(scale, checkpoint.at, checkpoint.at);
  /** @type {[number, number][]} */
  const taken = head ? [[head.x - 20, head.x + 20]] : [];
  /** @type {Shape[]} */
  const shapes = [];
  /** @param {string} look @param {number} x @param {string} words @param {"start" | "middle"} anchor */
  const add = (look, x, words, anchor) => {
    const from = anchor === "start" ? x : x - wide(words) / 2;
    const to = from + wide(words);
    if (to > width + 8 || taken.some(([start, end]) => from < end + 6 && to > start - 6)) return;
    taken.push([from, to]);
    shapes.push(text(`${look} ${at(x)}`, look, at(x), 16, words, anchor));
  };
  const folds = scale.stretches.filter((one) => one.folded);
  for (const fold of folds) add("fold-words", fold.x + fold.width / 2, fold.words, "middle");
  const opens = new Set(scale.stretches.map((one) => one.x));
  const [first, others] = [scale.ticks.filter((tick) => opens.has(tick.x)), scale.ticks.filter((tick) => !opens.has(tick.x))];
  for (const tick of first) add("tick", tick.x ? tick.x + 8 : 0, tick.words, tick.x ? "start" : "middle");
  for (const tick of others) add("tick", tick.x, tick.words, "middle");
  return shapes;
}

/** The lines below the times. @param {TimeScale} scale @returns {Shape[]} */
export const gridShapes = (scale) => scale.ticks.map((tick, number) => upright(`grid ${number}`, "grid", at(tick.x)));

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
  /** @param {number} time */
  const x = (time) => place(scale, time, time)?.x ?? null;
  /** @type {(key: string, look: string, x: number, width: number | string, y?: number, height?: number | string) => Shape} */
  const box = (key, look, x, width, y = AXIS_PX, height = "100%") => ({
    key,
    name: "rect",
    attributes: { class: look, x, width, y, height },
  });
  const shapes = acts.flatMap((act) => {
    const found = x(act.at);
    return found === null ? [] : [upright(`act ${act.seq}`, "hairline", found)];
  });
  const present = now === null ? null : x(now);
  if (present !== null && !checkpoint) shapes.push(upright("now", "playhead", present));
  const head = checkpoint && x(checkpoint.at);
  if (checkpoint && head !== null) {
    const words = `@${checkpoint.seq}`;
    const half = wide(words) / 2 + 7;
    shapes.push(
      box("veil", "veil", head, "100%"),
      upright("head", "playhead", head),
      box("place", "place", head - half, 2 * half, 3, 19),
      text("place", "place-words", head, 17, words, "middle"),
    );
  }
  if (marked) shapes.push(box("marked", "marked", Math.min(...marked), Math.abs(marked[1] - marked[0])));
  return shapes;
}
