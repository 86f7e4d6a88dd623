// All nodes of a run as a table: the same facts as the graph, for those who read rather than look.

import { nodesInOrder, viewBox } from "../pure/graph_views.js";
import { netOf } from "../pure/graph_shapes.js";
import { button, element, setAttribute, setText } from "../shell/elements.js";
import { createOnce, setNotes } from "./graph_node.js";
import { createStatus } from "./status.js";
import { createTable } from "./table.js";

/**
 * @typedef {import("../pure/node_views.js").NodeView} NodeView
 * @typedef {NodeView & { chosen: boolean }} NodeRow
 * @typedef {import("../shell/elements.js").Part<NodeRow>} Cell
 */

/**
 * @param {{ choose: (node: string) => void }} options
 * @returns {import("../shell/elements.js").Part<import("../pure/graph_views.js").GraphValue> & { move: (by: number) => void }}
 */
export function createNodeTable({ choose }) {
  /** A row that shows the same stays the same object, so that only rows that changed are tinted. @type {Map<string, NodeRow>} */
  let rows = new Map();
  const table = createTable({
    caption: "Nodes",
    columns: [
      { name: "n-status", label: "Status", make: createLook },
      { name: "n-name", label: "Node", make: () => createName(choose) },
      { name: "n-notes", label: "Progress", make: createNodeProgress },
      { name: "n-time", label: "Time", make: createTime },
    ],
    keyOf: (row) => row.name,
    open: (row) => choose(row.name),
  });
  return {
    element: element("div", { class: "node-table" }, table.element),
    move: table.move,
    update(value) {
      const net = netOf(value.picture);
      /** @type {Map<string, NodeRow>} */
      const next = new Map();
      for (const name of nodesInOrder(value.picture)) {
        const row = { ...viewBox(value, net, name), chosen: name === value.node };
        const before = rows.get(name);
        next.set(name, before && JSON.stringify(before) === JSON.stringify(row) ? before : row);
      }
      rows = next;
      table.update([...rows.values()]);
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
  let node = "";
  const [name, once] = [element("code", { class: "cut", dir: "auto" }), createOnce()];
  const host = button("node-button", () => choose(node), name, once);
  return {
    element: host,
    update(row) {
      node = row.name;
      setText(name, row.size ? `${row.name} ${row.size}` : row.name);
      setAttribute(name, "title", row.name.length > 16 && row.name);
      once.hidden = !row.once;
      setAttribute(host, "aria-current", row.chosen && "true");
    },
  };
}

/** @returns {Cell} */
function createNodeProgress() {
  const host = element("span", { class: "cut" });
  return {
    element: host,
    update(row) {
      setNotes(
        host,
        row.notes.filter((note) => note.words !== row.look.word),
      );
    },
  };
}

/** @returns {Cell} */
function createTime() {
  const host = element("span", {});
  return { element: host, update: (row) => setText(host, row.time) };
}
