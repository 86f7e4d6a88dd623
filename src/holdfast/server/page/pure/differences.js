// How a change of the state is shown: its operation, what was there before, and what is there now. The server names the operation
// (set, append, merge, add) where the log has it.

/**
 * @typedef {import("../shapes.js").Value} Value
 * @typedef {{ path: string, chip: string, was: Value | null, now: Value | null }} ShownChange  a side that is null is not shown
 */

/**
 * What a reader sees of a change: its operation in words, and the sides that it has.
 * @param {import("../shapes.js").Change} change
 * @returns {ShownChange}
 */
export function showChange({ operation, path, was = null, now = null, note }) {
  const shown = { path: path.join("."), chip: note ?? operation, was, now };
  const [before, by] = [was?.value, now?.value];
  if (operation !== "add" || typeof before !== "number" || typeof by !== "number") return shown;
  const chip = `add ${tidy(by)}`.replace("-", "−");
  return { ...shown, chip, now: { value: tidy(before + by) } };
}

/** 41 - 3.1 is not 37.9 in binary. @param {number} sum */
const tidy = (sum) => Number(sum.toPrecision(12));
