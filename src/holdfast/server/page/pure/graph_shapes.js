// The shapes of the graph, from the geometry that the server made: paths, marks of items, the scale, and the boxes that stand for
// long stretches of completed nodes.

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
export function netOf(layout) {
  /** @type {Net} */
  const net = { boxes: new Map(layout.boxes.map((box) => [box.name, box])), into: new Map(), from: new Map() };
  for (const line of layout.lines) {
    collect(net.into, line.target, line);
    collect(net.from, line.source, line);
  }
  return net;
}

/** @param {Map<string, EdgeLine[]>} groups @param {string} key @param {EdgeLine} line */
function collect(groups, key, line) {
  const group = groups.get(key);
  if (group) group.push(line);
  else groups.set(key, [line]);
}

const CORNER = 8;

/**
 * The path of a line, with round corners.
 * @param {Point[]} points
 */
export function linePath(points) {
  const parts = [`M${points[0].join(" ")}`];
  for (let at = 1; at < points.length - 1; at += 1) {
    const [before, here, after] = points.slice(at - 1, at + 2);
    const reach = Math.min(CORNER, length(before, here) / 2, length(here, after) / 2);
    parts.push(`L${towards(here, before, reach)}Q${here.join(" ")} ${towards(here, after, reach)}`);
  }
  return `${parts.join("")}L${points[points.length - 1].join(" ")}`;
}

/**
 * The path of the arrowhead at the end of a line.
 * @param {Point[]} points
 */
export function headPath(points) {
  const [[fromX, fromY], [x, y]] = points.slice(-2);
  const [across, down] = [Math.sign(x - fromX), Math.sign(y - fromY)];
  const left = `${x - 4 * (across - down)} ${y - 4 * (down + across)}`;
  return `M${left}L${x} ${y}L${x - 4 * (across + down)} ${y - 4 * (down - across)}`;
}

/**
 * START and END as circles, and the diamond of a branch; null for any other box.
 * @param {Box} box
 */
export function signPath({ kind, x, y, w, diamond }) {
  if (diamond) return `M${diamond[0]} ${diamond[1] - 6}l6 6-6 6-6-6z`;
  /** @param {number} r */
  const circle = (r) => `M${x + w / 2 - r} ${y + w / 2}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0-${2 * r} 0`;
  return kind === "start" ? circle(w / 2 - 1) : kind === "end" ? circle(w / 2 - 1) + circle(1) : null;
}

/** @param {Point} a @param {Point} b */
const length = (a, b) => Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]);

/** @param {Point} from @param {Point} to @param {number} reach */
const towards = ([x, y], to, reach) => `${x + reach * Math.sign(to[0] - x)} ${y + reach * Math.sign(to[1] - y)}`;

const [CELLS_MAX, COLUMNS, MARKS_W] = [8, 50, 122];

/**
 * The items of a fan-out as one path for each status: up to 8 have a cell each, more are at most 4 rows of 50 marks.
 * @param {import("../shapes.js").ItemStatus[]} marks
 * @returns {[status: string, path: string][]}
 */
export function markPaths(marks) {
  const columns = marks.length <= CELLS_MAX ? marks.length : Math.min(COLUMNS, marks.length);
  const rows = Math.ceil(marks.length / columns);
  const step = MARKS_W / columns;
  const [wide, high] = [Math.min(step * 0.8, step - 0.5), rows > 1 ? 2 : 5];
  /** @type {Map<string, string>} */
  const paths = new Map();
  marks.forEach((status, at) => {
    const [x, y] = [(at % columns) * step, Math.floor(at / columns) * (high + 0.6)];
    paths.set(
      status,
      `${paths.get(status) ?? ""}M${x.toFixed(2)} ${y.toFixed(1)}h${wide.toFixed(2)}v${high}h-${wide.toFixed(2)}z`,
    );
  });
  return [...paths];
}

/**
 * The scale at which a picture fits the width that it has, between 60 and 100 %. Beyond that it scrolls.
 * @param {number} width
 * @param {number} room
 */
