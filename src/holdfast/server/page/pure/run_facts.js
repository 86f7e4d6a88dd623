// The head of a run as it is shown: sentence, next step and facts, from what is known of it.

import { budgetFacts } from "./budgets.js";
import { titled } from "./run_choices.js";
import { LOOKS, lookOfRun } from "./statuses.js";
import { costWords } from "./visit_words.js";
import { age, duration, fullInstant, instant, markReason, number } from "./words.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../shapes.js").ShownRun} ShownRun
 * @typedef {import("../parts/standing.js").Fact} Fact
 * @typedef {{ row: Row | null, run: ShownRun | null, picture: any, timeline: import("../shapes.js").Timeline | null,
 *   problems?: Record<string, import("../shapes.js").Problem | null> }} Known
 */

/** Ways out that need no words: the page follows the run, a question asks for its answer, and any run can be forked somewhere. */
const CLEAR = new Set(["follow", "answer", "fork"]);

/**
 * @param {Known} known  at least the row or the run
 * @param {{ now: number, isLive: boolean, isPast: boolean, readOnly: string }} context  `isPast`: an earlier checkpoint is shown;
 *   `readOnly`: the name of a token that may only read
 * @returns {Omit<import("../parts/standing.js").StandingView, "actions">}
 */
export function standingOf(known, context) {
  const { row, run } = known;
  const facts = /** @type {Row | ShownRun} */ (row ?? run);
  const remedies = run?.remedies ?? (row?.remedy ? [row.remedy] : []);
  const asks = row?.asks ?? run?.questions.length;
  const isDamaged = known.problems?.run?.status === 409;
  const first = remedies.find((one) => !CLEAR.has(one.verb) || one.arguments.checkpoint);
  const stop = /[.?!…]$/.test(facts.reason) ? "" : ".";
  return {
    id: facts.id,
    look: isDamaged ? LOOKS.unreadable : lookOfRun({ ...facts, asks, remedy: remedies[0] ?? null }),
    reason: markReason(facts.reason, facts.held_by ? [facts.held_by] : []),
    about: [run?.title, run?.goal].filter(Boolean).join(" · "),
    next: `${stop}${nextWords(first, remedies, facts)}`,
    ago: ago(facts.updated_at, context),
    facts: factList(known, facts, context),
    labels: facts.labels,
    commands: remedies,
    note: context.readOnly && `Token “${context.readOnly}” may only read`,
  };
}

/**
 * What the first way out does; or that nothing is left to do after an answer, because a worker continues the run.
 * @param {import("../shapes.js").Remedy | undefined} first
 * @param {import("../shapes.js").Remedy[]} remedies
 * @param {Row | ShownRun} facts
 */
function nextWords(first, remedies, { status, held_by, crashed }) {
  const [speak] = remedies;
  const continues =
    (status === "waiting" || status === "interrupted") && !held_by && !crashed && remedies.every((one) => one.verb !== "resume");
  if (continues && speak?.verb === "answer") return " A worker resumes the run once it is answered.";
  if (continues && speak?.verb === "signal") return " A worker resumes the run once it has the signal.";
  return first ? ` ${titled(first.words)}.` : "";
}

/** @param {number} at @param {{ now: number, isLive: boolean }} context  a lost connection makes times absolute */
function ago(at, { now, isLive }) {
  const passed = age(now - at);
  if (!isLive) return instant(at, now);
  return passed === "now" ? passed : `${passed} ago`;
}

/**
 * @param {Known} known
 * @param {Row | ShownRun} facts
 * @param {{ now: number, isLive: boolean, isPast: boolean }} context
 * @returns {Fact[]}
 */
function factList({ run, picture, timeline }, facts, context) {
  const { flow, created_at, updated_at, seq, active_s, queue, held_by, parent, id } = facts;
  const by = timeline?.acts.find((act) => act.verb === "start")?.by;
  const marks = /** @type {import("../shapes.js").NodeMark[]} */ (Object.values(picture?.nodes ?? {}));
  const tries = marks.reduce((sum, mark) => sum + (mark.tries ?? 0), 0);
  const origin = parent?.split("@", 1)[0]; // a parent may name the checkpoint: "order-17@12"
  const fork = timeline?.forks[0]?.run_id;
  const began = `${instant(created_at, context.now)}${by ? ` by ${by}` : ""}`;
  /** @type {[name: string, value: string | null | undefined | false, more?: Partial<Fact>][]} */
  const all = [
    ["Flow", flow],
    ["Started", began, { title: fullInstant(created_at), wide: true }],
    ["Last event", `@${seq}, ${ago(updated_at, context)}`, { title: fullInstant(updated_at), wide: true }],
    ["Active", duration(active_s)],
    // The other facts are those of now, of which a picture of the past knows nothing.
    ["Attempts", picture && !context.isPast && number(tries)],
    ["Cost", run && costWords(run.cost)],
    ["Child runs", run && costWords(run.children_cost)],
    ["Called by", run?.origin, { place: placeOfRun(run?.origin ?? "") }],
    ["Queue", queue, { wide: true }],
    ["Held by", held_by ?? "nobody", { wide: true }],
    ["Forked from", parent, { place: placeOfRun(parent ?? ""), act: { words: "Compare", place: compared(origin ?? "", id) } }],
    [
      timeline?.forks.length === 1 ? "Fork" : "Last fork",
      fork,
      { place: placeOfRun(fork ?? ""), act: { words: "Compare", place: compared(id, fork ?? "") } },
    ],
  ];
  return [...all.flatMap(([name, value, more]) => (value ? { name, value, ...more } : [])), ...(run ? budgetFacts(run) : [])];
}

/** @param {string} run  perhaps with a checkpoint: "order-17@12" @returns {import("./fragments.js").Place} */
function placeOfRun(run) {
  const [id, seq] = run.split("@");
  return { screen: "run", run: id, ...(seq && { at: Number(seq) }), query: {} };
}

/** @param {string} a @param {string} b @returns {import("./fragments.js").Place} */
const compared = (a, b) => ({ screen: "compare", query: { a: [a], b: [b] } });
