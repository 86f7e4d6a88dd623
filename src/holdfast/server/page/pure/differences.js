// How two JSON values differ, and how a change of the state is shown: its operation, what was there before, and what is there
// now. The server names the operation (set, append, merge, add) where the log has it.

/**
 * @typedef {{ path: string[], before: unknown, after: unknown }} Difference  a side that has no value is undefined
 * @typedef {{ chip: string, note: string, before: unknown, after: unknown }} ShownChange
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
 * What a reader sees of a change: only what is new, where the operation says that the rest stayed.
 * @param {{ op: string, before?: unknown, after?: unknown }} change
 * @returns {ShownChange}
 */
export function showChange({ op, before, after }) {
  if (op === "append" && Array.isArray(before) && Array.isArray(after)) {
    const kept = before.length;
    const note = kept ? `${kept} earlier ${kept === 1 ? "item" : "items"} unchanged` : "";
    return { chip: "append", note, before: undefined, after: after.slice(kept) };
  }
  if (op === "add" && typeof before === "number" && typeof after === "number") {
    const by = Number((after - before).toPrecision(12));
    return { chip: `add ${by < 0 ? `−${-by}` : `+${by}`}`, note: "", before, after };
  }
  if (op === "merge" && isPlain(before) && isPlain(after)) {
    const changed = Object.keys(after).filter((name) => !equal(own(before, name), after[name]));
    const kept = Object.keys(after).length - changed.length;
    return {
      chip: "merge",
      note: kept ? `${kept} other ${kept === 1 ? "key" : "keys"} unchanged` : "",
      before: pick(before, changed),
      after: pick(after, changed),
    };
  }
  return { chip: op, note: "", before, after };
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

/** @param {Record<string, unknown>} value @param {string[]} names */
function pick(value, names) {
  const found = Object.fromEntries(names.filter((name) => Object.hasOwn(value, name)).map((name) => [name, value[name]]));
  return Object.keys(found).length ? found : undefined;
}
