// A visit of a node in words: why it ran, why each attempt began, how it ended, and what a crashed one left behind.

import { edgeLines } from "./reasons.js";
import { answerWords, cutMiddle, duration, plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").AttemptView} AttemptView
 * @typedef {{ glyph: import("./glyphs.js").GlyphName, tone: string, text: string, names: string[], seq: number | null,
 *   rest?: string }} Line
 */

/**
 * Why a visit and its attempt ran: the nodes that led to it, the choice of a branch, who resumed the run.
 * @param {NodeVisit} visit
 * @param {AttemptView | null} attempt
 * @returns {Line[]}
 */
export function whyItRan(visit, attempt) {
  const before = visit.attempts.find((one) => one.attempt === (attempt?.attempt ?? 0) - 1);
  const edges = visit.reasons ? edgeLines(visit.reasons) : [];
  return [...(edges.length ? edges : causesOf(visit)), ...(attempt?.because ? [becauseOf(attempt, before, visit)] : [])];
}

/** @param {NodeVisit} visit @returns {Line[]} */
function causesOf({ node, causes }) {
  const [first] = causes;
  if (!first) return [];
  const names = [...causes.map((one) => one.node), node];
  const seq = causes.length > 1 ? null : first.seq;
  /** @param {Line["glyph"]} glyph @param {string} text */
  const line = (glyph, text) => [{ glyph, tone: glyph === "completed" ? "done" : "rest", text, names, seq }];
  if (first.node === "START") return line("play", "The run began here");
  if (seq === null) {
    const all = causes.map((one) => `${one.node} @${one.seq}`);
    return line("completed", `${all.slice(0, -1).join(", ")} and ${all.at(-1)} arrived (join)`);
  }
  return first.why === "branch" ? line("fork", `${first.node} chose ${node}`) : line("completed", `${first.node} completed`);
}

/**
 * What was asked of a visit, and who answered what, and why.
 * @param {NodeVisit} visit
 * @returns {Line[]}
 */
export const questionLines = ({ questions }) =>
  questions.flatMap(({ text, seq, answers }) => [
    { glyph: "asks", tone: answers.length ? "rest" : "ask", text, names: [], seq },
    ...answers.map(({ seq: at, answer, by, reason, refused }) => {
      const [who, said] = [by ?? "somebody", reason ? `, “${reason}”` : ""];
      /** @type {Line} */
      const line = { glyph: "person", tone: refused ? "fail" : "accent", text: "", names: [], seq: at };
      return { ...line, text: `${who} answered ${answerWords(answer.value)}${said}${refused ? ": the node failed" : ""}` };
    }),
  ]);

/** @param {AttemptView} attempt @param {AttemptView | undefined} before @param {NodeVisit} visit @returns {Line} */
function becauseOf({ attempt, because }, before, { questions }) {
  const { kind, seq, by, reason, holder } = /** @type {NonNullable<AttemptView["because"]>} */ (because);
  const [who, said] = [by ?? "somebody", reason ? `, “${reason}”` : ""];
  const answer = questions.flatMap((one) => one.answers).find((one) => one.seq === seq);
  const died = before?.status === "crashed" ? `the process of attempt ${before.attempt} died, ` : "";
  /** @type {Record<string, string>} */
  const words = {
    retry: `the attempt before failed${before?.failure ? ` with ${before.failure.type}` : ""}`,
    retried: `${who} retried it${said}`,
    resumed: `${who} resumed the run${said}`,
    rewound: `${who} went back to an earlier checkpoint${said}`,
    answered: `${who} answered${answer ? ` ${answerWords(answer.answer.value)}` : ""}${said}`,
    claimed: `${died}${holder ?? "another process"} claimed the run`,
  };
  /** @type {[Line["glyph"], string]} */
  const [glyph, tone] = kind === "claimed" ? ["crashed", "ask"] : kind === "retry" ? ["retry", "rest"] : ["person", "accent"];
  return { glyph, tone, text: `Attempt ${attempt}: ${words[kind] ?? kind}`, names: holder ? [holder] : [], seq };
}

/** Why the run continued after a failure, in words. @type {Record<string, string>} */
const HANDLED_WORDS = { on_error: "taken by an error edge", safe_to_fail: "safe to fail" };

/** Kind of a failure -> what it is called, and what it means. @type {Record<string, [words: string, meaning: string]>} */
const FAILURES = {
  recoverable: ["can be retried", "It may pass at the next attempt: the node is retried as often as its flow says."],
  partial: ["not retried", "Another attempt would fail in the same way. Fix the cause and resume the run, or skip the node."],
  fatal: ["fatal", "The node says that no retry helps. The run is resumed only if that is confirmed."],
};

/**
 * The message of a failure, after the item for which a fan-out failed.
 * @param {{ message: string, item?: number | null, label?: string }} failure
 */
export const messageOf = ({ message, item = null, label = "" }) =>
  item === null ? message : `item ${item}${label && ` (${label})`}: ${message}`;

/** @param {string} kind @returns {[words: string, meaning: string]} */
export const failureWords = (kind) => FAILURES[kind] ?? [kind, ""];

/**
 * How an attempt ended, in one line: the error, or what happened to it.
 * @param {AttemptView} attempt
 * @returns {{ text: string, note: string }}
 */
export function attemptWords({ status, failure, retry_at, ended_at, reason, by }) {
  if (failure) {
    const wait = retry_at && ended_at ? `retried in ${duration(retry_at - ended_at).replace(".0 s", " s")}` : "";
    const why = HANDLED_WORDS[reason ?? ""] ?? reason;
    return { text: failure.type, note: [why, wait || failureWords(failure.kind)[0]].filter(Boolean).join(" · ") };
  }
  const text = status === "crashed" ? "its process died" : status === "skipped" && by ? `${by} skipped it` : status;
  return { text, note: reason ?? "" };
}

/** @param {AttemptView} attempt @param {number} now  null: "–" */
export function attemptTime({ started_at, ended_at, status }, now) {
  if (started_at === null || (ended_at === null && status !== "running")) return "–";
  return duration((ended_at ?? now) - started_at);
}

/**
 * What an attempt that did not end in order has left.
 * @param {NonNullable<AttemptView["left"]>} left
 * @returns {{ glyph: import("./glyphs.js").GlyphName, text: string }[]}
 */
export function leftWords({ steps, chunks, last_lines, files }) {
  const end = last_lines.at(-1);
  /** @type {[glyph: import("./glyphs.js").GlyphName, text: string | number | boolean][]} */
  const all = [
    ["kept", steps.length > 0 && `${plural(steps.length, "step")} kept: ${steps.join(", ")}`],
    .../** @type {any} */ (files.map((file) => ["file", `${file}, not complete`])),
    ["list", chunks && `${plural(chunks, "chunk")}${end ? `, ending “${end.slice(-60)}”` : ""}`],
  ];
  return all.flatMap(([glyph, text]) => (text ? { glyph, text: String(text) } : []));
}

/**
 * The facts of a visit that its options and costs say.
 * @param {NodeVisit} visit
 * @returns {[name: string, value: string][]}
 */
export function visitFacts({ options, cost, title = "", capability = "" }) {
  const tries = options.retry?.attempts;
  /** @type {[name: string, value: string][]} */
  const all = [
    ["Title", title],
    ["Capability", capability],
    ["Cost", costWords(cost)],
    ["Time limit", options.timeout_s ? duration(options.timeout_s) : ""],
    ["Retries", tries ? plural(Number(tries), "attempt") : ""],
  ];
  return all.filter(([, value]) => value);
}

/** @param {{ usd: number, tokens: number }} cost */
export const costWords = ({ usd, tokens }) =>
  [usd ? `$${usd.toFixed(3)}` : "", tokens ? plural(tokens, "token") : ""].filter(Boolean).join(" · ");

const [VALUE_CHARS, EXCERPT_CHARS] = [140, 420];

/**
 * An input in one line. A value that has no room is cut in its middle, where "…" says so: what is wrong with a list is often at
 * its end.
 * @param {Record<string, import("../shapes.js").Value>} input
 * @param {(value: import("../shapes.js").Value) => string} textOf
 */
export function excerptOf(input, textOf) {
  const all = Object.entries(input).map(([name, value]) => {
    const line = value.bytes === undefined ? (JSON.stringify(value.value) ?? "not set") : textOf(value);
    return `"${name}": ${cutMiddle(line, VALUE_CHARS)}`;
  });
  let length = 0;
  const shown = all.filter((one, number) => (length += one.length) <= EXCERPT_CHARS || !number);
  const left = all.length - shown.length;
  return `{ ${[...shown, left && `… ${plural(left, "more field")}`].filter(Boolean).join(", ")} }`;
}
