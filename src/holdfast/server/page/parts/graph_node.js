// The boxes of the graph: a node, and several nodes that are drawn as one. Each is a button; a change touches only what differs.

import { whenChanged } from "../pure/depending.js";
import { markPaths } from "../pure/graph_shapes.js";
import { fitName } from "../pure/node_views.js";
import { drawing, element, setAttribute, setText } from "../shell/elements.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../shapes.js").Box} Box
 * @typedef {import("../pure/node_views.js").NodeView} NodeView
 * @typedef {import("../pure/graph_views.js").GroupView} GroupView
 * @typedef {{ box: Box, chosen: boolean, current: boolean, node?: NodeView, group?: GroupView }} BoxView  `current`: it is the
 *   one box in the order of the Tab key
 */

/**
 * @param {Box} first
 * @param {(box: Box) => void} act
 * @returns {import("../shell/elements.js").Part<BoxView>}
 */
export function createGraphNode(first, act) {
  let box = first;
  const [status, name, once] = [createStatus(), element("span", { class: "node-name" }), createOnce()];
  const [time, notes] = [element("span", { class: "node-time" }), element("span", { class: "node-notes" })];
  const marks = drawing("svg", { class: "node-marks", "aria-hidden": "true" });
  const head = element("span", { class: "node-head" }, name, once, time);
  const host = element("button", { type: "button", onclick: () => act(box) }, head, notes);
  if (box.kind === "node") host.prepend(status.element);
  const drawMarks = whenChanged((/** @type {{ width: number, marks: string[] }} */ { width, marks: all }) => {
    marks.replaceChildren(...markPaths(all, width).map(([of, d]) => drawing("path", { d, class: `fill-${of}` })));
    host.append(marks);
  });

  /** @param {NodeView} view */
  function showNode(view) {
    status.update(view.look);
    setText(name, fitName(view, box.w));
    setText(time, view.time);
    setAttribute(host, "data-tone", view.look.tone);
    drawMarks({ width: box.w, marks: view.marks });
  }

  /** @param {GroupView} view */
  function showGroup(view) {
    setText(name, view.name);
    setText(time, view.act);
    setAttribute(host, "aria-expanded", String(view.act === "close"));
  }

  return {
    element: host,
    update: whenChanged((/** @type {BoxView} */ { box: next, chosen, current, node, group }) => {
      box = next;
      if (node) showNode(node);
      if (group) showGroup(group);
      const view = /** @type {NodeView | GroupView} */ (node ?? group);
      const classes = ["graph-node", box.kind, view.ahead && "ahead", node?.again && "again", group?.act === "close" && "frame"];
      setAttribute(host, "class", classes.filter(Boolean).join(" "));
      setAttribute(host, "title", [view.name, ...view.notes.map((note) => note.words)].join(" · "));
      once.hidden = !node?.once;
      setNotes(notes, view.notes);
      setAttribute(host, "aria-current", chosen && "true");
      host.tabIndex = current ? 0 : -1;
      Object.assign(host.style, { transform: `translate(${box.x}px, ${box.y}px)`, width: `${box.w}px`, height: `${box.h}px` });
    }),
  };
}

/** The sign of a node that is not idempotent. */
export const createOnce = () => element("span", { class: "once", title: "not idempotent" }, "1×");

/**
 * @param {HTMLElement} host
 * @param {import("../pure/node_views.js").Note[]} notes
 */
export const setNotes = (host, notes) =>
  host.replaceChildren(
    ...notes.flatMap(({ words, tone }, at) => [at ? " · " : "", element("span", { "data-tone": tone }, words)]),
  );
