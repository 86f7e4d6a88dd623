// The fragment of the address: which screen is shown, with what chosen. Parsing and formatting are inverse, so a link that one
// person copies shows another person the same.

/**
 * @typedef {"runs" | "run" | "compare" | "questions" | "workers" | "doctor" | "unknown"} ScreenName
 *
 * @typedef {object} Place
 * @property {ScreenName} screen
 * @property {string} [run]  the run that is shown, on the screen "run"
 * @property {number} [at]  the checkpoint that is shown; absent: now
 * @property {Query} query
 *
 * @typedef {Record<string, string[]>} Query  parameters, each with at least one value
 */

const TABLE_SCREENS = new Set(["runs", "compare", "questions", "workers", "doctor"]);
const RUN = /^([A-Za-z0-9][A-Za-z0-9._-]{0,127})(?:@([0-9]{1,15}))?$/;
const TOKEN = /^#token=(.+)$/;

/**
 * Read a fragment. One that names no screen of ours gives the screen "unknown".
 * @param {string} fragment  with or without its "#"
 * @returns {Place}
 */
export function parseFragment(fragment) {
  const [path, rest] = fragment.replace(/^#/, "").split(/\?(.*)/s);
  const [, screen, run, ...more] = path.split("/");
  const query = parseQuery(rest);
  if (!path || path === "/") return { screen: "runs", query };
  if (screen === "runs" && run && !more.length) {
    const found = RUN.exec(decode(run));
    if (!found) return { screen: "unknown", query };
    return found[2] ? { screen: "run", run: found[1], at: Number(found[2]), query } : { screen: "run", run: found[1], query };
  }
  if (run === undefined && TABLE_SCREENS.has(screen)) return { screen: /** @type {ScreenName} */ (screen), query };
  return { screen: "unknown", query };
}

/**
 * Write a place as a fragment. Parameters are in order of their names, so that equal places have equal fragments.
 * @param {Place} place
 */
export function formatFragment(place) {
  const at = place.at === undefined ? "" : `@${place.at}`;
  const path = place.screen === "run" ? `/runs/${place.run}${at}` : `/${place.screen}`;
  const query = formatQuery(place.query);
  return `#${path}${query && `?${query}`}`;
}

/** A link to a run. @param {string} run @param {Query} [query] */
export const hrefOfRun = (run, query = {}) => formatFragment({ screen: "run", run, query });

/**
 * Write parameters for a fragment or for a request.
 * @param {Query} query
 */
export function formatQuery(query) {
  const written = new URLSearchParams();
  for (const name of Object.keys(query).sort()) {
    for (const value of query[name]) written.append(name, value);
  }
  return written.toString();
}

/**
 * The same place with other parameters; one that is undefined or empty is taken off.
 * @param {Place} place
 * @param {Record<string, string | string[] | undefined>} changes
 * @returns {Place}
 */
export function withQuery(place, changes) {
  const query = { ...place.query };
  for (const [name, value] of Object.entries(changes)) {
    const values = (Array.isArray(value) ? value : [value ?? ""]).filter(Boolean);
    if (values.length) query[name] = values;
    else delete query[name];
  }
  return { ...place, query };
}

/**
 * The token, if the fragment is one: `#token=…`, as `holdfast serve` prints it.
 * @param {string} fragment
 * @returns {string | null}
 */
export function tokenIn(fragment) {
  return TOKEN.exec(fragment)?.[1] ?? null;
}

/**
 * @param {string} text
 * @returns {Query}
 */
function parseQuery(text) {
  const all = new URLSearchParams(text);
  const values = [...all.keys()].map((name) => [name, all.getAll(name).filter(Boolean)]);
  return Object.fromEntries(values.filter(([, given]) => given.length));
}

/** @param {string} text  percent-encoded, by whoever made the link */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not percent-encoding, so it is no run id either
  }
}
