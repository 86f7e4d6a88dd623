// The state as JSON that can be edited before a run continues. Only fields that differ are sent; a mistake is named by its path.

import { editOf } from "../pure/previews.js";
import { element, setAttribute } from "../shell/elements.js";

/**
 * @typedef {import("../pure/schemas.js").Fault} Fault
 *
 * @typedef {object} StateEditor
 * @property {HTMLElement} element
 * @property {(faults: Fault[]) => void} showFaults  those that the server found
 */

/** A larger state is not shown: only the fields to change are written. */
const ERRORS_SHOWN = 200_000;
const PAUSE_MS = 400;

/**
 * @param {Record<string, unknown>} state
 * @param {string} label
 * @param {(read: ReturnType<typeof editOf> | null) => void} changed  null at once, what was typed after a pause
 * @returns {StateEditor}
 */
export function createStateEditor(state, label, changed) {
  const whole = JSON.stringify(state, null, 2);
  const isShown = whole.length <= ERRORS_SHOWN;
  const faults = element("ul", { class: "faults", role: "alert" });
  const area = element("textarea", { class: "field", "aria-label": label, spellcheck: false });
  area.value = isShown ? whole : "{}";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  area.addEventListener("input", () => {
    clearTimeout(timer);
    changed(null);
    timer = setTimeout(read, PAUSE_MS);
  });

  function read() {
    const found = editOf(isShown ? state : {}, area.value);
    showFaults("faults" in found ? found.faults : []);
    changed(found);
  }

  /** @param {Fault[]} found */
  function showFaults(found) {
    setAttribute(area, "aria-invalid", found.length > 0 && "true");
    faults.replaceChildren(
      ...found.map(({ path, message }) =>
        element("li", { class: "fault" }, path.length > 0 && element("code", {}, path.join(".")), ` ${message}`),
      ),
    );
  }

  const size = `The state has ${Math.round(whole.length / 1024)} KB. Write only the fields to change.`;
  return {
    element: element("div", { class: "state-editor" }, area, faults, !isShown && element("p", { class: "hint" }, size)),
    showFaults,
  };
}
