// What is chosen on the screen of a run: node, visit, attempt, item, tab and view, read from its fragment; and what is shown if
// nothing was chosen: what failed, asks or runs.

import { withQuery } from "./fragments.js";

/**
 * @typedef {import("./fragments.js").Place} Place
 * @typedef {import("../shapes.js").NodeMark} NodeMark
 *
 * @typedef {object} Choice
 * @property {string | null} node
 * @property {number | null} iteration
 * @property {number | null} execution
 * @property {number | null} attempt
 * @property {number | null} item
 * @property {string | null} tab
 * @property {string} view
 */

export const TABS = ["overview", "input", "output", "change", "steps", "stream", "receipts"];
/** The graph is a view of its own where it has no room beside the others. */
export const VIEWS = ["timeline", "graph", "state", "log", "ledger", "files", "family"];

/** The name of a tab or view as it is shown. @param {string} key */
export const titled = (key) => key.replace(/^./, (first) => first.toUpperCase());

/** A name that a node can have: it is part of paths. */
const NODE = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;

/**
 * @param {Place} place
 * @returns {Choice}
 */
export function choiceIn({ query }) {
  const [iteration = null, execution = null, attempt = null] = (query.visit?.[0] ?? "").split(".").map(count);
  const [tab, view] = [query.tab?.[0] ?? "", query.view?.[0] ?? ""];
  return {
    node: NODE.test(query.node?.[0] ?? "") ? query.node[0] : null,
    iteration,
    execution,
    attempt,
    item: count(query.item?.[0] ?? ""),
    tab: TABS.includes(tab) ? tab : null,
    view: VIEWS.includes(view) ? view : VIEWS[0],
  };
}

/** @param {string} text */
const count = (text) => (/^[0-9]{1,9}$/.test(text) ? Number(text) : null);

/**
 * The place at which another node is chosen.
 * @param {Place} place
 * @param {string | null} node
 */
export const placeOfNode = (place, node) =>
  withQuery(place, { node: node ?? undefined, visit: undefined, item: undefined, tab: undefined });

/**
 * The place at which another visit or attempt of the chosen node is shown.
 * @param {Place} place
 * @param {string} node
 * @param {[iteration: number, execution: number, attempt?: number]} visit
 */
export const placeOfVisit = (place, node, visit) =>
  withQuery(place, { node, visit: visit.filter((one) => one !== undefined).join(".") });

/**
 * The place at another checkpoint. The node that made it is then chosen, so the choice of now is dropped.
 * @param {Place} place
 * @param {number | null} at  null: now
 * @returns {Place}
 */
export function placeAt(place, at) {
  const { at: _, ...rest } = placeOfNode(place, null);
  return at === null ? rest : { ...rest, at };
}

/** How much a node wants to be looked at: what failed, then what asks, then what runs. @param {NodeMark} mark */
function interest(mark) {
  if (mark.status === "failed") return 5;
  if (mark.crashed) return 4;
  if (mark.waits_for === "question") return 3;
  if (mark.status === "running" || mark.status === "interrupted") return 2;
  return mark.status === "waiting" || mark.status === "pending" ? 1 : 0;
}

/**
 * The node that is shown if none is chosen; the latest of those that want it most. Null if the run has reached none.
 * @param {Record<string, NodeMark>} nodes
 */
export function nodeOfInterest(nodes) {
  let [best, found] = [-1, /** @type {string | null} */ (null)];
  let latest = -Infinity;
  for (const [node, mark] of Object.entries(nodes)) {
    const [wants, began] = [interest(mark), mark.started_at ?? 0];
    if (wants > best || (wants === best && began >= latest)) [best, found, latest] = [wants, node, began];
  }
  return found;
}

/**
 * The next node that failed, crashed or asks, after the chosen one and around; null if there is none.
 * @param {Record<string, NodeMark>} nodes
 * @param {string | null} chosen
 */
export function nextProblem(nodes, chosen) {
  const all = Object.keys(nodes);
  const at = chosen === null ? -1 : all.indexOf(chosen);
  return [...all.slice(at + 1), ...all.slice(0, at + 1)].find((node) => interest(nodes[node]) > 2) ?? null;
}

/**
 * The tab that is open if none is chosen. What a visit streams is shown as soon as there is something, and stays when the visit
 * has ended; of a node that has streamed before, it is shown at once.
 * @param {boolean} isPast
 * @param {{ status: string, chunks: number }} visit
 * @param {{ opened: string | null, streams: boolean }} before  the tab that has opened by itself; whether the node has streamed
 */
export function tabFor(isPast, { status, chunks }, { opened, streams }) {
  if (isPast) return "change";
  return status === "running" && (chunks || streams) ? "stream" : (opened ?? "overview");
}
