// A JSON value as a tree. Objects and arrays open and close; what a reader opened stays open when the value changes. A branch is
// made when it is opened, so a state of megabytes costs nothing until then.

import { whenChanged } from "../pure/depending.js";
import { plural } from "../pure/words.js";
import { button, element } from "../shell/elements.js";

const OPEN_MAX = 12;
const TEXT_MAX = 2000;
const SHOWN_MAX = 200;

/** @returns {import("../shell/elements.js").Part<unknown>} */
export function createTree() {
  /** The paths that a reader opened or closed. @type {Map<string, boolean>} */
  const chosen = new Map();
  const host = element("div", { class: "tree" });

  /**
   * @param {unknown} value
   * @param {string} name
   * @param {string} path
   * @returns {HTMLElement}
   */
  function createBranch(value, name, path) {
    const entries = entriesOf(value);
    const label = name ? [element("span", { class: "tree-name" }, name), ": "] : [];
    if (!entries) return element("div", { class: "tree-leaf" }, ...label, createLeaf(value));
    const isOpen = chosen.get(path) ?? (path === "" || entries.length <= OPEN_MAX);
    const summary = element("summary", {}, ...label, element("span", { class: "tree-size" }, sizeOf(value, entries.length)));
    const branch = element("details", { open: isOpen }, summary);
    const fill = () => branch.childElementCount === 1 && branch.append(createEntries(entries, path, 0));
    if (isOpen) fill();
    branch.addEventListener("toggle", () => {
      if (branch.open !== isOpen || chosen.has(path)) chosen.set(path, branch.open);
      if (branch.open) fill();
    });
    return branch;
  }

  /**
   * @param {[string, unknown][]} entries
   * @param {string} path
   * @param {number} from
   */
  function createEntries(entries, path, from) {
    const part = entries.slice(from, from + SHOWN_MAX);
    const list = element(
      "div",
      { class: "tree-entries" },
      ...part.map(([name, value]) => createBranch(value, name, `${path}/${name}`)),
    );
    const left = entries.length - from - part.length;
    if (left > 0) {
      const more = button("link", () => more.replaceWith(createEntries(entries, path, from + SHOWN_MAX)), `${left} more`);
      list.append(more);
    }
    return list;
  }

  return { element: host, update: whenChanged((value) => host.replaceChildren(createBranch(value, "", ""))) };
}

/** @param {unknown} value @returns {[string, unknown][] | null} */
const entriesOf = (value) =>
  typeof value === "object" && value !== null && Object.keys(value).length ? Object.entries(value) : null;

/** @param {unknown} value @param {number} count */
const sizeOf = (value, count) => (Array.isArray(value) ? plural(count, "item") : plural(count, "field"));

/**
 * A value without parts, in the colour of its type.
 * @param {unknown} value
 */
function createLeaf(value) {
  const text = JSON.stringify(value) ?? "not set";
  const kind = value === null ? "null" : typeof value === "object" ? "empty" : typeof value;
  const leaf = element("span", { class: `tree-${kind}`, dir: "auto" }, text.slice(0, TEXT_MAX));
  if (text.length <= TEXT_MAX) return leaf;
  const more = button("link", () => leaf.replaceChildren(text), `… ${text.length - TEXT_MAX} more characters`);
  return element("span", {}, leaf, more);
}
