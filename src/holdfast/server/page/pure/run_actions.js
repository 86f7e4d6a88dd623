// What can be done to a run from its screen: the first way out that the server names, then the verbs that its status allows. The
// first way out is the filled button; a run that moves by itself, or of which something was asked, has none. Where the first way
// is a fork, the run itself cannot continue here.

import { VERBS, runOf } from "./actions.js";

/**
 * @typedef {import("../shapes.js").Remedy} Remedy
 * @typedef {import("../shapes.js").ShownRun} ShownRun
 * @typedef {Pick<ShownRun, "id" | "status" | "crashed" | "pausing" | "questions" | "remedies" | "failed_node">} Actable
 *
 * @typedef {object} RunAction
 * @property {string} verb
 * @property {string | null} node
 * @property {string} word
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
const CONTINUING = new Set(["resume", ...OF_NODE]);
/** Verbs that begin at the checkpoint that is shown: the bar of the checkpoints has their buttons. */
const FROM_THERE = ["resume", "fork"];
const SHOWN = 4;
/** Of a run that waits, what people do is to answer or to cancel. */
const SHOWN_WAITING = 2;

/**
 * The actions of a run: those that are buttons, and those in the menu.
 * @param {Actable} run
 * @param {boolean} isPast  an earlier checkpoint is shown, where the filled button is another one
 * @param {string[]} asked  verbs that were asked for and are not done yet: each is shown in place of its button
 * @returns {{ shown: RunAction[], more: RunAction[] }}
 */
export function actionsOf(run, isPast, asked) {
  const { status, crashed, pausing, remedies, failed_node: failed } = run;
  const is = (/** @type {string[]} */ ...statuses) => statuses.includes(status);
  const [isStuck, isWaiting] = [crashed || is("failed", "paused", "interrupted"), is("waiting") && !crashed];
  const ways = remedies.filter((one) => one.verb in VERBS && (runOf(one) === run.id || one.verb === "answer"));
  const wanted = [
    ways[0]?.verb,
    isStuck && "resume",
    failed && "retry",
    failed && "skip",
    isWaiting && "cancel",
    !isStuck && !pausing && is("running", "pending") && "pause",
    "fork",
    ...ways.map((one) => one.verb),
    !is("completed", "cancelled") && "cancel",
  ];
  const left = new Set([...(ways[0]?.verb === "fork" ? CONTINUING : asked), ...(isPast ? FROM_THERE : [])]);
  const verbs = /** @type {string[]} */ ([...new Set(wanted)].filter((verb) => verb && !left.has(verb)));
  const all = verbs.flatMap((verb) => {
    const node = OF_NODE.has(verb) ? (ways.map((one) => one.verb === verb && nodeOf(one)).find(Boolean) ?? failed) : "";
    if (node === null) return [];
    const word = VERBS[verb];
    return { verb, node: node || null, word, label: node ? `${word} ${node}` : word, filled: false, glyph: GLYPH[verb] };
  });
  if (all.length)
    all[0].filled = !isPast && !asked.length && ways.length > 0 && (isStuck || (isWaiting && ways[0].verb === "answer"));
  const count = isWaiting ? SHOWN_WAITING : SHOWN;
  const shown = all.slice(0, count).filter((one) => isWaiting || one.verb !== "cancel");
  return { shown, more: all.filter((one) => !shown.includes(one)) };
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
  const remedy = isFrom
    ? undefined
    : run.remedies.find((one) => one.verb === verb && runOf(one) === run.id && (!nodeOf(one) || nodeOf(one) === node));
  // The run is in the path; the other arguments are those of the request.
  const { run: _, run_id: __, ...given } = remedy?.arguments ?? (isFrom ? { checkpoint: at } : {});
  const ofNode = OF_NODE.has(verb) && node;
  const [word, from] = [VERBS[verb], given.checkpoint ? ` from @${given.checkpoint}` : ""];
  return {
    title: ofNode ? `${word} ${node} of ${run.id}` : `${word} ${run.id}${from}`,
    label: ofNode ? `${word} ${node}` : `${word}${from}`,
    options: { ...given, ...(ofNode && { node }) },
  };
}
