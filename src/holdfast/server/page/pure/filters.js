// The filters of the Runs screen: how they are sent, how they read as words, and whether a row meets them. They are in the
// fragment, so a link shows the same runs elsewhere.

import { withQuery } from "./fragments.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("./fragments.js").Query} Query
 * @typedef {{ name: string, value: string, words: string }} FilterWord  one value of a filter, which can be taken off
 */

/** The choices of "Started": in the fragment -> seconds, and words. @type {Record<string, [seconds: number, words: string]>} */
export const SINCE = {
  "15min": [900, "last 15 minutes"],
  "1h": [3600, "last hour"],
  "1d": [86400, "last day"],
  "7d": [604800, "last 7 days"],
  "30d": [2592000, "last 30 days"],
};

/**
 * Filter -> a value of it as words, in the order in which the screen has them.
 * @type {Record<string, (value: string) => string>}
 */
const FILTER_WORDS = {
  status: (value) => value,
  attention: () => "need attention",
  flow: (value) => `flow ${value}`,
  label: (value) => value,
  queue: (value) => `queue ${value}`,
  since: (value) => `started in the ${SINCE[value]?.[1] ?? value}`,
  origin: (value) => `called by ${value}`,
  find: (value) => `id begins with ${value}`,
};

/**
 * The parameters of `GET runs` and `GET live` for the filters of a fragment. Anything else in the fragment is not a filter.
 * @param {Query} query
 * @param {number} now
 * @returns {Query}
 */
export function filterParameters(query, now) {
  const { since, find, ...rest } = Object.fromEntries(
    Object.entries(query).filter(([name]) => Object.hasOwn(FILTER_WORDS, name)),
  );
  const seconds = SINCE[since?.[0]]?.[0];
  return {
    ...rest,
    ...(find && { prefix: find.slice(0, 1) }),
    // Rounded, so that the same view asks the same question for a while, and the server may share its answer.
    ...(seconds && { since: [String(Math.floor((now - seconds) / 60) * 60)] }),
  };
}

/**
 * The filters as words to take off, in the order in which the screen has them.
 * @param {Query} query
 * @returns {FilterWord[]}
 */
export const filterWords = (query) =>
  Object.entries(FILTER_WORDS).flatMap(([name, words]) =>
    (query[name] ?? []).map((value) => ({ name, value, words: words(value) })),
  );

/**
 * The query without one value of a filter.
 * @param {Query} query
 * @param {FilterWord} word
 * @returns {Query}
 */
export function withoutFilter(query, { name, value }) {
  const left = (query[name] ?? []).filter((one) => one !== value);
  return withQuery({ screen: "runs", query }, { [name]: left }).query;
}

/**
 * Whether a row still meets the filters, as far as a row tells; the server decides when the list is read.
 * @param {Row} row
 * @param {Query} query
 * @param {number} now
 */
export function meetsFilters(row, query, now) {
  const { status, flow, label, queue, since, attention, find, origin } = query;
  const seconds = SINCE[since?.[0] ?? ""]?.[0] ?? Infinity;
  return (
    (!status || status.includes(row.status)) &&
    (!flow || flow.includes(row.flow)) &&
    (!queue || queue.includes(row.queue)) &&
    (label ?? []).every((pair) => row.labels[pair.split("=", 1)[0]] === pair.slice(pair.indexOf("=") + 1)) &&
    row.created_at >= now - seconds &&
    (!attention || row.needs_attention) &&
    (!origin || origin.includes(row.origin ?? "")) &&
    (!find || row.id.startsWith(find[0]))
  );
}
