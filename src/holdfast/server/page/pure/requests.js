// Requests that were asked for and not carried out yet, and the last one that was refused, in words.

import { VERBS } from "./actions.js";
import { agoWords } from "./words.js";

/**
 * @typedef {import("../shapes.js").RunRequest} RunRequest
 *
 * @typedef {object} RequestedRun  what has to be known about the run
 * @property {string} id
 * @property {string} flow
 * @property {string | null} held_by
 * @property {number} updated_at
 * @property {import("../shapes.js").Remedy[]} remedies
 *
 * @typedef {object} ShownRequests
 * @property {{ key: string, words: string, title: string }[]} waiting
 * @property {string} note  why nothing has happened yet; "" while that is no surprise
 * @property {string} command  what to start, if no worker knows the flow
 * @property {{ title: string, reason: string, remedies: import("../shapes.js").Remedy[] } | null} refused
 */

/** After so long a reader begins to wonder. */
const PATIENCE_S = 10;
/** A refusal is the last event of its run, give or take the rounding of its time. */
const SAME_S = 0.01;

/** The verbs that were asked for and are not done yet. @param {RunRequest[]} requests */
export const waitingVerbs = (requests) => requests.flatMap(({ status, verb }) => (status === "waiting" ? verb : []));

/**
 * @param {RunRequest[]} requests  oldest first
 * @param {RequestedRun} run
 * @param {number} now
 * @returns {ShownRequests}
 */
export function showRequests(requests, run, now) {
  const waiting = requests.filter((one) => one.status === "waiting");
  const isLate = waiting.length > 0 && now - waiting[0].at > PATIENCE_S;
  const work = run.remedies.find((remedy) => remedy.verb === "work");
  const last = requests.findLast((one) => one.status === "refused");
  // Once the run has moved on, an old refusal is history, and in the log.
  const isCurrent = last && !waiting.length && (last.refused_at ?? last.at) >= run.updated_at - SAME_S;
  return {
    waiting: waiting.map((one) => ({
      key: one.id,
      words: `${nameOf(one.verb)} asked ${agoWords(now - one.at)}`,
      title: one.by ? `by ${one.by}` : "",
    })),
    note: isLate ? whyLate(run, work !== undefined) : "",
    command: isLate && !run.held_by ? (work?.command ?? "") : "",
    refused: isCurrent
      ? {
          title: `The ${last.verb} was refused.`,
          reason: last.refused ?? "",
          remedies: run.remedies.filter((one) => one.verb in VERBS && one.verb !== last.verb),
        }
      : null,
  };
}

/** @param {RequestedRun} run @param {boolean} lacksWorker */
function whyLate({ flow, held_by }, lacksWorker) {
  if (held_by) return `${held_by} executes the run and has not come to it yet. The request is kept.`;
  if (lacksWorker) return `No worker that knows flow ${flow} has claimed it yet. The request is kept.`;
  return "A worker knows the flow and has not come to it yet. The request is kept.";
}

/** @param {string} verb */
const nameOf = (verb) => VERBS[verb] ?? verb.charAt(0).toUpperCase() + verb.slice(1);
