// Previews: what a verb would do, as rows for a reader; what has to be decided before it may be done; and what is sent then.

import { equal } from "./differences.js";

/**
 * @typedef {import("../shapes.js").Preview} Preview
 * @typedef {import("../shapes.js").PreviewNode} PreviewNode
 *
 * @typedef {object} PreviewRow
 * @property {string} key
 * @property {import("./glyphs.js").GlyphName} glyph
 * @property {import("./statuses.js").Tone} tone
 * @property {string} words
 * @property {number} count
 * @property {PreviewNode[]} nodes
 * @property {string[]} sentences  in place of nodes
 *
 * @typedef {object} Decision  what a reader has chosen after looking at a preview
 * @property {string} reason
 * @property {Set<string>} ticked  nodes that may run again although they are not idempotent
 * @property {Record<string, string>} repeat  of a fork: node -> "ask", "run" or "skip"
 * @property {Record<string, unknown> | null} [edit]  fields that are changed before the run continues, or the result of a node
 *   that is skipped
 * @property {boolean} [faulty]  what was typed as such fields is not valid
 */

/** Verb -> the field of its body that a reader may write as JSON. @type {Record<string, "edit" | "update" | "payload">} */
export const EDITS = { resume: "edit", fork: "edit", skip: "update", signal: "payload" };

/** Verbs without a preview of the server, because they repeat and skip nothing -> what they do. @type {Record<string, string>} */
export const PLAIN = {
  pause: "No node starts until the run is resumed.",
  signal: "The run is given the signal, and continues if it waits for it.",
};

/**
 * The preview of a verb that the server has none of.
 * @param {string} run
 * @param {string} verb
 * @returns {Preview}
 */
export const plainPreview = (run, verb) => ({
  ...{
    run_id: run,
    verb,
    at: null,
    refused: null,
    error: null,
    command: verb === "pause" ? `holdfast pause ${run}` : null,
    digest: "",
  },
  ...{ kept: [], rerun: [], confirm: [], asks: [], skips: [], stops: [], closes: [], remedies: [], unknown: [] },
});

/**
 * The rows of a preview; empty ones are left out. The nodes that have to be confirmed come apart from these, first.
 * @param {Preview} preview
 * @returns {PreviewRow[]}
 */
export function previewRows(preview) {
  /**
   * @param {string} key
   * @param {PreviewRow["glyph"]} glyph
   * @param {PreviewRow["tone"]} tone
   * @param {string} words
   * @param {PreviewNode[]} nodes
   * @returns {PreviewRow}
   */
  const row = (key, glyph, tone, words, nodes) => ({ key, glyph, tone, words, count: nodes.length, nodes, sentences: [] });
  const rows = [
    row("rerun", "retry", "accent", "Run again", preview.rerun),
    row("asks", "asks", "ask", "Asked about first", preview.asks),
    row("skips", "skipped", "rest", "Skipped", preview.skips),
    row("stops", "interrupted", "rest", "Stop", preview.stops),
    row("kept", "kept", "done", "Kept", preview.kept),
    {
      ...row("closes", "asks", "ask", "Questions close", []),
      count: preview.closes.length,
      sentences: preview.closes.map((question) => question.text),
    },
    { ...row("unknown", "warning", "ask", "Not known here", []), count: preview.unknown.length, sentences: preview.unknown },
  ];
  const plain = PLAIN[preview.verb];
  if (plain) rows.push({ ...row("plain", "play", "accent", "Effect", []), count: 1, sentences: [plain] });
  return rows.filter((one) => one.count > 0);
}

/**
 * Why the button is off, in words; "" if it is on.
 * @param {Preview | null} preview  null while it is not known
 * @param {Decision} decision
 */
export function whyOff(preview, { ticked, faulty }) {
  if (faulty) return "The state is not valid";
  if (!preview) return "";
  const open = preview.verb === "fork" ? [] : preview.confirm.filter((one) => !ticked.has(one.node));
  if (open.length) return open.length === 1 ? "Needs the tick above" : `Needs ${open.length} ticks above`;
  // A resume is refused until its nodes are confirmed; with the ticks, that reason is gone.
  if (preview.refused && !preview.confirm.length) return "It would be refused";
  return "";
}

/**
 * The body of the request that does what the preview shows.
 * @param {{ verb: string }} preview
 * @param {Record<string, unknown>} options  those with which the dialog was opened
 * @param {Decision} decision
 */
export function bodyOf(preview, options, { reason, ticked, repeat, edit }) {
  return {
    ...options,
    ...(edit && preview.verb in EDITS ? { [EDITS[preview.verb]]: edit } : {}),
    ...(reason ? { reason } : {}),
    ...(preview.verb === "resume" && ticked.size ? { confirm: [...ticked] } : {}),
    ...(preview.verb === "fork" && Object.keys(repeat).length ? { repeat } : {}),
  };
}

/**
 * The options for another verb at the same place: a run can be resumed or forked there.
 * @param {Record<string, unknown>} options
 */
export const placeOptions = ({ checkpoint }) => ({ checkpoint });

/**
 * The fields that a reader has changed in a state that was shown as JSON, or what is wrong, by path.
 * @param {Record<string, unknown>} before  the state as it was shown
 * @param {string} text
 * @returns {{ edit: Record<string, unknown> | null } | { faults: import("./schemas.js").Fault[] }}
 */
export function editOf(before, text) {
  /** @type {unknown} */
  let after;
  try {
    after = JSON.parse(text.trim() || "{}");
  } catch (fault) {
    return { faults: [{ path: [], message: `Not valid JSON: ${/** @type {Error} */ (fault).message}` }] };
  }
  if (typeof after !== "object" || after === null || Array.isArray(after))
    return { faults: [{ path: [], message: "Must be an object: field and value" }] };
  const given = /** @type {Record<string, unknown>} */ (after);
  const gone = Object.keys(before).filter((name) => !Object.hasOwn(given, name));
  const message = "A field cannot be taken away; set it to null";
  if (gone.length) return { faults: gone.map((name) => ({ path: [name], message })) };
  const changed = Object.entries(given).filter(([name, value]) => !Object.hasOwn(before, name) || !equal(before[name], value));
  return { edit: changed.length ? Object.fromEntries(changed) : null };
}

/**
 * How a new preview differs from the one that was shown, in a sentence.
 * @param {Preview} before
 * @param {Preview} after
 */
export function whatChanged(before, after) {
  const names = (/** @type {PreviewNode[]} */ nodes) => new Set(nodes.map((one) => one.node));
  /** @type {[keyof Preview & ("kept" | "rerun" | "confirm"), string][]} */
  const lists = [
    ["kept", "is kept now"],
    ["rerun", "runs again now"],
    ["confirm", "has to be confirmed now"],
  ];
  const found = lists.flatMap(([list, words]) => {
    const known = names(before[list]);
    return [...names(after[list])].filter((node) => !known.has(node)).map((node) => `${node} ${words}`);
  });
  if (after.refused && after.refused !== before.refused && !after.confirm.length) found.push(after.refused);
  return found.length ? `${found.slice(0, 3).join(", ")}${found.length > 3 ? ` and ${found.length - 3} more` : ""}.` : "";
}

/**
 * A node of a preview with its iterations: "write", "write 2", "write 1–3".
 * @param {PreviewNode} node
 */
export function nodeWords({ node, first, last }) {
  if (last === 1) return node;
  return `${node} ${first === last ? last : `${first}–${last}`}`;
}
