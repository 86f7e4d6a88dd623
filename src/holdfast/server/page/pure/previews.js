// Previews: what a verb would do, as rows for a reader; what has to be decided before it may be done; and what is sent then.

import { controlFor, faultsOf, readTyped } from "./schemas.js";

/**
 * @typedef {import("../shapes.js").Preview} Preview
 * @typedef {import("../shapes.js").PreviewNode} PreviewNode
 * @typedef {import("./glyphs.js").GlyphName} GlyphName
 * @typedef {import("./statuses.js").Tone} Tone
 *
 * @typedef {object} PreviewRow
 * @property {GlyphName} glyph
 * @property {Tone} tone
 * @property {string} words
 * @property {PreviewItem[]} items
 *
 * @typedef {object} PreviewItem  a node with its iterations ("write", "write 2", "write 1–3"), or a sentence
 * @property {string} words
 * @property {string} [node]
 * @property {boolean} [once]  the node is not idempotent
 *
 * @typedef {object} Decision  what a reader has chosen after looking at a preview
 * @property {string} reason
 * @property {string} [name]  of a fork
 * @property {Set<string>} ticked  nodes that may run again although they are not idempotent
 * @property {Record<string, string>} repeat  of a fork: node -> "ask", "run" or "skip"
 * @property {Record<string, unknown> | null} [edit]  fields that are changed before the run continues, or the result of a node
 *   that is skipped
 * @property {boolean} [faulty]  what was typed as such fields is not valid
 */

/** Verb -> the field of its body that a reader may write as JSON. @type {Record<string, "edit" | "update" | "payload">} */
export const EDITS = { resume: "edit", fork: "edit", skip: "update", signal: "payload" };

/** What a fork can do with a node that is not idempotent. */
export const REPEATS = [
  { const: "ask", title: "Ask" },
  { const: "run", title: "Run again" },
  { const: "skip", title: "Skip" },
];

/** A run is resumed or forked at a place. @param {number} at */
export const verbsAt = (at) => [
  { const: "resume", title: "Resume this run", description: `Goes back to @${at}; nothing is deleted.` },
  { const: "fork", title: "Fork a new run", description: `Shares ${at > 1 ? "@1 to " : ""}@${at}; this run stays.` },
];

/** Verbs without a preview of the server, because they repeat and skip nothing -> what they do. @type {Record<string, string>} */
export const PLAIN = {
  pause: "No node starts until the run is resumed.",
  signal: "The run is given the signal, and continues if it waits for it.",
};

/**
 * @typedef {"confirm" | "rerun" | "asks" | "skips" | "stops" | "uncleaned" | "cancels" | "leaves" | "kept" | "missed" | "closes"
 *   | "family" | "unknown"} PreviewList
 */

/**
 * The lists of a preview, in the order of its rows.
 * @type {[list: PreviewList, glyph: GlyphName, tone: Tone, words: string][]}
 */
const CONSEQUENCES = [
  ["confirm", "warning", "ask", "Not idempotent"],
  ["rerun", "retry", "accent", "Run again"],
  ["asks", "asks", "ask", "Asked about first"],
  ["skips", "skipped", "rest", "Skipped"],
  ["stops", "interrupted", "rest", "Stop"],
  ["uncleaned", "warning", "ask", "Not cleaned up"],
  ["cancels", "cancelled", "rest", "Child runs cancelled"],
  ["leaves", "running", "rest", "Child runs left alone"],
  ["kept", "kept", "done", "Kept"],
  ["missed", "mail", "ask", "Not in the fork"],
  ["closes", "asks", "ask", "Questions close"],
  ["family", "retry", "accent", "Failed child runs"],
  ["unknown", "warning", "ask", "Not known here"],
];

/**
 * The rows of a preview; empty ones are left out. The nodes that have to be confirmed come apart from these, first.
 * @param {Preview} preview
 * @returns {PreviewRow[]}
 */
export const previewRows = (preview) =>
  CONSEQUENCES.slice(1)
    .map(([list, glyph, tone, words]) => ({ glyph, tone, words, items: preview[list].map(itemOf) }))
    .filter(({ items }) => items.length);

/**
 * A node, question, child run, signal or sentence of a preview.
 * @param {PreviewNode | import("../shapes.js").PreviewRun | import("../shapes.js").PreviewCancelled
 *   | import("../shapes.js").Uncleaned | import("../shapes.js").Missed | { text: string } | string} one
 * @returns {PreviewItem}
 */
