// What can be done to a run from its screen: the ways out that the server names first, then the verbs that its status allows. The
// first way out is the filled button; a run that moves by itself has none.

import { VERBS } from "./actions.js";

/**
 * @typedef {import("../shapes.js").Remedy} Remedy
 * @typedef {{ id: string, status: string, crashed: boolean, asks: number, remedies: Remedy[], failed: string | null }} Actable
 *
 * @typedef {object} RunAction
 * @property {string} verb
 * @property {string | null} node
 * @property {string} label
 * @property {boolean} filled
 * @property {import("./glyphs.js").GlyphName} glyph
 */

/** @type {Record<string, import("./glyphs.js").GlyphName>} */
const GLYPH = {
  resume: "play",
  retry: "retry",
  skip: "skip",
  fork: "fork",
  cancel: "cancelled",
  pause: "pause",
  answer: "asks",
  signal: "mail",
};
const OF_NODE = new Set(["retry", "skip"]);
const SHOWN = 4;

/**
 * The actions of a run: those that are buttons, and those in the menu.
 * @param {Actable} run
 * @param {boolean} isPast  an earlier checkpoint is shown, where the filled button is another one
 * @returns {{ shown: RunAction[], more: RunAction[] }}
 */
export function actionsOf(run, isPast) {
  const moves = !run.crashed && (run.status === "running" || run.status === "pending");
  const [wants, stopped] = [run.crashed || run.status === "failed", ["paused", "interrupted"].includes(run.status)];
  /** @type {RunAction[]} */
  const all = [];
  /** @param {string} verb @param {string | null} node */
  const add = (verb, node) => {
    if (!(verb in VERBS) || all.some((one) => one.verb === verb)) return;
    const own = OF_NODE.has(verb) ? node : null;
    if (OF_NODE.has(verb) && !own) return;
    all.push({ verb, node: own, label: own ? `${VERBS[verb]} ${own}` : VERBS[verb], filled: false, glyph: GLYPH[verb] });
  };
  for (const remedy of run.remedies) add(remedy.verb, nodeOf(remedy));
  const waits = (run.status === "waiting" && run.asks > 0) || wants || stopped;
  if (all.length && waits && !isPast) all[0].filled = true;
  if (wants || stopped) add("resume", null);
  if (run.failed) {
    add("retry", run.failed);
    add("skip", run.failed);
  }
  if (moves) add("pause", null);
  add("fork", null);
  const shown = all.slice(0, SHOWN);
  const more = all.slice(SHOWN);
  if (!["completed", "cancelled"].includes(run.status) && !all.some((one) => one.verb === "cancel"))
    more.push({ verb: "cancel", node: null, label: VERBS.cancel, filled: false, glyph: GLYPH.cancel });
  return { shown, more };
}

/** @param {Remedy} remedy */
const nodeOf = ({ arguments: given }) => (typeof given.node === "string" ? given.node : null);

/**
 * How the dialog of a verb asks: its title, its button, and the options that are sent.
 * @param {Actable} run
 * @param {{ verb: string, node: string | null, at?: number }} wanted
 * @returns {{ title: string, label: string, options: Record<string, unknown> }}
 */
export function askFor(run, { verb, node, at }) {
  const isFrom = at !== undefined && (verb === "resume" || verb === "fork");
  const remedy = isFrom ? undefined : run.remedies.find((one) => one.verb === verb && (!nodeOf(one) || nodeOf(one) === node));
  // The run is in the path; the other arguments are those of the request.
  const { run: _, run_id: __, ...given } = remedy?.arguments ?? {};
  const from = isFrom ? ` from @${at}` : "";
  const ofNode = OF_NODE.has(verb) && node ? node : null;
  return {
    title: ofNode ? `${VERBS[verb]} ${ofNode} of ${run.id}` : `${VERBS[verb]} ${run.id}${from}`,
    label: ofNode ? `${VERBS[verb]} ${ofNode}` : `${VERBS[verb]}${from}`,
    options: { ...given, ...(ofNode ? { node: ofNode } : {}), ...(isFrom ? { checkpoint: at } : {}) },
  };
}
