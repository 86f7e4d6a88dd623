// The boxes of the graph: a node, and several nodes that are drawn as one. Each is a button; a change touches only what differs.

import { markPaths } from "../pure/graph_shapes.js";
import { fitName, tellNode } from "../pure/node_views.js";
import { drawing, element, glyph, setAttribute, setText } from "../shell/elements.js";

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
  const [name, size, once] = [element("span", { class: "node-name" }), element("span", {}), createOnce()];
  const [time, notes] = [element("span", { class: "node-time" }), element("span", { class: "node-notes" })];
  const marks = drawing("svg", { class: "node-marks", width: 122, height: 10, "aria-hidden": "true" });
  const head = element("span", { class: "node-head" }, name, size, once, time);
  const host = element("button", { type: "button", onclick: () => act(box) }, head, notes);
  let [shown, sign, drawn] = ["", "", ""];

  /** @param {NodeView} view */
  function showNode(view) {
    if (view.look.glyph !== sign) {
      host.querySelector(":scope > .glyph")?.remove();
      host.prepend(glyph(view.look.glyph, view.look.turns ? "turns" : ""));
      sign = view.look.glyph;
    }
    setText(name, fitName(view, box.w));
    setText(size, view.size);
    once.hidden = !view.once;
    setText(time, view.time);
    setNotes(notes, view.notes);
    setAttribute(host, "data-tone", view.look.tone);
    setAttribute(host, "aria-label", tellNode(view));
    setAttribute(host, "title", [view.name, ...view.notes.map((note) => note.words)].join(" · "));
    const next = view.marks.join();
    if (next === drawn) return;
    drawn = next;
    marks.replaceChildren(...markPaths(view.marks).map(([status, d]) => drawing("path", { d, class: `item-${status}` })));
    if (next) host.append(marks);
    else marks.remove();
  }

  /** @param {GroupView} view */
  function showGroup(view) {
    setText(name, view.title);
    setText(time, view.act);
    once.hidden = true;
    setNotes(notes, view.notes);
    setAttribute(host, "aria-expanded", String(view.act === "close"));
    setAttribute(host, "title", box.members && `${box.members[0]} … ${box.members[box.members.length - 1]}`);
  }

  return {
    element: host,
    update(view) {
      const next = JSON.stringify(view);
      if (next === shown) return;
      shown = next;
      box = view.box;
      const isOpen = view.group?.act === "close";
      const isAhead = view.node ? view.node.look.glyph === "unreached" : !view.group?.reached;
      const classes = ["graph-node", box.kind, isAhead && "ahead", view.node?.again && "again", isOpen && "frame"];
      setAttribute(host, "class", classes.filter(Boolean).join(" "));
      place(host, box);
      if (view.node) showNode(view.node);
      if (view.group) showGroup(view.group);
      setAttribute(host, "aria-current", view.chosen && "true");
      host.tabIndex = view.current ? 0 : -1;
    },
  };
}

/** @param {HTMLElement} host @param {Box} box */
function place(host, box) {
  host.style.transform = `translate(${box.x}px, ${box.y}px)`;
  host.style.width = `${box.w}px`;
  host.style.height = `${box.h}px`;
}

/** The sign of a node that is not idempotent. */
export const createOnce = () => element("span", { class: "once", title: "not idempotent" }, "1×");

/**
 * @param {HTMLElement} host
 * @param {import("../pure/node_views.js").Note[]} notes
 */
export function setNotes(host, notes) {
  if (host.textContent === notes.map((note) => note.words).join(" · ") && host.childElementCount === notes.length) return;
  host.replaceChildren(
    ...notes.flatMap(({ words, tone }, at) => [at ? " · " : "", element("span", { "data-tone": tone }, words)]),
  );
}
