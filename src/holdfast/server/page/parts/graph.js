// The graph of a run: boxes and lines of its flow, with what the run has done. Boxes are buttons above one drawing of all lines. A live
// change touches the box that it concerns, and nothing else moves.

import { fitScale, foldCompleted, headPath, linePath, netOf } from "../pure/graph_shapes.js";
import { aloneNodes, stepFrom, takenLines, viewBox, viewGroup } from "../pure/graph_views.js";
import { nameOfKey } from "../pure/keys.js";
import { DONE } from "../pure/node_views.js";
import { button, drawing, element, keepChildren, setAttribute } from "../shell/elements.js";
import { createGraphNode } from "./graph_node.js";
import { createOverview } from "./graph_overview.js";
import { createMenu } from "./menu.js";

/**
 * @typedef {import("../pure/graph_views.js").GraphValue} GraphValue
 * @typedef {import("../pure/graph_shapes.js").Layout} Layout
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../shapes.js").EdgeLine} EdgeLine
 * @typedef {{ line: EdgeLine, rounds: number, limit: number }} Badge
 * @typedef {{ open: string[], alone: string[] }} Shape  parameters of `GET pictures/{fingerprint}`
 *
 * @typedef {object} GraphOptions
 * @property {(node: string) => void} choose
 * @property {(node: string, iteration: number) => void} chooseIteration
 * @property {(shape: Shape) => void} reshape  the picture is wanted with other stacks open, or with other nodes drawn alone
 */

const ROUNDS_LISTED = 50;

/**
 * @param {GraphOptions} options
 * @returns {import("../shell/elements.js").Part<GraphValue>}
 */
export function createGraph({ choose, chooseIteration, reshape }) {
  const lines = drawing("svg", { class: "graph-lines", "aria-hidden": "true" });
  const [nodes, badges] = [element("div", { class: "graph-nodes" }), element("div", {})];
  const picture = element("div", { class: "graph-picture" }, lines, nodes, badges);
  const sheet = element("div", { class: "graph-sheet" }, picture);
  const scroller = element("div", { class: "graph-scroller" }, sheet);
  const overview = createOverview(scroller);
  const host = element("div", { class: "graph", role: "group", "aria-label": "Graph" }, scroller, overview.element);

  /** @type {GraphValue | null} */
  let value = null;
  /** @type {Layout} */
  let layout = { width: 1, height: 1, boxes: [], lines: [] };
  let net = netOf(layout);
  /** @type {Set<EdgeLine>} */
  let taken = new Set();
  /** @type {Map<EdgeLine, SVGElement>} */
  let drawnLines = new Map();
  /** @type {Map<string, SVGElement>} */
  let drawnSigns = new Map();
  /** @type {Shape} */
  let shape = { open: [], alone: [] };
  /** @type {Set<string>} */
  const openFolds = new Set();
  let [current, scale, laidOutAt] = ["", 1, /** @type {number | null | undefined} */ (undefined)];

  const drawNodes = keepChildren(
    nodes,
    (/** @type {import("./graph_node.js").BoxView} */ view) => view.box.name,
    (view) => createGraphNode(view.box, act),
  );
  const drawBadges = keepChildren(
    badges,
    (/** @type {Badge} */ badge) => badge.line.target,
    (badge) => createBadge(badge, chooseIteration),
  );

  /** @param {Box} box */
  function act(box) {
    current = box.name;
    if (box.kind === "node") return choose(box.name);
    if (box.kind === "stack") {
      const isOpen = shape.open.includes(box.name);
      shape = { ...shape, open: isOpen ? shape.open.filter((name) => name !== box.name) : [...shape.open, box.name] };
      return reshape(shape);
    }
    openFolds.add(box.name);
    current = box.members?.[0] ?? "";
    layOut();
    draw();
    focus(current);
  }

  /** Find the places of all boxes anew: of another picture, another checkpoint, or after a stretch was opened. */
  function layOut() {
    if (!value) return;
    const { picture: flow, states } = value;
    layout = foldCompleted(flow, (name) => DONE.has(states.nodes[name]?.status), openFolds);
    net = netOf(layout);
    laidOutAt = value.at;
    taken = new Set();
    drawnLines = new Map(layout.lines.map((line) => [line, createLine(line)]));
    drawnSigns = new Map();
    for (const box of layout.boxes) {
      const d = signPath(box);
      if (d) drawnSigns.set(box.name, drawing("path", { class: "edge-sign", d }));
    }
    lines.replaceChildren(...drawnLines.values(), ...drawnSigns.values());
    setAttribute(lines, "width", layout.width);
    setAttribute(lines, "height", layout.height);
    overview.show(layout);
    fit();
  }

  function fit() {
    const room = scroller.clientWidth;
    if (!room) return;
    scale = fitScale(layout.width, room);
    picture.style.transform = `scale(${scale})`;
    sheet.style.width = `${layout.width * scale}px`;
    sheet.style.height = `${layout.height * scale}px`;
    overview.fit(scale);
  }
  new ResizeObserver(fit).observe(scroller);

  function draw() {
    if (!value) return;
    const { states, node } = value;
    if (!net.boxes.has(current)) current = (node && net.boxes.has(node) ? node : layout.boxes.find(isButton)?.name) ?? "";
    const shown = value;
    drawNodes(
      layout.boxes.filter(isButton).map((box) => ({
        box,
        chosen: box.name === node || Boolean(box.kind === "fold" && node && box.members?.includes(node)),
        current: box.name === current,
        node: box.kind === "node" ? viewBox(shown, net, box.name) : null,
        group: box.kind === "node" ? null : viewGroup(box, states, shape.open.includes(box.name)),
      })),
    );
    drawTaken();
    drawBadges(
      layout.lines.flatMap((line) =>
        line.badge ? [{ line, rounds: states.nodes[line.target]?.iteration ?? 0, limit: shown.picture.max_iterations }] : [],
      ),
    );
    overview.update(states.nodes);
  }

  function drawTaken() {
    if (!value) return;
    const next = takenLines(layout, net, value.states);
    for (const [line, drawn] of drawnLines) {
      if (next.has(line) === taken.has(line)) continue;
      setAttribute(drawn, "class", next.has(line) ? "edge taken" : "edge");
      if (next.has(line)) lines.append(drawn); // it covers the others where lines meet
    }
    const met = new Set(
      [...next].flatMap((line) => [line.target === "END" ? "END" : "", line.branch ? line.source : "", "START"]),
    );
    for (const [name, sign] of drawnSigns) {
      setAttribute(sign, "class", met.has(name) ? "edge-sign taken" : "edge-sign");
      if (next.size !== taken.size) lines.append(sign); // and signs cover all lines
    }
    taken = next;
  }

  /** @param {string} name */
  function focus(name) {
    const at = layout.boxes.filter(isButton).findIndex((box) => box.name === name);
    const found = /** @type {HTMLElement | undefined} */ (nodes.children[at]);
    found?.focus({ preventScroll: true });
    reveal(name);
  }

  /** Scroll a box that is out of view to the middle, in the graph alone. @param {string} name */
  function reveal(name) {
    const box = net.boxes.get(name);
    if (!box) return;
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = scroller;
    const into = (
      /** @type {number} */ start,
      /** @type {number} */ size,
      /** @type {number} */ from,
      /** @type {number} */ room,
    ) => (start * scale >= from && (start + size) * scale <= from + room ? from : (start + size / 2) * scale - room / 2);
    scroller.scrollTo({ left: into(box.x, box.w, scrollLeft, clientWidth), top: into(box.y, box.h, scrollTop, clientHeight) });
  }

  nodes.addEventListener("keydown", (event) => {
    const key = nameOfKey(event);
    if (!["up", "down", "left", "right"].includes(key)) return;
    event.preventDefault(); // the screen has keys for left and right too
    const next = stepFrom(net, taken, current, key);
    if (next === null) return;
    current = next;
    draw();
    focus(next);
  });
  nodes.addEventListener("focusin", (event) => {
    const at = [...nodes.children].indexOf(/** @type {Element} */ (event.target));
    const name = layout.boxes.filter(isButton)[at]?.name;
    if (!name || name === current) return;
    current = name;
    draw();
  });

  return {
    element: host,
    update(next) {
      const before = value;
      value = next;
      if (before?.picture.fingerprint !== next.picture.fingerprint) shape = { open: [], alone: [] };
      const hasStaleFold = layout.boxes.some(
        (box) => box.kind === "fold" && box.members?.some((name) => !DONE.has(next.states.nodes[name]?.status)),
      );
      if (before?.picture !== next.picture || laidOutAt !== next.at || hasStaleFold) layOut();
      draw();
      if (next.node && before?.node !== next.node) reveal(next.node);
      const alone = aloneNodes(next.picture, next.states.nodes, shape.alone);
      if (alone.length > shape.alone.length) {
        shape = { ...shape, alone };
        reshape(shape);
      }
    },
  };
}

