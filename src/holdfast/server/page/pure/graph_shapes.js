// The shapes of the graph, from the geometry that the server made: paths, marks of items, the scale, and the boxes that stand for
// long stretches of completed nodes.

import { groupBy } from "./groups.js";

/**
 * @typedef {import("../shapes.js").Point} Point
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../shapes.js").EdgeLine} EdgeLine
 * @typedef {{ width: number, height: number, boxes: Box[], lines: EdgeLine[] }} Layout
 *
 * @typedef {object} Net  a layout, found by name
 * @property {Map<string, Box>} boxes
 * @property {Map<string, EdgeLine[]>} into
 * @property {Map<string, EdgeLine[]>} from
 */

/**
 * @param {Layout} layout
 * @returns {Net}
 */
export const netOf = ({ boxes, lines }) => ({
  boxes: new Map(boxes.map((box) => [box.name, box])),
  into: groupBy(lines, (line) => line.target),
  from: groupBy(lines, (line) => line.source),
});

/** Whether a box is a button: START and END are not. @param {Box} box */
export const isButton = ({ kind }) => kind !== "start" && kind !== "end";

const CORNER = 8;

/** The path of a line, with round corners. @param {{ points: Point[] }} line */
export function linePath({ points }) {
  const corners = points.slice(1, -1).map((here, at) => {
    const [before, after] = [points[at], points[at + 2]];
    const reach = Math.min(CORNER, length(before, here) / 2, length(here, after) / 2);
    return `L${towards(here, before, reach)}Q${here.join(" ")} ${towards(here, after, reach)}`;
  });
  return `M${points[0].join(" ")}${corners.join("")}L${points[points.length - 1].join(" ")}`;
}

/** The path of the arrowhead at the end of a line. @param {{ points: Point[] }} line */
export function headPath({ points }) {
  const [[fromX, fromY], [x, y]] = points.slice(-2);
  const [across, down] = [4 * Math.sign(x - fromX), 4 * Math.sign(y - fromY)];
  return `M${x - across + down} ${y - down - across}L${x} ${y}L${x - across - down} ${y - down + across}`;
}

/**
 * START and END as circles, and the diamond of a branch; nothing for any other box.
 * @param {Box} box
 */
export function signPath(box) {
  const { kind, x, y, w, diamond } = box;
  if (diamond) return `M${diamond[0]} ${diamond[1] - 6}l6 6-6 6-6-6z`;
  /** @param {number} r */
  const circle = (r) => `M${x + w / 2 - r} ${y + w / 2}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0-${2 * r} 0`;
  return isButton(box) ? "" : circle(w / 2 - 1) + (kind === "end" ? circle(1) : "");
}

const [MARK_R, MARK_UP] = [5.5, 16];

/**
 * The mark on the line of a guard, shortly before its end: a tick if it was taken, a cross if not, a ring if that is open.
 * @param {{ points: Point[] }} line
 * @param {boolean | undefined} isTaken
 */
export function markPath({ points }, isTaken) {
  const [here, end] = points.slice(-2);
  const [x, y] = towards(end, here, Math.min(MARK_UP, length(here, end) / 2))
    .split(" ")
    .map(Number);
  const ring = `M${x - MARK_R} ${y}a${MARK_R} ${MARK_R} 0 1 0 ${2 * MARK_R} 0a${MARK_R} ${MARK_R} 0 1 0-${2 * MARK_R} 0`;
  const sign = isTaken ? `m2.8 .3 2 2 3.6-4` : `m3.3-2.2 4.4 4.4m0-4.4-4.4 4.4`;
  return isTaken === undefined ? ring : ring + sign;
}

/** @param {Point} a @param {Point} b */
const length = (a, b) => Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]);

/** @param {Point} from @param {Point} to @param {number} reach */
const towards = ([x, y], to, reach) => `${x + reach * Math.sign(to[0] - x)} ${y + reach * Math.sign(to[1] - y)}`;

const COLUMNS = 50;

/**
 * The items of a fan-out as one path for each status, in at most 4 rows of 50 marks.
 * @param {string[]} marks
 * @param {number} width  of the box
 * @returns {[status: string, path: string][]}
 */
export function markPaths(marks, width) {
  const columns = Math.min(COLUMNS, marks.length);
  const step = (width - 42) / columns;
  const [wide, high] = [Math.min(step * 0.8, step - 0.5).toFixed(2), marks.length > columns ? 2 : 5];
  /** @param {number} at */
  const cell = (at) =>
    `M${((at % columns) * step).toFixed(2)} ${(Math.floor(at / columns) * (high + 0.6)).toFixed(1)}h${wide}v${high}h-${wide}z`;
  /** @type {Map<string, string>} */
  const paths = new Map();
  marks.forEach((status, at) => paths.set(status, (paths.get(status) ?? "") + cell(at)));
  return [...paths];
}

const [FAN_W, PANE_W] = [314, 360];

/**
 * The box of a large fan-out: wider where nothing is beside it, so that its counts have room.
 * @param {Layout} layout
 * @param {Box} box
 * @returns {Box}
 */
