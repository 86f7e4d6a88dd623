// All nodes of a run as a table: the same facts as the graph, for those who read rather than look.

import { isEqual } from "../pure/depending.js";
import { netOf } from "../pure/graph_shapes.js";
import { viewBox } from "../pure/graph_views.js";
import { button, element, setAttribute, setText } from "../shell/elements.js";
import { createOnce, setNotes } from "./graph_node.js";
import { createStatus } from "./status.js";
import { createTable, textColumn } from "./table.js";

/**
 * @typedef {import("../pure/node_views.js").NodeView & { chosen: boolean }} NodeRow
 * @typedef {import("../shell/elements.js").Part<NodeRow>} Cell
 */

/**
 * @param {{ choose: (node: string) => void }} options
 * @returns {import("../shell/elements.js").Part<import("../pure/graph_views.js").GraphValue>}
 */
export function createNodeTable({ choose }) {
  /** A row that shows the same stays the same object, so that only rows that changed are tinted. @type {Map<string, NodeRow>} */
  let rows = new Map();
  const table = createTable({
    caption: "Nodes",
    columns: [
      { name: "n-status", label: "Status", make: createLook },
      { name: "n-name", label: "Node", make: () => createName(choose) },
      textColumn("n-time", "Time", (row) => row.time),
    ],
    keyOf: (row) => row.name,
    open: (row) => choose(row.name),
  });
  return {
    element: element("div", { class: "node-table" }, table.element),
    update(value) {
      const net = netOf(value.picture);
      const next = Object.keys(value.picture.nodes).map((name) => {
        const row = { ...viewBox(value, net, name), chosen: name === value.node };
        const before = rows.get(name);
        return before && isEqual(before, row) ? before : row;
      });
      rows = new Map(next.map((row) => [row.name, row]));
      table.update(next);
    },
  };
}

/** @returns {Cell} */
function createLook() {
  const status = createStatus();
  return { element: status.element, update: (row) => status.update(row.look) };
}

/** @param {(node: string) => void} choose @returns {Cell} */
function createName(choose) {
  /** @type {NodeRow} */
  let row;
  const [name, once] = [element("code", { class: "cut" }), createOnce()];
  const [host, notes] = [button("node-button", () => choose(row.name), name, once), element("div", { class: "node-notes" })];
  return {
    element: element("div", {}, host, notes),
    update(next) {
      if (next === row) return;
      row = next;
      setText(name, row.name + row.size);
      setAttribute(name, "title", row.name);
      once.hidden = !row.once;
      setAttribute(host, "aria-current", row.chosen && "true");
      setNotes(notes, row.notes);
    },
  };
}
