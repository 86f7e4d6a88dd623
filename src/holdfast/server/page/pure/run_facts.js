// The head of a run as it is shown: sentence, next step and facts, from what is known of it.

import { VERBS } from "./actions.js";
import { lookOfRun } from "./statuses.js";
import { costWords } from "./visit_words.js";
import { age, duration, fullInstant, instant, markNames, nodesIn, number } from "./words.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../shapes.js").ShownRun} ShownRun
 * @typedef {import("../parts/standing.js").Fact} Fact
 * @typedef {{ row: Row | null, run: ShownRun | null, picture: any, timeline: import("../shapes.js").Timeline | null }} Known
 */

/**
 * @param {Known} known  at least the row or the run
 * @param {{ now: number, isLive: boolean, operates: boolean }} context
 * @returns {Omit<import("../parts/standing.js").StandingView, "actions">}
 */
export function standingOf(known, context) {
  const { row, run } = known;
  const facts = /** @type {Row | ShownRun} */ (row ?? run);
  const remedies = run?.remedies ?? (row?.remedy ? [row.remedy] : []);
  const look = lookOfRun({ ...facts, asks: row?.asks ?? run?.questions.length, remedy: remedies[0] ?? null });
  const names = [...nodesIn(facts.reason), facts.held_by ?? ""].filter(Boolean);
  const first = remedies[0]?.words ?? "";
  return {
    id: facts.id,
    look,
    reason: markNames(facts.reason, names),
    next: first && `Next: ${first}.`,
    ago: ago(facts.updated_at, context),
    facts: factList(known, facts, context),
    labels: facts.labels,
    commands: remedies.filter((one) => !(one.verb in VERBS)),
    note: context.operates ? "" : "Your token may read runs and not operate them, so nothing can be done here.",
  };
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
 * @param {{ now: number, isLive: boolean }} context
 * @returns {Fact[]}
 */
function factList({ run, picture, timeline }, facts, context) {
  const by = timeline?.acts.find((act) => act.verb === "start")?.by;
  const marks = /** @type {import("../shapes.js").NodeMark[]} */ (Object.values(picture?.nodes ?? {}));
  const tries = marks.reduce((sum, mark) => sum + (mark.tries ?? 0), 0);
  const cost = run ? costWords(run.cost) : "";
  const { parent } = facts;
  const fork = timeline?.forks.at(-1)?.run_id;
  return [
    { name: "Flow", value: facts.flow },
    {
      name: "Started",
      value: `${instant(facts.created_at, context.now)}${by ? ` by ${by}` : ""}`,
      title: fullInstant(facts.created_at),
      wide: true,
    },
    {
      name: "Last event",
      value: `@${facts.seq}, ${ago(facts.updated_at, context)}`,
      title: fullInstant(facts.updated_at),
      wide: true,
    },
    { name: "Active", value: duration(facts.active_s) },
    ...(picture ? [{ name: "Attempts", value: number(tries) }] : []),
    ...(cost ? [{ name: "Cost", value: cost }] : []),
    { name: "Queue", value: facts.queue, wide: true },
    { name: "Held by", value: facts.held_by ?? "nobody", wide: true },
    ...(parent
      ? [
          { name: "Forked from", value: parent, place: { screen: /** @type {const} */ ("run"), run: runOf(parent), query: {} } },
          {
            name: "Compare",
            value: "with its origin",
            place: compared(runOf(parent), facts.id),
          },
        ]
      : []),
    ...(fork
      ? [{ name: timeline?.forks.length === 1 ? "Fork" : "Last fork", value: fork, place: compared(facts.id, fork) }]
      : []),
  ];
}

/** @param {string} a @param {string} b @returns {import("./fragments.js").Place} */
const compared = (a, b) => ({ screen: "compare", query: { a: [a], b: [b] } });

/** A parent may name the checkpoint: "order-17@12". @param {string} parent */
const runOf = (parent) => parent.split("@", 1)[0];
