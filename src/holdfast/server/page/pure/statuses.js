// The status vocabulary: which word, glyph and tone a run or node has. Colour says who has to move (accent: the engine, ask: a
// person, fail: it is broken, rest: nobody), and is never alone: every status has a glyph and a word.

/**
 * @typedef {"rest" | "accent" | "ask" | "fail" | "done"} Tone
 * @typedef {{ word: string, glyph: import("./glyphs.js").GlyphName, tone: Tone, turns?: boolean }} Look
 */

/**
 * Name, tone, and the word and the glyph where these are not the name.
 * @type {[name: string, tone: Tone, word?: string, glyph?: string][]}
 */
const KNOWN = [
  ["pending", "rest"],
  ["running", "accent"],
  ["waiting", "rest"],
  ["asks", "ask", "waiting"],
  ["crashed", "ask"],
  ["pausing", "accent"],
  ["paused", "rest"],
  ["interrupted", "rest"],
  ["completed", "done"],
  ["failed", "fail"],
  ["cancelled", "rest"],
  ["skipped", "rest"],
  ["unreached", "rest", "not reached"],
  ["deleted", "rest", "deleted", "close"],
  ["unreadable", "fail", "unreadable", "warning"],
];

/** @type {Record<string, Look>} */
export const LOOKS = Object.fromEntries(
  KNOWN.map(([name, tone, word = name, glyph = name]) => [
    name,
    { word, glyph: /** @type {import("./glyphs.js").GlyphName} */ (glyph), tone, turns: tone === "accent" },
  ]),
);

/** What failed without stopping the run, so that nobody has to move. @type {Look} */
export const HANDLED = { ...LOOKS.failed, tone: "rest" };

/** The statuses in the order in which the page lists them: what moves first, then what stopped, then what ended. */
export const STATUS_ORDER = /** @type {const} */ ([
  "running",
  "pending",
  "waiting",
  "paused",
  "interrupted",
  "failed",
  "completed",
  "cancelled",
]);

/** How many runs there are; null if that is not known yet. @param {import("../shapes.js").Board | null} board */
export const countAll = (board) => board && Object.values(board.counts).reduce((sum, count) => sum + count, 0);

/**
 * How a run looks. A crash, an open question and a pause that waits for running nodes are facts beside the status, and outrank
 * its plain look.
 * @param {{ status: string, crashed?: boolean, pausing?: boolean, asks?: number, remedy?: { verb: string } | null }} run
 * @returns {Look}
 */
export function lookOfRun(run) {
  if (run.remedy?.verb === "verify") return LOOKS.unreadable; // only a log that cannot be read has that remedy first
  if (run.crashed) return LOOKS.crashed;
  if (run.status === "waiting" && run.asks) return LOOKS.asks;
  if (run.pausing) return LOOKS.pausing;
  // A status that a newer server has is shown as it is, rather than hidden.
  return LOOKS[run.status] ?? { word: run.status, glyph: "unreached", tone: "rest" };
}

/** How the run continues after a failure. @param {string[]} by */
const handledWords = (by) => (by.length ? `taken by ${by.join(", ")}` : "run continues");

/** The same as a sentence. @param {string[]} by */
export const handledSentence = (by) =>
  `It failed, and the run continued ${by.length ? `with ${by.join(", ")}` : "without its result"}.`;

/**
 * How an attempt looks. One whose failure did not stop the run has failed all the same.
 * @param {{ status: string, failure?: unknown, error?: string | null, handled?: boolean }} attempt
 */
export const lookOfAttempt = (attempt) =>
  attempt.handled || (attempt.status === "skipped" && (attempt.failure ?? attempt.error)) ? HANDLED : lookOfRun(attempt);

/**
 * How a node looks; `undefined` for one that the run has not reached.
 * @param {import("../shapes.js").NodeMark | undefined} mark
 * @returns {Look}
 */
export function lookOfNode(mark) {
  if (!mark) return LOOKS.unreached;
  if (mark.handled_by) return { ...HANDLED, word: `failed, ${handledWords(mark.handled_by)}` };
  return lookOfRun({ status: mark.status, crashed: mark.crashed, asks: mark.waits_for === "question" ? 1 : 0 });
}
