// An event of a log in words: what happened, and the one fact of its body that a reader looks for.

import { instant, plural } from "./words.js";

/** @typedef {import("../shapes.js").RunEvent} RunEvent */

/** Kinds whose tone is not "nobody has to move". @type {Record<string, string>} */
const TONES = {
  NodeFailed: "fail",
  RunFailed: "fail",
  ItemFailed: "fail",
  RoutingFailed: "fail",
  NodeInterrupted: "ask",
  QuestionAsked: "ask",
  RequestRefused: "ask",
  ResumeRefused: "ask",
  NodeStarted: "accent",
  RunCompleted: "done",
};

/** @param {RunEvent} event */
export const toneOfEvent = ({ kind }) => TONES[kind] ?? "rest";

/** "NodeFailed" as "node failed". @param {string} kind */
export const kindWords = (kind) => kind.replace(/(?!^)([A-Z])/g, " $1").toLowerCase();

/**
 * What the body says, in a line.
 * @param {RunEvent} event
 * @param {number} now
 */
export function eventWords({ body = {}, by }, now) {
  const failure = /** @type {{ type?: string, message?: string } | undefined} */ (body.failure);
  const chunks = /** @type {unknown[] | undefined} */ (body.chunks);
  const routes = /** @type {unknown[] | undefined} */ (body.routes);
  const parts = [
    by ? `by ${by}` : "",
    failure ? `${failure.type}: ${failure.message}` : "",
    Array.isArray(chunks) ? plural(chunks.length, "chunk") : "",
    Array.isArray(routes) && routes.length ? `then ${routes.join(", ")}` : "",
    ...["step", "question", "key", "text", "answer", "name", "reason", "holder", "verb"].map((name) =>
      typeof body[name] === "string" && body[name] !== "" ? `${name === "reason" ? `“${body[name]}”` : body[name]}` : "",
    ),
    typeof body.retry_at === "number" ? `retry at ${instant(body.retry_at, now)}` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}
