// How two JSON values differ, and how a change of the state is shown: its operation, what was there before, and what is there
// now. The server names the operation (set, append, merge, add) where the log has it.

/**
 * @typedef {{ path: string[], before: unknown, after: unknown }} Difference  a side that has no value is undefined
 * @typedef {import("../shapes.js").Value} Value
 * @typedef {{ path: string, chip: string, was: Value | null, now: Value | null }} ShownChange  a side that is null is not shown
 */

/**
 * The paths at which two values differ, outermost first. Objects are compared by key; everything else as a whole.
 * @param {unknown} before
 * @param {unknown} after
 * @param {string[]} [path]
 * @returns {Difference[]}
 */
export function differencesOf(before, after, path = []) {
  if (isPlain(before) && isPlain(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => differencesOf(own(before, name), own(after, name), [...path, name]));
  }
  return equal(before, after) ? [] : [{ path, before, after }];
}

/**
 * What a reader sees of a change: its operation in words, and the sides that it has.
 * @param {import("../shapes.js").Change} change
 * @returns {ShownChange}
 */
export function showChange({ operation, path, was = null, now = null, note }) {
  const shown = { path: path.join("."), chip: note ?? operation, was, now };
  const [before, by] = [was?.value, now?.value];
  if (operation !== "add" || typeof before !== "number" || typeof by !== "number") return shown;
  const after = Number((before + by).toPrecision(12)); // 41.0 - 3.1 is not 37.9 in binary
  return { ...shown, chip: `add ${by < 0 ? `−${-by}` : by}`, now: { value: after } };
}

/**
 * Equality of JSON values; the order of keys does not matter.
 * @param {unknown} a
 * @param {unknown} b
 * @returns {boolean}
 */
export function equal(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((one, at) => equal(one, b[at]));
  if (!isPlain(a) || !isPlain(b)) return Object.is(a, b);
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => Object.hasOwn(b, name) && equal(a[name], b[name]));
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isPlain = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A key such as "__proto__" is data like any other. @param {Record<string, unknown>} value @param {string} name */
const own = (value, name) => (Object.hasOwn(value, name) ? value[name] : undefined);