export const fitScale = (width, room) => Math.min(1, Math.max(0.6, room / Math.max(1, width)));

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
  const stretches = findStretches(picture, isDone).filter((stretch) => !open.has(foldName(stretch)));
  if (!stretches.length) return picture;
  /** Node of a stretch -> its box. @type {Map<string, Box>} */
  const foldOf = new Map();
  /** @type {[number, number][]} */
  const hidden = [];
  for (const stretch of stretches) {
    const [first, last] = [stretch[0], stretch[stretch.length - 1]];
    const members = stretch.map((box) => box.name);
    /** @type {Box} */
    const fold = { ...first, name: foldName(stretch), kind: "fold", h: FOLD_H, members };
    for (const name of members) foldOf.set(name, fold);
    hidden.push([first.y + FOLD_H + AIR, last.y + last.h + AIR]);
  }
  const boxes = [...new Set(picture.boxes.map((box) => foldOf.get(box.name) ?? box))];
  const lines = picture.lines.flatMap((line) => {
    const [from, to] = [foldOf.get(line.source), foldOf.get(line.target)];
    if (from && from === to) return [];
    const points = from ? [/** @type {Point} */ ([line.points[0][0], from.y + FOLD_H]), ...line.points.slice(1)] : line.points;
    return [{ ...line, source: from?.name ?? line.source, target: to?.name ?? line.target, points }];
  });
  return moveUp(picture, boxes, lines, hidden);
}

/** @param {Box[]} stretch */
const foldName = (stretch) => `fold:${stretch[0].name}`;

/**
 * @param {Layout} picture
 * @param {(node: string) => boolean} isDone
 * @returns {Box[][]}
 */
function findStretches(picture, isDone) {
  const { boxes, into, from } = netOf(picture);
  /** @type {(box: Box | undefined) => Box | undefined} */
  const follow = (box) => {
    const lines = (box && from.get(box.name)) ?? [];
    const next = boxes.get(lines[0]?.target);
    const isStraight = lines.length === 1 && lines[0].kind === "forward" && !lines[0].branch && next?.x === box?.x;
    return isStraight && next && isPlain(next) && into.get(next.name)?.length === 1 ? next : undefined;
  };
  /** @param {Box} box */
  const isPlain = (box) => box.kind === "node" && !box.stack && isDone(box.name);
  const found = [];
  const met = new Set();
  for (const box of picture.boxes) {
    const before = boxes.get(into.get(box.name)?.[0]?.source ?? "");
    if (!isPlain(box) || met.has(box) || (before && isPlain(before) && follow(before) === box)) continue;
    const stretch = [];
    for (let next = /** @type {Box | undefined} */ (box); next && !met.has(next); next = follow(next)) {
      stretch.push(next);
      met.add(next);
    }
    if (stretch.length >= STRETCH_LEAST) found.push(stretch);
  }
  return found;
}

/**
 * Take out the rows of `hidden` in which nothing else is drawn, and move up what is below them.
 * @param {Layout} picture
 * @param {Box[]} boxes
 * @param {EdgeLine[]} lines
 * @param {[number, number][]} hidden
 * @returns {Layout}
 */
function moveUp({ width, height }, boxes, lines, hidden) {
  /** For each row of pixels, 1 if it is taken out. */
  const out = new Uint8Array(height + 1);
  for (const [start, end] of hidden) out.fill(1, start, end);
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
  const up = Array.from(out, (one, y) => {
    gone += one;
    return y + one - gone;
  });
  /** @type {(point: Point) => Point} */
  const lift = ([x, y]) => [x, up[y]];
  return {
    width,
    height: up[height],
    boxes: boxes.map((box) => ({ ...box, y: up[box.y], diamond: box.diamond && lift(box.diamond) })),
    lines: lines.map((line) => ({ ...line, points: line.points.map(lift), badge: line.badge && lift(line.badge) })),
  };
}
