// The columns of the table of runs.

import { actionOfRow, mayOperate } from "../pure/actions.js";
import { formatFragment, hrefOfRun } from "../pure/fragments.js";
import { lookOfRun } from "../pure/statuses.js";
import { age, duration, markReason } from "../pure/words.js";
import { element, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createCopyButton } from "./command.js";
import { createStatus } from "./status.js";
import { agesColumn, textColumn } from "./table.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../shell/app.js").App} App
 * @typedef {import("../shell/elements.js").Part<Row>} Cell
 */

/**
 * @param {App} app
 * @returns {import("../parts/table.js").Column<Row>[]}
 */
export const columnsFor = (app) => [
  { name: "c-status", label: "Status", make: createRunStatus },
  { name: "c-run", label: "Run", make: createRunLink },
  textColumn("c-flow", "Flow", (row) => row.flow),
  { name: "c-reason", label: "Reason", make: createReason },
  textColumn("c-labels", "Labels", (row) => labelsOf(row).join("  ")),
  textColumn("c-active end", "Active", (row) => (row.active_s ? duration(row.active_s) : "–")),
  agesColumn(app, "c-updated end", "Updated", (row) => row.updated_at, age),
  { name: "c-act end", label: "What to do", unseen: true, make: () => createAction(app) },
];

/** @param {Row} row  @returns {string[]} such as "customer=acme" */
export const labelsOf = (row) => Object.entries(row.labels).map((pair) => pair.join("="));

/** @returns {Cell} */
function createRunStatus() {
  const status = createStatus();
  return { element: status.element, update: (row) => status.update(lookOfRun(row)) };
}

/** @returns {Cell} */
function createRunLink() {
  const link = element("a", { class: "run-link" });
  return {
    element: link,
    update(row) {
      setText(link, row.id);
      setAttribute(link, "title", row.id.length > 18 && row.id);
      setAttribute(link, "href", hrefOfRun(row.id));
    },
  };
}

/** @returns {Cell} */
function createReason() {
  const host = element("span", { class: "sentence", dir: "auto" });
  return {
    element: host,
    update(row) {
      setSentence(host, markReason(row.reason, row.active));
      setAttribute(host, "title", row.reason);
      host.classList.toggle("quiet", row.status === "completed");
    },
  };
}

/** @param {App} app @returns {Cell} */
function createAction(app) {
  const link = element("a", { class: "button small" });
  let command = "";
  const copy = createCopyButton(() => command, "Copy the command that helps");
  return {
    element: element("span", { class: "row-act" }, copy, link),
    update(row) {
      const action = mayOperate(app.meta().role) ? actionOfRow(row) : null;
      // What only a terminal can do, such as starting a worker, is a command to copy.
      command = row.needs_attention && row.remedy ? row.remedy.command : "";
      copy.hidden = Boolean(action) || !command;
      if (command) copy.title = `Copy: ${command}`;
      setAction(link, row.id, action, "");
    },
  };
}

/**
 * Make a link lead to what helps a run; without an action it is hidden.
 * @param {HTMLAnchorElement} link
 * @param {string} id
 * @param {import("../pure/actions.js").Action | null} action
 * @param {string} more  what follows the words
 */
export function setAction(link, id, action, more) {
  link.hidden = !action;
  if (!action) return;
  setText(link, action.label + more);
  setAttribute(link, "aria-label", `${action.label} ${id}`);
  setAttribute(link, "href", formatFragment(action.place));
}
