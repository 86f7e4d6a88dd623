// Two runs side by side: where their histories part, what each node did in either, and which fields of the state differ.

import { DONE } from "./node_views.js";
import { LOOKS } from "./statuses.js";
import { duration, plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").Comparison} Comparison
 * @typedef {import("../shapes.js").NodeSide} NodeSide
 * @typedef {import("../shapes.js").ComparedNode} ComparedNode
 *
 * @typedef {[label: string, value: string]} Fact
 * @typedef {{ shared: number, a: number, b: number }} Lines  lengths of the three lines, as parts of the whole width
 */

/** What money costs, to a tenth of a cent: "$0.214". @param {number} usd */
export const dollars = (usd) => `$${usd.toFixed(3)}`;

/**
 * The facts of one of the runs: of its own part of the history, if that is a fork.
 * @param {Comparison} found
 * @param {"a" | "b"} side
 * @param {number | null} activeS
 * @returns {Fact[]}
 */
export function factsOf(found, side, activeS) {
  const run = found[side];
  const isFork = found.shared !== null && run.id !== found.shared.run_id;
  const sides = found.nodes.filter((node) => !(isFork && node.shared)).flatMap((node) => node[side] ?? []);
  const usd = sides.reduce((sum, one) => sum + one.cost.usd, 0);
  const all = {
    Active: activeS === null ? "" : duration(activeS),
    Attempts: String(sides.reduce((sum, one) => sum + one.tries, 0)),
    Cost: usd ? dollars(usd) : "",
    Events: String(run.seq - ((isFork && found.shared?.seq) || 0)),
    Edited: side === "b" ? editedFields(found).join(", ") : "",
  };
  return Object.entries(all).filter(([, value]) => value);
}

/**
 * The fields that were edited in run `b` since it is a run of its own.
 * @param {Comparison} found
 * @returns {string[]}
 */
export function editedFields({ edits }) {
  const names = edits.flatMap((event) => Object.values(event.body?.changes ?? {}).flatMap((part) => namesIn(part)));
  return [...new Set(names)];
}

/** @param {unknown} part  field -> value, or a list of fields */
const namesIn = (part) => (Array.isArray(part) ? part.map(String) : Object.keys(part ?? {}));

/**
 * How run `b` came to be, as a sentence; "" if it is not a fork of `a`.
 * @param {Comparison} found
 */
export function forkWords({ a, forked }) {
  if (!forked) return "";
  const { parent, to, by, reason } = /** @type {Record<string, any>} */ (forked.body ?? {});
  const from = parent === a.id ? "A" : parent;
  return `Forked from ${from} at @${to}${by ? ` by ${by}` : ""}${reason ? `: “${reason}”` : ""}`;
}

/**
 * How long the lines of the drawing are. The longer run takes the whole width; the part that is shared is never too short to see.
 * @param {Comparison} found
 * @returns {Lines}
 */
export function linesOf({ a, b, shared }) {
  const most = Math.max(a.seq, b.seq, 1);
  const from = shared ? Math.min(0.9, Math.max(0.08, shared.seq / most)) : 0;
  const end = (/** @type {number} */ seq) => Math.max(from + 0.06, seq / most);
  return { shared: from, a: end(a.seq), b: end(b.seq) };
}

/**
 * What a node did in one run: its look, and words for it.
 * @param {NodeSide | null} side
 * @returns {{ look: import("./statuses.js").Look, words: string }}
 */
export function sideWords(side) {
  if (!side) return { look: LOOKS.unreached, words: "not reached" };
  const look = LOOKS[side.status] ?? LOOKS.unreached;
  return { look, words: side.tries ? plural(side.tries, "attempt") : look.word };
}

/** Whether its time will not grow. @param {NodeSide} side */
const hasEnded = ({ status }) => DONE.has(status) || status === "failed";

/** How long a node took in one run; "" if it has not ended, or did nothing there. @param {NodeSide | null} side */
export const sideTime = (side) => (side && hasEnded(side) ? duration(side.seconds) : "");

/**
 * How much longer or shorter run `b` took for a node: "−3.3 s"; "" if it has not ended in both, or is shared.
 * @param {ComparedNode} node
 */
export function timeApart({ a, b, shared }) {
  if (!a || !b || shared || !hasEnded(a) || !hasEnded(b)) return "";
  const by = b.seconds - a.seconds;
  return Math.abs(by) < 0.05 ? "" : `${by < 0 ? "−" : "+"}${duration(Math.abs(by))}`;
}

/**
 * The changes of the fields to which a node's results differ; all of them without a node. A side that has no value says so, and a
 * field that was edited before `b` continued is marked.
 * @param {Comparison} found
 * @param {string | undefined} node
 * @returns {import("../shapes.js").Change[]}
 */
export function changesFor(found, node) {
  const fields = found.nodes.find((one) => one.node === node)?.differs;
  const edited = editedFields(found);
  return found.changes
    .filter((change) => !fields || fields.includes(change.path[0]))
    .map((change) => {
      const isWhole = change.operation === "set" || change.operation === "unset";
      const note = edited.includes(change.path[0]) ? "edited before B continued" : isWhole ? "" : change.operation;
      return { ...change, note, ...(isWhole ? { was: change.was ?? {}, now: change.now ?? {} } : {}) };
    });
}