/** @param {Box} box */
const isButton = (box) => box.kind !== "start" && box.kind !== "end";

/** @param {EdgeLine} line */
const createLine = (line) =>
  drawing(
    "g",
    { class: "edge" },
    drawing("path", { d: linePath(line.points) }),
    drawing("path", { class: "edge-head", d: headPath(line.points) }),
  );

/** START and END, and the diamond of a branch. @param {Box} box */
function signPath({ kind, x, y, w, diamond }) {
  if (diamond) return `M${diamond[0]} ${diamond[1] - 6}l6 6-6 6-6-6z`;
  const r = w / 2 - 1;
  const circle = (/** @type {number} */ r) =>
    `M${x + w / 2 - r} ${y + w / 2}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0-${2 * r} 0`;
  return kind === "start" ? circle(r) : kind === "end" ? circle(r) + circle(1) : null;
}

/**
 * How often a loop went around, and the choice of one of its iterations.
 * @param {Badge} first
 * @param {(node: string, iteration: number) => void} choose
 * @returns {import("../shell/elements.js").Part<Badge>}
 */
function createBadge(first, choose) {
  let badge = first;
  const menu = createMenu({
    look: "graph-badge",
    mark: "loop",
    fill(panel, close) {
      const from = Math.max(1, badge.rounds - ROUNDS_LISTED + 1);
      const rounds = Array.from({ length: badge.rounds - from + 1 }, (_, at) => badge.rounds - at);
      const list = element("div", { class: "menu-list" });
      list.append(
        ...rounds.map((iteration) => {
          const go = () => {
            close();
            choose(badge.line.target, iteration);
          };
          return button("menu-item", go, `Iteration ${iteration}`);
        }),
      );
      panel.append(rounds.length ? list : element("p", { class: "menu-note" }, "No iteration yet"));
    },
  });
  menu.element.classList.add("graph-badge-host");
  return {
    element: menu.element,
    update(next) {
      badge = next;
      const [x, y] = next.line.badge ?? [0, 0];
      menu.element.style.transform = `translate(${x}px, ${y}px)`;
      menu.update({ label: `${next.rounds} of ${next.limit}` });
      setAttribute(
        /** @type {Element} */ (menu.element.firstElementChild),
        "aria-label",
        `Loop to ${next.line.target}: ${next.rounds} of ${next.limit} iterations`,
      );
    },
  };
}
