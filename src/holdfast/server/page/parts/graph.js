// The graph of a run: boxes and lines of its flow, with what the run has done. Boxes are buttons above one drawing of all lines.
// A live change touches the box that it concerns, and nothing else moves.

import {
  fitScale,
  foldCompleted,
  headPath,
  isButton,
  linePath,
  markPath,
  netOf,
  signPath,
  widenBox,
} from "../pure/graph_shapes.js";
import { aloneNodes, edgesOf, ruleMarks, stepFrom, viewBox, viewGroup } from "../pure/graph_views.js";
import { groupBy } from "../pure/groups.js";
import { nameOfKey } from "../pure/keys.js";
import { DONE } from "../pure/node_views.js";
import { drawing, element, keepChildren, setAttribute } from "../shell/elements.js";
import { createGraphNode } from "./graph_node.js";
import { createOverview } from "./graph_overview.js";

/**
 * @typedef {import("../pure/graph_views.js").GraphValue} GraphValue
 * @typedef {import("../pure/graph_shapes.js").Layout} Layout
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../shapes.js").EdgeLine} EdgeLine
 * @typedef {import("./graph_node.js").BoxView} BoxView
 * @typedef {{ line: EdgeLine, rounds: number, limit: number | null }} Badge
 * @typedef {{ open: string[], alone: string[] }} Shape  parameters of `GET pictures/{fingerprint}`
 *
 * @typedef {object} GraphOptions
 * @property {(node: string) => void} choose
 * @property {(node: string, iteration: number) => void} chooseIteration
 * @property {(shape: Shape) => void} reshape  the picture is wanted with other stacks open, or with other nodes drawn alone
 */

const ROUNDS_LISTED = 50;
/** Up to this many items, each has a cell. */
const CELLS_MAX = 8;

/**
 * @param {GraphOptions} options
 * @returns {import("../shell/elements.js").Part<GraphValue>}
 */
