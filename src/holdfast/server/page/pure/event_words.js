// An event of a log in words: what happened, and the one fact of its body that a reader looks for.

import { costWords, messageOf } from "./visit_words.js";
import { instant, plural } from "./words.js";

/** @typedef {import("../shapes.js").RunEvent} RunEvent */

/** @param {RunEvent} event */
export const toneOfEvent = ({ kind }) => (kind.endsWith("Failed") ? "fail" : /(Interrupted|Asked|Refused)$/.test(kind) && "ask");

/** "NodeFailed" as "node failed". @param {string} kind */
export const kindWords = (kind) => kind.replace(/(?!^)([A-Z])/g, " $1").toLowerCase();

const TEXTS = ["step", "question", "key", "text", "answer", "name", "stage", "verdict", "reason", "holder", "verb"];

/**
 * What the body says, in a line.
 * @param {RunEvent} event
 * @param {number} now
 */
export function eventWords({ body = {}, by }, now) {
  const { failure, chunks, routes, retry_at, item = null, usd = 0, tokens = 0, nodes, verdicts } = /** @type {any} */ (body);
  const texts = TEXTS.map((name) => typeof body[name] === "string" && (name === "reason" ? `“${body[name]}”` : body[name]));
  return [
    by && `by ${by}`,
    item !== null && `item ${item}`,
    costWords({ usd, tokens }),
    failure && `${failure.type}: ${messageOf(failure)}`,
    chunks?.length && plural(chunks.length, "chunk"),
    nodes?.join?.(", "),
    verdicts &&
      Object.entries(verdicts)
        .map(([target, is]) => `${is ? "to" : "not to"} ${target}`)
        .join(", "),
    routes?.length && `then ${routes.join(", ")}`,
    ...texts,
    retry_at && `retry at ${instant(retry_at, now)}`,
  ]
    .filter(Boolean)
    .join(" · ");
}
