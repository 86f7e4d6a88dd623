// Items in groups, and by their names.

/**
 * The items by a key, in their order. (`Map.groupBy`, which is not in all versions of Node that run the tests.)
 * @template Item, Key
 * @param {Iterable<Item>} items
 * @param {(item: Item) => Key} keyOf
 * @returns {Map<Key, Item[]>}
 */
export function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

/**
 * A record whose keys are names that people chose. It has nothing else: a node may be called "constructor" or "__proto__".
 * @template Item
 * @param {Record<string, Item>} record
 * @returns {Record<string, Item>}
 */
export const byName = (record) => Object.assign(Object.create(null), record);
