// Fields of a state or of an input, by name. A large value is drawn when it is asked for, and fetched then if it was left out.

import { button, element, keepChildren, setText } from "../shell/elements.js";
import { createTree } from "./tree.js";

/** @typedef {import("../shapes.js").Value} Value */

const LARGE_BYTES = 8192;

/**
 * @param {(name: string) => Promise<unknown>} fetchField  of one whose value was left out
 * @returns {import("../shell/elements.js").Part<Record<string, Value>>}
 */
export function createFields(fetchField) {
  const host = element("div", { class: "fields" });
  const draw = keepChildren(
    host,
    (/** @type {[string, Value]} */ [name]) => name,
    () => createValueField(fetchField),
  );
  return { element: host, update: (fields) => draw(Object.entries(fields)) };
}

/** @param {(name: string) => Promise<unknown>} fetchField @returns {import("../shell/elements.js").Part<[string, Value]>} */
function createValueField(fetchField) {
  const [title, tree] = [element("code", { class: "field-name", dir: "auto" }), createTree()];
  const more = button("link", async () => {
    isOpen = true;
    if (value.bytes !== undefined) value = { value: await fetchField(name) };
    draw();
  });
  let [name, isOpen, size] = ["", false, 0];
  /** @type {Value} */
  let value = {};
  function draw() {
    const isShown = value.bytes === undefined && (isOpen || size <= LARGE_BYTES);
    tree.element.hidden = !isShown;
    more.hidden = isShown;
    if (isShown) tree.update(value.value);
    else setText(more, `Show ${(size / 1024).toFixed(1)} KB`);
  }
  return {
    element: element("section", { class: "field-row" }, title, more, tree.element),
    update([next, given]) {
      if (isOpen && given.bytes !== undefined && given.sha256 === value.sha256) return;
      [name, value] = [next, given];
      size = given.bytes ?? JSON.stringify(given.value)?.length ?? 0;
      setText(title, name);
      draw();
    },
  };
}
