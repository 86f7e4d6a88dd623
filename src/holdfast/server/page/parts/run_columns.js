// The columns of the table of runs.

import { actionOfRow, mayOperate } from "../pure/actions.js";
import { formatFragment } from "../pure/fragments.js";
import { lookOfRun } from "../pure/statuses.js";
import { age, duration, fullInstant, instant, markNames, nodesIn } from "../pure/words.js";
import { element, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createCopyButton } from "./command.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../shell/app.js").App} App
 * @typedef {import("../shell/elements.js").Part<Row>} Cell
 */

export const COLUMN_NAMES = ["c-status", "c-run", "c-flow", "c-reason", "c-labels", "c-active", "c-updated", "c-act"];

/**
 * @param {App} app
 * @param {() => boolean} isLive
 * @returns {import("../parts/table.js").Column<Row>[]}
 */
export function columnsFor(app, isLive) {
  return [
    { name: "c-status", label: "Status", make: () => mapped(createStatus(), lookOfRun) },
    { name: "c-run", label: "Run", make: createRunLink },
    { name: "c-flow", label: "Flow", make: () => rowText("span", (row) => row.flow) },
    { name: "c-reason", label: "Reason", make: createReason },
    {
      name: "c-labels",
      label: "Labels",
      make: () =>
        rowText("span", (row) =>
          Object.entries(row.labels)
            .map((pair) => pair.join("="))
            .join("  "),
        ),
    },
    { name: "c-active", label: "Active", make: () => rowText("span", (row) => (row.active_s ? duration(row.active_s) : "–")) },
    { name: "c-updated", label: "Updated", make: () => createUpdated(app, isLive) },
    { name: "c-act", label: "What to do", unseen: true, make: () => createAction(app) },
  ];
}

/**
 * A part of another value as a cell of a row.
 * @template T
 * @param {import("../shell/elements.js").Part<T>} part
 * @param {(row: Row) => T} value
 * @returns {Cell}
 */
const mapped = (part, value) => ({ element: part.element, update: (row) => part.update(value(row)) });

/**
 * @param {"span" | "code"} name
 * @param {(row: Row) => string} words
 * @returns {Cell}
 */
function rowText(name, words) {
  const host = element(name, { class: "cut", dir: "auto" });
  return {
    element: host,
    update(row) {
      setText(host, words(row));
      setAttribute(host, "title", words(row).length > 24 && words(row));
    },
  };
}

/** @returns {Cell} */
function createRunLink() {
  const link = element("a", { class: "run-link" });
  return {
    element: link,
    update(row) {
      setText(link, row.id);
      setAttribute(link, "title", row.id.length > 18 && row.id);
      setAttribute(link, "href", formatFragment({ screen: "run", run: row.id, query: {} }));
    },
  };
}

/** @returns {Cell} */
function createReason() {
  const host = element("span", { class: "sentence", dir: "auto" });
  return {
    element: host,
    update(row) {
      const node = row.remedy?.arguments.node;
      setSentence(
        host,
        markNames(row.reason, [...row.active, ...(typeof node === "string" ? [node] : []), ...nodesIn(row.reason)]),
      );
      setAttribute(host, "title", row.reason);
      host.classList.toggle("quiet", row.status === "completed");
    },
  };
}

/** @param {App} app @param {() => boolean} isLive @returns {Cell} */
function createUpdated(app, isLive) {
  const host = element("time", {});
  return {
    element: host,
    update(row) {
      const now = app.clock.now();
      // While nothing is live, an age would keep growing beside data that is not fresh.
      setText(host, isLive() ? age(now - row.updated_at) : instant(row.updated_at, now));
      setAttribute(host, "datetime", new Date(row.updated_at * 1000).toISOString());
      setAttribute(host, "title", fullInstant(row.updated_at));
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
      link.hidden = !action;
      if (!action) return;
      setText(link, action.label);
      setAttribute(link, "aria-label", `${action.label} ${row.id}`);
      setAttribute(link, "href", formatFragment(action.place));
    },
  };
}
