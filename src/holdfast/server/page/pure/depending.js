// What a part depends on is named once: it is what the part is given. `whenChanged` passes that on if it differs from before, and
// the part draws or reads from nothing else. So nothing that matters can be missing in a comparison.

/**
 * Make a function that acts only on a value that differs from the one before.
 * @template T
 * @param {(value: T, before: T | undefined) => void} act
 * @returns {(value: T) => boolean}  whether it differed
 */
export function whenChanged(act) {
  /** @type {[] | [T]} */
  let last = [];
  return (value) => {
    if (last.length && isEqual(last[0], value)) return false;
    const [before] = last;
    last = [value];
    act(value, before);
    return true;
  };
}

/**
 * Whether two values are the same data. What is neither a list nor a plain object is equal only to itself.
 * @param {any} one
 * @param {any} other
 * @returns {boolean}
 */
export function isEqual(one, other) {
  if (Object.is(one, other)) return true;
  if (!isData(one) || !isData(other) || Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  if (names.length !== Object.keys(other).length) return false;
  return names.every((name) => Object.hasOwn(other, name) && isEqual(one[name], other[name]));
}

/** @param {any} value */
const isData = (value) =>
  typeof value === "object" && value !== null && [Object.prototype, Array.prototype, null].includes(Object.getPrototypeOf(value));
