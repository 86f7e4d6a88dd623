// Changes of a state: for each path its operation, what was there before and what is there now.

import { showChange } from "../pure/differences.js";
import { element, keepChildren, setText } from "../shell/elements.js";

/**
 * @typedef {import("../shapes.js").Change} Change
 * @typedef {import("../shapes.js").Value} Value
 */

/** @typedef {[sign: string, words: string]} SideName */

/**
 * @param {{ was: SideName, now: SideName }} [names]  what the sides are called
 * @returns {import("../shell/elements.js").Part<Change[]>}
 */
export function createDifference(names = { was: ["−", "Before"], now: ["+", "After"] }) {
  const host = element("div", { class: "difference" });
  const update = keepChildren(
    host,
    (/** @type {Change} */ change) => change.path.join("\u0000"),
    () => createChange(names),
  );
  return { element: host, update };
}

/** @param {{ was: SideName, now: SideName }} names @returns {import("../shell/elements.js").Part<Change>} */
function createChange(names) {
  const [path, chip] = [element("code", { class: "change-path" }), element("span", { class: "tag" })];
  const [was, now] = [createSide("was", ...names.was), createSide("now", ...names.now)];
  return {
    element: element("section", { class: "change" }, element("h3", {}, path, chip), was.element, now.element),
    update(change) {
      const shown = showChange(change);
      setText(path, shown.path);
      setText(chip, shown.chip);
      was.update(shown.was);
      now.update(shown.now);
    },
  };
}

/**
 * @param {string} look
 * @param {string} sign
 * @param {string} words
 * @returns {import("../shell/elements.js").Part<Value | null>}
 */
function createSide(look, sign, words) {
  const text = element("code", { dir: "auto" });
  const host = element(
    "div",
    { class: `side ${look}` },
    element("span", { class: "unseen" }, words),
    element("span", { class: "sign", "aria-hidden": "true" }, sign),
    text,
  );
  return {
    element: host,
    update(value) {
      host.hidden = !value;
      if (value) setText(text, valueText(value));
    },
  };
}

/**
 * A value as text: in one line if it is short.
 * @param {Value} value
 */
export function valueText(value) {
  if (value.bytes !== undefined) return `${(value.bytes / 1024).toFixed(1)} KB, sha256 ${value.sha256?.slice(0, 12)}…`;
  const line = JSON.stringify(value.value) ?? "not set";
  return line.length <= 80 ? line : JSON.stringify(value.value, null, 2);
}
