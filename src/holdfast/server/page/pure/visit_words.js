// A visit of a node in words: why it ran, why each attempt began, how it ended, and what a crashed one left behind.

import { duration, plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").AttemptView} AttemptView
 * @typedef {{ glyph: import("./glyphs.js").GlyphName, tone: string, text: string, names: string[], seq: number | null }} Line
 */

/**
 * Why a visit and its attempt ran: the nodes that led to it, the choice of a branch, who resumed the run.
 * @param {NodeVisit} visit
 * @param {AttemptView | null} attempt
 * @returns {Line[]}
 */
export function whyItRan(visit, attempt) {
  const before = visit.attempts.find((one) => one.attempt === (attempt?.attempt ?? 0) - 1);
  return [...causesOf(visit), ...(attempt?.because ? [becauseOf(attempt, before)] : [])];
}

/** @param {NodeVisit} visit @returns {Line[]} */
function causesOf({ node, causes }) {
  const names = causes.map((one) => one.node);
  const seq = causes.at(-1)?.seq ?? null;
  const [first] = causes;
  if (!first) return [];
  if (first.node === "START") return [{ glyph: "play", tone: "rest", text: "The run began here", names, seq }];
  if (causes.length > 1) {
    const all = causes.map((one) => `${one.node} @${one.seq}`);
    const text = `${all.slice(0, -1).join(", ")} and ${all.at(-1)} arrived (join)`;
    return [{ glyph: "completed", tone: "done", text, names, seq: null }];
  }
  if (first.why === "branch")
    return [{ glyph: "fork", tone: "rest", text: `${first.node} chose ${node}`, names: [first.node, node], seq }];
  return [{ glyph: "completed", tone: "done", text: `${first.node} completed`, names, seq }];
}

/** @param {AttemptView} attempt @param {AttemptView | undefined} before @returns {Line} */
function becauseOf({ attempt, because }, before) {
  const { kind, seq, by, reason, holder } = /** @type {NonNullable<AttemptView["because"]>} */ (because);
  const who = by ?? "somebody";
  const said = reason ? `, “${reason}”` : "";
  /** @type {Record<string, string>} */
  const words = {
    retry: `the attempt before failed${before?.failure ? ` with ${before.failure.type}` : ""}`,
    retried: `${who} retried it${said}`,
    resumed: `${who} resumed the run${said}`,
    rewound: `${who} went back to an earlier checkpoint${said}`,
    answered: `${who} answered${said}`,
    claimed: `${before?.status === "crashed" ? `the process of attempt ${before.attempt} died, ` : ""}${holder ?? "another process"} claimed the run`,
  };
  const glyph = kind === "claimed" ? "crashed" : kind === "retry" ? "retry" : "person";
  const tone = kind === "claimed" ? "ask" : kind === "retry" ? "rest" : "accent";
  return { glyph, tone, text: `Attempt ${attempt}: ${words[kind] ?? kind}`, names: holder ? [holder] : [], seq };
}

/**
 * How an attempt ended, in one line: the error, or what happened to it.
 * @param {AttemptView} attempt
 * @returns {{ text: string, note: string }}
 */
export function attemptWords(attempt) {
  const { status, failure, retry_at, ended_at, because, reason, by } = attempt;
  if (failure) {
    const wait = retry_at && ended_at ? `, retried in ${duration(Math.max(0, retry_at - ended_at)).replace(/\.0 s/, " s")}` : "";
    return { text: failure.type, note: `${failure.kind}${wait}` };
  }
  if (status === "crashed") return { text: "its process died", note: "" };
  if (status === "skipped") return { text: by ? `${by} skipped it` : "skipped", note: reason ?? "" };
  const after = because?.by && status === "completed" ? `after ${because.by} ${because.kind} it` : "";
  return { text: status, note: reason ?? after };
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
  return [
    ...(steps.length
      ? [{ glyph: /** @type {const} */ ("kept"), text: `${plural(steps.length, "step")} kept: ${steps.join(", ")}` }]
      : []),
    ...files.map((file) => ({ glyph: /** @type {const} */ ("file"), text: `${file}, not complete` })),
    ...(chunks
      ? [{ glyph: /** @type {const} */ ("list"), text: `${plural(chunks, "chunk")}${end ? `, ending “${end.slice(-60)}”` : ""}` }]
      : []),
  ];
}

/**
 * The facts of a visit that its options and costs say.
 * @param {NodeVisit} visit
 * @returns {[name: string, value: string][]}
 */
export function visitFacts({ options, cost }) {
  const tries = options.retry?.attempts;
  return [
    .../** @type {[string, string][]} */ (cost.usd || cost.tokens ? [["Cost", costWords(cost)]] : []),
    .../** @type {[string, string][]} */ (options.timeout_s ? [["Time limit", duration(options.timeout_s)]] : []),
    .../** @type {[string, string][]} */ (tries ? [["Retries", plural(Number(tries), "attempt")]] : []),
    .../** @type {[string, string][]} */ (options.idempotent === false ? [["Repeats", "asks first: it is not idempotent"]] : []),
  ];
}

/** @param {{ usd: number, tokens: number }} cost */
export function costWords({ usd, tokens }) {
  return [usd ? `$${usd.toFixed(3)}` : "", tokens ? plural(tokens, "token") : ""].filter(Boolean).join(" · ");
}
