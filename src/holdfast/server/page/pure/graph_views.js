// What the graph shows of a run: which lines it took, what each box says, which nodes are drawn beside their stack, and where an
// arrow key leads.

import { DONE, countNotes, viewNode } from "./node_views.js";
import { lookOfNode } from "./statuses.js";
import { cutMiddle, number, plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../shapes.js").EdgeLine} EdgeLine
 * @typedef {import("../shapes.js").FlowPicture} FlowPicture
 * @typedef {import("./graph_shapes.js").Layout} Layout
 * @typedef {import("./graph_shapes.js").Net} Net
 * @typedef {Pick<import("../shapes.js").PictureStates, "nodes" | "taken" | "chosen">} States
 *
 * @typedef {object} GraphValue
 * @property {FlowPicture} picture
 * @property {States} states
 * @property {number} now  the time at which the run is shown: the present, or that of the checkpoint
 * @property {number | null} at  the checkpoint that is shown; null: now
 * @property {string | null} node  the chosen node
 * @property {ReadonlySet<string>} [again]  nodes that would run again from the checkpoint
 *
 * @typedef {{ title: string, notes: import("./node_views.js").Note[], reached: boolean, act: string }} GroupView
 */

/** Member -> the box at which its lines begin and end. @param {Box[]} boxes */
export function holdersOf(boxes) {
  /** @type {Map<string, string>} */
  const holders = new Map();
  for (const box of boxes) for (const name of box.members ?? []) holders.set(name, box.name);
  return holders;
}

/**
 * The lines that the run took. A live event tells which node it concerns, not which edge was taken; so a line is also taken if
 * its node is done and leads on without a branch, or if it is the only one to a node that was reached.
 * @param {Layout} layout
 * @param {Net} net
 * @param {States} states
 * @returns {Set<EdgeLine>}
 */
export function takenLines(layout, net, { nodes, taken }) {
  const holders = holdersOf(layout.boxes);
  const key = (/** @type {string} */ a, /** @type {string} */ b) => `${holders.get(a) ?? a}\n${holders.get(b) ?? b}`;
  const pairs = new Set(taken.map(([source, target]) => key(source, target)));
  return new Set(
    layout.lines.filter((line) => {
      if (pairs.has(`${line.source}\n${line.target}`)) return true;
      if (!line.branch) return membersOf(net, line.source).some((name) => DONE.has(nodes[name]?.status));
      return net.into.get(line.target)?.length === 1 && membersOf(net, line.target).some((name) => nodes[name]);
    }),
  );
}

/** The nodes of a box. @param {Net} net @param {string} name */
function membersOf(net, name) {
  const members = net.boxes.get(name)?.members ?? [];
  return members.length ? members : [name];
}

/**
 * What a node's box says.
 * @param {GraphValue} value
 * @param {Net} net
 * @param {string} name
 */
export function viewBox({ picture, states, now, again }, net, name) {
  const mark = states.nodes[name];
  return viewNode(name, picture.nodes[name], mark, {
    now,
    again: again?.has(name),
    chosen: states.chosen[name],
    loops: net.from.get(name)?.some((line) => line.kind === "loop"),
    missing: mark ? 0 : missingBefore(net, states, name),
  });
}

/**
 * How many nodes a node waits for, if some of those that lead to it were reached.
 * @param {Net} net
 * @param {States} states
 * @param {string} name
 */
function missingBefore(net, { nodes }, name) {
  const plain = (net.into.get(name) ?? []).filter((line) => line.kind === "forward" && !line.branch);
  const before = plain.flatMap((line) => membersOf(net, line.source));
  return before.some((one) => nodes[one]) ? before.filter((one) => !DONE.has(nodes[one]?.status)).length : 0;
}

/**
 * What the box of several nodes says: of a stack of nodes with the same neighbours, or of a completed stretch.
 * @param {Box} box
 * @param {States} states
 * @param {boolean} isOpen
 * @returns {GroupView}
 */
export function viewGroup(box, { nodes }, isOpen) {
  const members = box.members ?? [];
  const looks = members.map((name) => lookOfNode(nodes[name]));
  if (box.kind === "fold") {
    return {
      title: `${number(members.length)} completed`,
      notes: [{ words: endsOf(members, 8), tone: "rest" }],
      reached: true,
      act: "open",
    };
  }
  return {
    title: endsOf(members, 11),
    notes: countNotes(looks),
    reached: members.some((name) => nodes[name]),
    act: isOpen ? "close" : `open ${number(members.length)}`,
  };
}

/** @param {string[]} members @param {number} max */
const endsOf = (members, max) => `${cutMiddle(members[0], max)} … ${cutMiddle(members[members.length - 1], max)}`;

const ALONE_MAX = 8;

/**
 * Which members of stacks are drawn beside their stack: those that run, wait or failed, failures first. One that is drawn alone
 * stays so: nothing moves because a node completes.
 * @param {FlowPicture} picture
 * @param {States["nodes"]} nodes
 * @param {string[]} before  those that are drawn alone already
 */
export function aloneNodes(picture, nodes, before) {
  const rank = (/** @type {string} */ name) => ["fail", "ask", "accent", "rest"].indexOf(lookOfNode(nodes[name]).tone);
  const busy = picture.boxes
    .flatMap((box) => (box.kind === "stack" ? (box.members ?? []) : []))
    .filter((name) => nodes[name] && !DONE.has(nodes[name].status) && nodes[name].status !== "pending")
    .sort((a, b) => rank(a) - rank(b));
  return [...new Set([...before, ...busy])].slice(0, Math.max(ALONE_MAX, before.length));
}

/**
 * "6 nodes, 1 loop", or at which checkpoint the graph is shown.
 * @param {FlowPicture} picture
 * @param {number | null} at
 */
export function graphSummary(picture, at) {
  if (at !== null) return `as it was at @${at}`;
  const loops = picture.lines.filter((line) => line.badge).length;
  return [plural(Object.keys(picture.nodes).length, "node"), ...(loops ? [plural(loops, "loop")] : [])].join(", ");
}

/**
 * All nodes in the order of the graph, for the table.
 * @param {FlowPicture} picture
 */
export function nodesInOrder(picture) {
  const drawn = picture.boxes.flatMap((box) => (box.members?.length ? box.members : box.kind === "node" ? [box.name] : []));
  return [...new Set([...drawn, ...Object.keys(picture.nodes)])];
}

/**
 * Where an arrow key leads from a box: up and down along lines, those that were taken first; left and right in the row.
 * @param {Net} net
 * @param {Set<EdgeLine>} taken
 * @param {string} name
 * @param {string} key  "up", "down", "left" or "right"
 * @returns {string | null}
 */
export function stepFrom(net, taken, name, key) {
  const here = net.boxes.get(name);
  if (!here) return null;
  const boxes = [...net.boxes.values()];
  const beside = nearest(boxes, here, key);
  if (beside || key === "left" || key === "right") return beside;
  const isDown = key === "down";
  const lines = [...((isDown ? net.from : net.into).get(here.stack ?? name) ?? [])].sort(
    (a, b) => Number(a.kind === "loop") - Number(b.kind === "loop") || Number(taken.has(b)) - Number(taken.has(a)),
  );
  for (const line of lines) {
    const found = net.boxes.get(isDown ? line.target : line.source);
    const inside = found?.kind === "stack" ? boxes.find((box) => box.stack === found.name) : undefined;
    if (found && found.kind !== "start" && found.kind !== "end") return (inside ?? found).name;
  }
  return null;
}

/**
 * The nearest box of the same row, or above or below in the same open stack.
 * @param {Box[]} boxes
 * @param {Box} here
 * @param {string} key
 */
function nearest(boxes, here, key) {
  const isSideways = key === "left" || key === "right";
  const sign = key === "right" || key === "down" ? 1 : -1;
  const distance = (/** @type {Box} */ box) => sign * (isSideways ? box.x - here.x : box.y - here.y);
  const candidates = boxes.filter((box) => {
    if (box === here || box.kind === "start" || box.kind === "end" || distance(box) <= 0) return false;
    if (boxes.some((one) => one.stack === box.name)) return false; // the frame of an open stack
    return isSideways
      ? box.y < here.y + here.h && here.y < box.y + box.h
      : here.stack && box.stack === here.stack && box.x === here.x;
  });
  return candidates.sort((a, b) => distance(a) - distance(b))[0]?.name ?? null;
}