export function createGraph({ choose, chooseIteration, reshape }) {
  const lines = drawing("svg", { class: "graph-lines", "aria-hidden": "true" });
  const [nodes, badges] = [element("div", {}), element("div", {})];
  const picture = element("div", { class: "graph-picture" }, lines, nodes, badges);
  const scroller = element("div", { class: "graph-scroller" }, picture);
  const overview = createOverview(scroller);
  const host = element("div", { class: "graph", role: "group", "aria-label": "Graph" }, scroller, overview.element);

  /** @type {GraphValue} */
  let value;
  /** @type {Layout} */
  let layout = { width: 1, height: 1, boxes: [], lines: [] };
  let net = netOf(layout);
  /** The boxes that are buttons, in the order of `nodes`. @type {Box[]} */
  let buttons = [];
  /** @type {Set<EdgeLine>} */
  let taken = new Set();
  /** Which lines are drawn as taken. */
  let drawn = "";
  /** Nodes that are drawn beside their stack. @type {string[]} */
  let alone = [];
  /** The last picture for which another one was asked. @type {object | null} */
  let asked = null;
  /** @type {Set<string>} */
  const openFolds = new Set();
  let [current, scale] = ["", 1];
  /** The part in view. To ask for it while boxes are drawn would lay out the page in between. */
  let pane = { left: 0, top: 0, width: 0, height: 0 };

  const drawNodes = keepChildren(
    nodes,
    (/** @type {BoxView} */ view) => view.box.name,
    (view) => createGraphNode(view.box, act),
  );
  const drawBadges = keepChildren(
    badges,
    (/** @type {Badge} */ badge) => badge.line.target,
    () => createBadge(chooseIteration),
  );

  /** @param {string} name */
  const isDone = (name) => DONE.has(value.states.nodes[name]?.status);

  /** The stacks that are open. */
  const openStacks = () => new Set(layout.boxes.flatMap((box) => box.stack ?? []));

  /** @param {Box} box */
  function act({ name, kind, members = [] }) {
    current = name;
    if (kind === "node") return choose(name);
    if (kind === "stack") {
      const open = openStacks();
      if (!open.delete(name)) open.add(name);
      return reshape({ open: [...open], alone });
    }
    openFolds.add(name);
    layOut();
    moveTo(members[0]);
  }

  /** Find the places of all boxes again: of another picture, another checkpoint, or after a stretch was opened. */
  function layOut() {
    layout = foldCompleted(value.picture, isDone, openFolds);
    net = netOf(layout);
    buttons = layout.boxes.filter(isButton);
    drawn = "";
    fit();
  }

  function fit() {
    scale = fitScale(layout.width, pane.width || layout.width);
    Object.assign(picture.style, { zoom: scale, width: `${layout.width}px`, height: `${layout.height}px` });
  }

  const showOverview = () => overview.update(layout, scale, pane, value.states.nodes);
  new ResizeObserver(([{ contentRect }]) => {
    pane = { ...pane, width: contentRect.width, height: contentRect.height };
    if (!value) return;
    fit();
    showOverview();
    reveal(value.node);
  }).observe(scroller);
  scroller.addEventListener("scroll", () => {
    pane = { ...pane, left: scroller.scrollLeft, top: scroller.scrollTop };
    showOverview();
  });

  function draw() {
    const { states, node, picture: flow } = value;
    if (!net.boxes.has(current)) current = node && net.boxes.has(node) ? node : buttons[0]?.name;
    const open = openStacks();
    drawNodes(
      buttons.map((box) => {
        const view = box.kind === "node" ? viewBox(value, net, box.name) : undefined;
        return {
          box: view && view.marks.length > CELLS_MAX ? widenBox(layout, box) : box,
          chosen: box.name === node || (box.kind === "fold" && Boolean(box.members?.includes(node ?? ""))),
          current: box.name === current,
          node: view,
          group: view ? undefined : viewGroup(box, states, open.has(box.name)),
        };
      }),
    );
    drawLines();
    const loops = layout.lines.filter((line) => line.badge);
    drawBadges(loops.map((line) => ({ line, rounds: states.nodes[line.target]?.iteration ?? 0, limit: flow.max_iterations })));
    showOverview();
  }

  /** Lines that the run took cover the others where lines meet, and signs cover all lines. */
  function drawLines() {
    taken = edgesOf(layout, value.states.taken);
    const off = edgesOf(layout, value.states.not_taken);
    const next = layout.lines.map((line) => Number(taken.has(line)) || (off.has(line) ? 2 : 0)).join("");
    if (next === drawn) return;
    drawn = next;
    const ahead = layout.lines.filter((line) => !taken.has(line));
    const met = new Set(["START", ...[...taken].flatMap(({ source, target, branch }) => (branch ? [source, target] : target))]);
    const signs = groupBy(layout.boxes, (box) => met.has(box.name));
    /** @type {(look: string, parts: string[] | undefined) => SVGElement} */
    const path = (look, parts = []) => drawing("path", { class: look, d: parts.join("") });
    lines.replaceChildren(
      path("edge-ahead", ahead.map(linePath)),
      path("", ahead.map(headPath)),
      path(
        "taken",
        [...taken].flatMap((line) => [linePath(line), headPath(line)]),
      ),
      path("edge-sign", signs.get(false)?.map(signPath)),
      path("edge-sign taken", signs.get(true)?.map(signPath)),
      ...ruleMarks(layout, taken, off, value.picture.rules).map(({ line, isTaken, isError, words }) =>
        drawing(
          "path",
          { class: `edge-rule ${isTaken ? "taken" : ""} ${isError ? "error" : ""}`, d: markPath(line, isTaken) },
          drawing("title", {}, words),
        ),
      ),
    );
  }

  /** Make a box the current one, and give it the focus. @param {string} name */
  function moveTo(name) {
    current = name;
    draw();
    const at = buttons.findIndex((box) => box.name === name);
    /** @type {HTMLElement | undefined} */ (nodes.children[at])?.focus({ preventScroll: true });
    reveal(name);
  }

  /** Scroll a box that is out of view to the middle, in the graph alone. @param {string | null} name */
  function reveal(name) {
    const box = net.boxes.get(name ?? "");
    if (!box || !pane.width) return;
    /** @type {(start: number, size: number, from: number, room: number) => number} */
    const into = (start, size, from, room) =>
      start * scale >= from && (start + size) * scale <= from + room ? from : (start + size / 2) * scale - room / 2;
    const left = into(box.x, box.w, pane.left, pane.width);
    const top = into(box.y, box.h, pane.top, pane.height);
    if (left !== pane.left || top !== pane.top) scroller.scrollTo({ left, top });
  }

  nodes.addEventListener("keydown", (event) => {
    const key = nameOfKey(event);
    if (!["up", "down", "left", "right"].includes(key)) return;
    event.preventDefault(); // the screen has keys for left and right too
    const next = stepFrom(net, taken, current, key);
    if (next) moveTo(next);
  });
  nodes.addEventListener("focusin", (event) => {
    const { name } = buttons[[...nodes.children].indexOf(/** @type {Element} */ (event.target))];
    if (name === current) return;
    current = name;
    draw();
  });

  /** Ask for a picture in which members of stacks that run, wait or failed are drawn alone. */
  function askAlone() {
    const inside = new Set(value.picture.boxes.flatMap((box) => box.members ?? []));
    const before = alone.filter((name) => !inside.has(name));
    alone = aloneNodes(value.picture, value.states.nodes, before);
    if (alone.length === before.length || asked === value.picture) return;
    asked = value.picture;
    reshape({ open: [...openStacks()], alone });
  }

  return {
    element: host,
    update(next) {
      const before = /** @type {GraphValue | undefined} */ (value);
      value = next;
      // Its first scale is the right one: another would lay out every box again.
      if (!before) pane = { ...pane, width: scroller.clientWidth, height: scroller.clientHeight };
      const hasOldFold = layout.boxes.some((box) => box.kind === "fold" && !box.members?.every(isDone));
      if (before?.picture !== next.picture || before.at !== next.at || hasOldFold) layOut();
      draw();
      if (before?.node !== next.node) reveal(next.node);
      askAlone();
    },
  };
}

/**
 * How often a loop went around, and the choice of one of its iterations.
 * @param {(node: string, iteration: number) => void} choose
 * @returns {import("../shell/elements.js").Part<Badge>}
 */
function createBadge(choose) {
  /** @type {Badge} */
  let badge;
  const host = element("select", {
    class: "graph-badge",
    onchange() {
      choose(badge.line.target, badge.rounds + 1 - host.selectedIndex);
      host.selectedIndex = 0;
    },
  });
  return {
    element: host,
    update(next) {
      const { line, rounds, limit } = next;
      const [x, y] = line.badge ?? [];
      host.style.transform = `translate(${x}px, ${y}px) translate(-50%, -50%)`;
      setAttribute(host, "aria-label", `Iterations of ${line.target}`);
      if (badge?.rounds !== rounds) {
        const items = Array.from({ length: Math.min(ROUNDS_LISTED, rounds) }, (_, at) => `Iteration ${rounds - at}`);
        host.replaceChildren(
          ...[limit ? `↺ ${rounds} of ${limit}` : `↺ ${rounds}`, ...items].map((words) => element("option", {}, words)),
        );
      }
      badge = next;
    },
  };
}
