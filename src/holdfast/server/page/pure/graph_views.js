// What the graph shows of a run: which lines it took, what each box says, which nodes are drawn beside their stack, and where an
// arrow key leads.

import { isButton } from "./graph_shapes.js";
import { DONE, countNotes, viewNode } from "./node_views.js";
import { ruleWords } from "./reasons.js";
import { lookOfNode } from "./statuses.js";
import { cutMiddle, number } from "./words.js";

/**
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../shapes.js").EdgeLine} EdgeLine
 * @typedef {import("../shapes.js").FlowPicture} FlowPicture
 * @typedef {import("./graph_shapes.js").Layout} Layout
 * @typedef {import("./graph_shapes.js").Net} Net
 * @typedef {Pick<import("../shapes.js").PictureStates, "nodes" | "taken" | "chosen" | "not_taken">} States
 *
 * @typedef {object} GraphValue
 * @property {FlowPicture} picture
 * @property {States} states
 * @property {number} now  the time at which the run is shown: the present, or that of the checkpoint
 * @property {number | null} at  the checkpoint that is shown; null: now
 * @property {string | null} node  the chosen node
 * @property {ReadonlySet<string>} [again]  nodes that would run again from the checkpoint
 *
 * @typedef {{ name: string, notes: import("./node_views.js").Note[], act: string, ahead: boolean }} GroupView
 */

/** The nodes of a box. @param {Box | undefined} box */
const membersIn = (box) => (box?.members?.length ? box.members : box ? [box.name] : []);

/**
 * The lines of these edges: of those that the run took, or decided against. Those of nodes that are drawn as one begin and end at
 * their box.
 * @param {Layout} layout
 * @param {[string, string][]} [edges]
 * @returns {Set<EdgeLine>}
 */
export function edgesOf({ boxes, lines }, edges = []) {
  const holders = new Map(boxes.flatMap((box) => (box.members ?? []).map((name) => [name, box.name])));
  const pairs = new Set(edges.map((pair) => pair.map((name) => holders.get(name) ?? name).join("\n")));
  return new Set(lines.filter(({ source, target }) => pairs.has(`${source}\n${target}`)));
}

/**
 * The marks on the lines of a plan: its guards and error edges, and the verdict of each.
 * @param {Layout} layout
 * @param {import("../shapes.js").EdgeRule[]} [rules]
 * @param {Set<EdgeLine>} taken
 * @param {Set<EdgeLine>} off
 */
export function ruleMarks({ lines }, taken, off, rules = []) {
  const found = new Map(rules.map((rule) => [`${rule.source}\n${rule.target}`, rule]));
  return lines.flatMap((line) => {
    const rule = found.get(`${line.source}\n${line.target}`);
    const isTaken = taken.has(line) || (off.has(line) ? false : undefined);
    return rule ? [{ line, isTaken, isError: Boolean(rule.errors), words: ruleWords(rule, isTaken) }] : [];
  });
}

/**
 * What a node's box says.
 * @param {GraphValue} value
 * @param {Net} net
 * @param {string} name
 */
export function viewBox({ picture, states, now, again }, net, name) {
  const before = (net.into.get(name) ?? []).flatMap((line) =>
    line.kind === "forward" ? membersIn(net.boxes.get(line.source)) : [],
  );
  return viewNode(name, picture.nodes[name], states.nodes[name], {
    now,
    again: again?.has(name),
    chosen: states.chosen[name],
    loops: net.from.get(name)?.some((line) => line.kind === "loop"),
    missing: before.some((one) => states.nodes[one]) ? before.filter((one) => !DONE.has(states.nodes[one]?.status)).length : 0,
  });
}

/**
 * What the box of several nodes says: of a stack of nodes with the same neighbours, or of a completed stretch.
 * @param {Box} box
 * @param {States} states
 * @param {boolean} isOpen
 * @returns {GroupView}
 */
export function viewGroup({ kind, members = [] }, { nodes }, isOpen) {
  const count = number(members.length);
  /** @param {number} max */
  const ends = (max) => [members[0], members[members.length - 1]].map((name) => cutMiddle(name, max)).join(" … ");
  if (kind === "fold")
    return { name: `${count} completed`, notes: [{ words: ends(8), tone: "rest" }], act: "open", ahead: false };
  return {
    name: ends(11),
    notes: countNotes(members.map((name) => lookOfNode(nodes[name]))),
    act: isOpen ? "close" : `open ${count}`,
    ahead: !members.some((name) => nodes[name]),
  };
}

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
    .flatMap((box) => box.members ?? [])
    .filter((name) => nodes[name] && !DONE.has(nodes[name].status) && nodes[name].status !== "pending")
    .sort((a, b) => rank(a) - rank(b));
  return [...new Set([...before, ...busy])].slice(0, Math.max(ALONE_MAX, before.length));
}

/**
 * Where an arrow key leads from a box: up and down along lines, those that were taken first; left and right in the order of
 * reading, also through an open stack.
 * @param {Net} net
 * @param {Set<EdgeLine>} taken
 * @param {string} name
 * @param {string} key  "up", "down", "left" or "right"
 * @returns {string | undefined}
 */
export function stepFrom(net, taken, name, key) {
  const all = [...net.boxes.values()];
  const frames = new Set(all.map((box) => box.stack));
  const boxes = all.filter((box) => isButton(box) && !frames.has(box.name));
  const isOn = key === "right" || key === "down";
  const at = boxes.findIndex((box) => box.name === name);
  if (key === "left" || key === "right") return boxes[at + (isOn ? 1 : -1)]?.name;
  /** @param {EdgeLine} line */
  const rank = (line) => (line.kind === "loop" ? 2 : taken.has(line) ? 0 : 1);
  return ((isOn ? net.from : net.into).get(boxes[at]?.stack ?? name) ?? [])
    .toSorted((a, b) => rank(a) - rank(b))
    .map((line) => (isOn ? line.target : line.source))
    .map((end) => boxes.find((box) => box.name === end || box.stack === end)?.name)
    .find(Boolean);
}
