// The layout in grey while something loads. It comes after 150 ms, because a flash of grey is worse than a short wait, and has
// the size of what it stands for, so that nothing jumps.

import { element } from "../shell/elements.js";

export const WAIT_MS = 150;

/**
 * Grey rows in the columns of a table.
 * @param {number} rows
 * @param {string[]} columns  their classes, as in the table
 */
export function createSkeleton(rows, columns) {
  const line = () =>
    element("div", { class: "skeleton-row" }, ...columns.map((name) => element("span", { class: `bone ${name}` })));
  return element(
    "div",
    { class: "skeleton panel", "aria-busy": "true", "aria-label": "Loading" },
    ...Array.from({ length: rows }, line),
  );
}

/**
 * Show something unless `stop` is called within the wait.
 * @param {() => void} show
 * @returns {() => void} stop
 */
export function afterWait(show) {
  const timer = setTimeout(show, WAIT_MS);
  return () => clearTimeout(timer);
}
