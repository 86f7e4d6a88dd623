// The filters of the Runs screen: how they are sent, how they read as words, and whether a row meets them. They are in the
// fragment, so a link shows the same runs elsewhere.

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("./fragments.js").Query} Query
 * @typedef {{ name: string, value: string, words: string }} FilterWord  one value of a filter, which can be taken off
 */

/** The choices of "Started": how they are in the fragment, in seconds, and in words. */
export const SINCE = /** @type {const} */ ([
  ["15min", 900, "in the last 15 minutes"],
  ["1h", 3600, "in the last hour"],
  ["1d", 86400, "in the last day"],
  ["7d", 604800, "in the last 7 days"],
  ["30d", 2592000, "in the last 30 days"],
]);

const NAMES = ["status", "attention", "flow", "label", "queue", "since", "find"];

/**
 * The parameters of `GET runs` and `GET live` for the filters of a fragment. Anything else in the fragment is not a filter.
 * @param {Query} query
 * @param {number} now
 * @returns {Query}
 */
export function filterParameters(query, now) {
  const { since, find, ...rest } = Object.fromEntries(NAMES.filter((name) => query[name]).map((name) => [name, query[name]]));
  const seconds = SINCE.find(([name]) => name === since?.[0])?.[1];
  return {
    ...rest,
    ...(find ? { prefix: find.slice(0, 1) } : {}),
    // Rounded, so that the same view asks the same question for a while, and the server may share its answer.
    ...(seconds ? { since: [String(Math.floor((now - seconds) / 60) * 60)] } : {}),
  };
}

/**
 * The filters as words to take off, in the order in which the screen has them.
 * @param {Query} query
 * @returns {FilterWord[]}
 */
export function filterWords(query) {
  return NAMES.flatMap((name) => (query[name] ?? []).map((value) => ({ name, value, words: inWords(name, value) })));
}

/** @param {string} name @param {string} value */
function inWords(name, value) {
  switch (name) {
    case "attention":
      return "need attention";
    case "flow":
    case "queue":
      return `${name} ${value}`;
    case "since":
      return `started ${SINCE.find(([one]) => one === value)?.[2] ?? value}`;
    case "find":
      return `id begins with ${value}`;
    default:
      return value;
  }
}

/**
 * The query without one value of a filter.
 * @param {Query} query
 * @param {FilterWord} word
 * @returns {Query}
 */
export function withoutFilter(query, { name, value }) {
  const left = (query[name] ?? []).filter((one) => one !== value);
  const rest = Object.fromEntries(Object.entries(query).filter(([one]) => one !== name));
  return left.length ? { ...rest, [name]: left } : rest;
}

/**
 * Whether a row still meets the filters, as far as a row tells; the server decides when the list is read.
 * @param {Row} row
 * @param {Query} query
 * @param {number} now
 */
export function meetsFilters(row, query, now) {
  const { status, flow, label, queue, since, attention, find } = query;
  const seconds = SINCE.find(([name]) => name === since?.[0])?.[1] ?? Infinity;
  return (
    (!status || status.includes(row.status)) &&
    (!flow || flow.includes(row.flow)) &&
    (!queue || queue.includes(row.queue)) &&
    (label ?? []).every((pair) => row.labels[pair.split("=", 1)[0]] === pair.slice(pair.indexOf("=") + 1)) &&
    row.created_at >= now - seconds &&
    (!attention || row.needs_attention) &&
    (!find || row.id.startsWith(find[0]))
  );
}