function itemOf(one) {
  if (typeof one === "string") return { words: one };
  if ("text" in one) return { words: one.text };
  if ("what" in one) return { words: `${one.what} ${one.name}` };
  if ("uncleaned" in one) {
    const left = one.uncleaned.map((visit) => itemOf(visit).words).join(", ");
    return { words: `${one.run_id}${left && `; not cleaned up: ${left}`}` };
  }
  if ("rerun" in one) return { words: `${one.run_id} ${one.left ? `is left alone: ${one.left}` : "is resumed"}` };
  const { node, first, last, idempotent } = "why" in one ? uncleanedVisit(one) : one;
  return { node, words: last === 1 ? node : `${node} ${first === last ? last : `${first}–${last}`}`, once: !idempotent };
}

/** A visit that will not clean up, as other visits are listed. @param {import("../shapes.js").Uncleaned} left */
const uncleanedVisit = ({ node, iteration }) => ({ node, first: iteration, last: iteration, idempotent: true });

/**
 * Why the button is off, in words; "" if it is on.
 * @param {Preview | null} preview  null while it is not known
 * @param {Decision} decision
 */
export function whyOff(preview, { ticked, faulty }) {
  if (faulty) return "The JSON is not valid";
  if (!preview) return "";
  const open = preview.verb === "fork" ? [] : preview.confirm.filter((one) => !ticked.has(one.node));
  if (open.length) return open.length === 1 ? "Needs the tick above" : `Needs ${open.length} ticks above`;
  // A resume is refused until its nodes are confirmed; with the ticks, that reason is gone.
  if (preview.refused && !preview.confirm.length) return "It would be refused";
  return "";
}

const NAME_MAX = 128;

/**
 * A name for a fork that none of the forks of its parent has: "order-17-fork-2".
 * @param {string} parent
 * @param {string[]} taken
 */
export function nameOfFork(parent, taken) {
  const names = new Set(taken);
  const base = `${parent.replace(/-fork-\d+$/, "")}-fork-`;
  let number = 1;
  while (names.has(`${base}${number}`) || `${base}${number}` === parent) number += 1;
  return `${base}${number}`.slice(-NAME_MAX);
}

/**
 * The body of the request that does what the preview shows.
 * @param {{ verb: string }} preview
 * @param {Record<string, unknown>} options  those with which the dialog was opened
 * @param {Decision} decision
 */
export function bodyOf(preview, options, { reason, name, ticked, repeat, edit }) {
  return {
    ...options,
    ...(edit && preview.verb in EDITS ? { [EDITS[preview.verb]]: edit } : {}),
    ...(reason ? { reason } : {}),
    ...(preview.verb !== "fork" && ticked.size ? { confirm: [...ticked] } : {}),
    ...(preview.verb === "fork" && Object.keys(repeat).length ? { repeat } : {}),
    ...(preview.verb === "fork" && name ? { run_id: name } : {}),
  };
}

/**
 * The fields that a reader has changed in a state that was shown as JSON, or what is wrong, by path.
 * @param {Record<string, unknown>} before  the state as it was shown
 * @param {string} text
 * @returns {{ edit: Record<string, unknown> | null } | { faults: import("./schemas.js").Fault[] }}
 */
export function editOf(before, text) {
  const control = controlFor({ type: "object" });
  const after = /** @type {Record<string, unknown>} */ (readTyped(control, text) ?? {});
  const faults = faultsOf(control, after);
  if (faults.length) return { faults };
  const gone = Object.keys(before).filter((name) => !Object.hasOwn(after, name));
  if (gone.length)
    return { faults: gone.map((name) => ({ path: [name], message: "A field cannot be removed; set it to null" })) };
  const isSame = (/** @type {string} */ name) => JSON.stringify(before[name]) === JSON.stringify(after[name]);
  const changed = Object.entries(after).filter(([name]) => !Object.hasOwn(before, name) || !isSame(name));
  return { edit: changed.length ? Object.fromEntries(changed) : null };
}

/**
 * How a new preview differs from the one that was shown, in a sentence.
 * @param {Preview} before
 * @param {Preview} after
 */
export function whatChanged(before, after) {
  if (after.refused && !after.confirm.length) return ""; // which is said below
  const entriesOf = (/** @type {Preview} */ preview) =>
    CONSEQUENCES.flatMap(([list, , , words]) =>
      preview[list].map(itemOf).map((item) => ({ name: item.node ?? `“${item.words}”`, words })),
    );
  const [was, is] = [entriesOf(before), entriesOf(after)];
  const come = is.filter(({ name, words }) => !was.some((one) => one.name === name && one.words === words));
  const gone = was.filter(({ name }) => !is.some((one) => one.name === name));
  const found = new Set([
    ...come.map(({ name, words }) => `${name} is now in “${words}”`),
    ...gone.map(({ name, words }) => `${name} is no longer in “${words}”`),
  ]);
  const more = found.size > 3 ? ` and ${found.size - 3} more` : "";
  return found.size ? `${[...found].slice(0, 3).join(", ")}${more}.` : "";
}
