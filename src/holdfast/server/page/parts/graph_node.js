// The boxes of the graph: a node, and several nodes that are drawn as one. Each is a button; a change touches only what differs.

import { markPaths } from "../pure/graph_shapes.js";
import { fitName } from "../pure/node_views.js";
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
  const [name, once] = [element("span", { class: "node-name" }), createOnce()];
  const [time, notes] = [element("span", { class: "node-time" }), element("span", { class: "node-notes" })];
  const word = element("span", { class: "unseen" }); // the glyph, for those who do not see it
  const marks = drawing("svg", { class: "node-marks", "aria-hidden": "true" });
  const head = element("span", { class: "node-head" }, name, once, time);
  const host = element("button", { type: "button", onclick: () => act(box) }, head, notes, word, marks);
  let [shown, sign, drawn] = ["", "", ""];

  /** @param {NodeView} view */
  function showNode(view) {
    const { look } = view;
    if (look.glyph !== sign) {
      if (sign) host.firstElementChild?.remove();
      host.prepend(glyph(look.glyph, look.turns ? "turns" : ""));
      sign = look.glyph;
    }
    setText(name, fitName(view, box.w));
    setText(time, view.time);
    setText(word, view.notes[0].words.startsWith(look.word) ? "" : look.word);
    setAttribute(host, "data-tone", look.tone);
    const next = view.marks.join();
    if (next !== drawn)
      marks.replaceChildren(...markPaths(view.marks).map(([of, d]) => drawing("path", { d, class: `item-${of}` })));
    drawn = next;
    return [view.name, ...view.notes.map((note) => note.words)].join(" · ");
  }

  /** @param {GroupView} view */
  function showGroup({ title, act: label }) {
    setText(name, title);
    setText(time, label);
    setAttribute(host, "aria-expanded", String(label === "close"));
    return `${box.members?.[0]} … ${box.members?.at(-1)}`;
  }

  return {
    element: host,
    update({ box: next, chosen, current, node, group }) {
      const key = JSON.stringify([chosen, current, node, group]);
      if (key === shown && next === box) return;
      [shown, box] = [key, next];
      const isAhead = group ? group.ahead : node?.look.glyph === "unreached";
      const classes = ["graph-node", box.kind, isAhead && "ahead", node?.again && "again", group?.act === "close" && "frame"];
      setAttribute(host, "class", classes.filter(Boolean).join(" "));
      setAttribute(host, "title", node ? showNode(node) : group && showGroup(group));
      once.hidden = !node?.once;
      setNotes(notes, (node ?? group)?.notes ?? []);
      setAttribute(host, "aria-current", chosen && "true");
      host.tabIndex = current ? 0 : -1;
      Object.assign(host.style, { transform: `translate(${box.x}px, ${box.y}px)`, width: `${box.w}px`, height: `${box.h}px` });
    },
  };
}

/** The sign of a node that is not idempotent. */
export const createOnce = () => element("span", { class: "once", title: "not idempotent" }, "1×");

/**
 * @param {HTMLElement} host
 * @param {import("../pure/node_views.js").Note[]} notes
 */
export function setNotes(host, notes) {
  const parts = notes.flatMap(({ words, tone }, at) => [at ? " · " : "", element("span", { "data-tone": tone }, words)]);
  host.replaceChildren(...parts);
}