export function widenBox({ width, boxes, lines }, box) {
  const [top, bottom, middle] = [box.y, box.y + box.h, box.x + box.w / 2];
  const isClear =
    boxes.every((one) => one.name === box.name || one.y >= bottom || one.y + one.h <= top) &&
    lines.every(({ points }) => points.every(([, y]) => y <= top) || points.every(([, y]) => y >= bottom));
  const air = Math.max(0, PANE_W - width) / 2;
  const w = isClear ? Math.max(box.w, Math.min(FAN_W, 2 * (air + Math.min(middle, width - middle)))) : box.w;
  return { ...box, x: middle - w / 2, w };
}

/**
 * The scale at which a picture fits the width that it has, between 60 and 100 %. Beyond that it scrolls.
 * @param {number} width
 * @param {number} room
 */
export const fitScale = (width, room) => Math.min(1, Math.max(0.6, room / width));

// --- stretches of completed nodes --------------------------------------------------------------------------------------

/** A picture with fewer boxes shows them all. */
const FOLDED_FROM = 60;
const [STRETCH_LEAST, FOLD_H, AIR] = [3, 48, 12];

/**
 * The picture with a box in the place of each stretch of completed nodes that lead straight on, without a branch. The rows that
 * become empty are taken out; boxes beside a stretch keep theirs.
 * @param {Layout} picture
 * @param {(node: string) => boolean} isDone
 * @param {Set<string>} open  names of stretches that the reader opened
 * @returns {Layout}
 */
export function foldCompleted(picture, isDone, open) {
  if (picture.boxes.length < FOLDED_FROM) return picture;
  /** Node of a stretch -> its box. @type {Map<string, Box>} */
  const foldOf = new Map();
  /** Rows of pixels [from, to) that a stretch does not need. @type {[number, number][]} */
  const spare = [];
  for (const stretch of findStretches(picture, isDone)) {
    const [first, last] = [stretch[0], stretch[stretch.length - 1]];
    const members = stretch.map((box) => box.name);
    /** @type {Box} */
    const fold = { ...first, name: `fold:${first.name}`, kind: "fold", h: FOLD_H, members };
    if (members.length < STRETCH_LEAST || open.has(fold.name)) continue;
    for (const name of members) foldOf.set(name, fold);
    spare.push([first.y + FOLD_H + AIR, last.y + last.h + AIR]);
  }
  if (!spare.length) return picture;
  const boxes = [...new Set(picture.boxes.map((box) => foldOf.get(box.name) ?? box))];
  const lines = picture.lines.flatMap((line) => {
    const [from, to] = [foldOf.get(line.source), foldOf.get(line.target)];
    if (from && from === to) return [];
    const [[x, y], ...points] = line.points;
    /** @type {Point} */
    const start = [x, from ? from.y + FOLD_H : y];
    return [{ ...line, source: from?.name ?? line.source, target: to?.name ?? line.target, points: [start, ...points] }];
  });
  return moveUp({ ...picture, boxes, lines }, spare);
}

/**
 * @param {Layout} picture
 * @param {(node: string) => boolean} isDone
 */
function findStretches(picture, isDone) {
  const { boxes, into, from } = netOf(picture);
  /** Box -> the box to which it leads straight on. @type {Map<Box | undefined, Box>} */
  const next = new Map();
  for (const { source, target, kind, points } of picture.lines) {
    const ends = [boxes.get(source), boxes.get(target)];
    // A line that goes around other boxes would run behind them, if a stretch were drawn in its place.
    const isStraight = points.every(([x]) => x === points[0][0]);
    const isOnly = kind === "forward" && from.get(source)?.length === 1 && into.get(target)?.length === 1;
    const areDone = ends.every((box) => box?.kind === "node" && !box.stack && isDone(box.name));
    if (isOnly && isStraight && areDone && ends[1]) next.set(ends[0], ends[1]);
  }
  const later = new Set(next.values());
  return picture.boxes
    .filter((box) => !later.has(box))
    .map((box) => {
      const stretch = [box];
      for (let on = next.get(box); on; on = next.get(on)) stretch.push(on);
      return stretch;
    });
}

/**
 * Take out the spare rows of pixels in which nothing is drawn, and move up what is below them.
 * @param {Layout} picture
 * @param {[number, number][]} spare
 * @returns {Layout}
 */
function moveUp({ width, height, boxes, lines }, spare) {
  /** For each row of pixels, 1 if it is taken out. */
  const out = new Uint8Array(height + 1);
  for (const [start, end] of spare) out.fill(1, start, end);
  /** @param {number} y @param {number} [below] */
  const keep = (y, below = y) => out.fill(0, Math.max(0, y - AIR), below + AIR);
  for (const { y, h, diamond } of boxes) {
    keep(y, y + h);
    if (diamond) keep(diamond[1]);
  }
  for (const { points, badge } of lines) {
    if (badge) keep(badge[1]);
    points.forEach(([, y], at) => y === points[at - 1]?.[1] && keep(y)); // a horizontal piece
  }
  let gone = 0;
  const up = Array.from(out, (one, y) => y + one - (gone += one));
  /** @type {(point: Point) => Point} */
  const lift = ([x, y]) => [x, up[y]];
  return {
    width,
    height: up[height],
    boxes: boxes.map((box) => ({ ...box, y: up[box.y], diamond: box.diamond && lift(box.diamond) })),
    lines: lines.map((line) => ({ ...line, points: line.points.map(lift), badge: line.badge && lift(line.badge) })),
  };
}
