// Fields of a state or of an input, by name. The server leaves out large values; each is fetched when a reader asks for it.

import { button, element, keepChildren, setText } from "../shell/elements.js";
import { createTree } from "./tree.js";

/**
 * @typedef {import("../shapes.js").Value} Value
 * @typedef {{ run: string | undefined, at: number | null, values: Record<string, Value> }} FieldsView  `at`: where the state has
 *   them; null: they are not in the state, and a large one cannot be fetched
 * @typedef {{ name: string, value: Value, isKept: boolean }} Named
 */

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<FieldsView>}
 */
export function createFields(app) {
  const host = element("div", { class: "fields" });
  /** @type {FieldsView} */
  let view;
  /** @param {string} name */
  async function fetchField(name) {
    const answer = await app.api.get(`runs/${view.run}/state`, { field: [name], at: [String(view.at)] });
    return answer.ok ? answer.value.state[name] : answer.problem.detail;
  }
  const draw = keepChildren(
    host,
    (/** @type {Named} */ { name }) => name,
    () => createValueField(fetchField),
  );
  return {
    element: host,
    update(next) {
      view = next;
      draw(Object.entries(next.values).map(([name, value]) => ({ name, value, isKept: next.at !== null })));
    },
  };
}

/** @param {(name: string) => Promise<unknown>} fetchField @returns {import("../shell/elements.js").Part<Named>} */
function createValueField(fetchField) {
  const [title, tree] = [element("code", { class: "field-name", dir: "auto" }), createTree()];
  const more = button("link", async () => show(await fetchField(shown.name)));
  /** @type {Named} */
  let shown;
  /** @param {unknown} value */
  function show(value) {
    tree.update(value);
    tree.element.hidden = false;
    more.hidden = true;
  }
  return {
    element: element("section", { class: "field-row" }, title, more, tree.element),
    update(next) {
      const { bytes, sha256, value } = next.value;
      if (bytes === undefined) show(value);
      else if (sha256 !== shown?.value.sha256) {
        tree.element.hidden = true;
        more.hidden = false;
        more.disabled = !next.isKept;
        setText(more, `${next.isKept ? "Show " : ""}${(bytes / 1024).toFixed(1)} KB`);
      }
      shown = next;
      setText(title, next.name);
    },
  };
}
