// Why a node of a plan ran or did not, in lines: the edges to it with what their guards read, what policies decided, and how its
// result was verified.

/**
 * @typedef {import("../shapes.js").NodeReasons} NodeReasons
 * @typedef {import("./visit_words.js").Line} Line
 */

const READ_CHARS = 80;

/** The values that a rule has read: " (a = 1, b = 2)". @param {Record<string, unknown>} [reads] */
function readWords(reads = {}) {
  const all = Object.entries(reads).map(([path, value]) => `${path} = ${(JSON.stringify(value) ?? "").slice(0, READ_CHARS)}`);
  return all.length ? ` (${all.join(", ")})` : "";
}

/** @param {string} [reason] */
const because = (reason) => (reason ? `: ${reason}` : "");

/**
 * @param {[glyph: Line["glyph"], tone: string]} look
 * @param {string} text
 * @param {string[]} names
 * @param {number | null} seq
 * @param {string} rest  in which a word that equals a name is none
 * @returns {Line}
 */
const tellLine = ([glyph, tone], text, names, seq, rest) => ({ glyph, tone, text, names, seq, rest });

/** Passage of an edge -> its look and its words. @type {Record<string, [Line["glyph"], string, string]>} */
const PASSAGES = {
  taken: ["tick", "done", " led here"],
  "not taken": ["close", "rest", " did not lead here"],
  undecided: ["waiting", "rest", " has not ended"],
};

/**
 * The edges to a node: whether each was taken, and why.
 * @param {NodeReasons} reasons
 * @returns {Line[]}
 */
export const edgeLines = ({ edges }) =>
  edges
    .filter(({ source }) => source !== "START")
    .map(({ source, passage, guard, verdict, reads, seq, why }) => {
      const [glyph, tone, words] = PASSAGES[passage];
      const names = [source, guard].filter(Boolean);
      const told = source + words + (why && `, ${why}`);
      if (!guard || verdict === null)
        return tellLine([glyph, tone], told + (guard && `; it must be that ${guard}`), names, seq, "");
      return tellLine([glyph, tone], `${told}: ${guard} is ${verdict}`, names, seq, readWords(reads));
    });

/** Verdict -> its look, and the verb. @type {Record<string, [Line["glyph"], string, string]>} */
const VERDICTS = {
  allow: ["kept", "done", "allows"],
  ask: ["asks", "ask", "asks about"],
  deny: ["failed", "fail", "denies"],
};

/**
 * What policies decided about a visit and its result.
 * @param {NodeReasons} reasons
 * @returns {Line[]}
 */
export const policyLines = ({ policies }) =>
  policies.flatMap(({ seq, stage, decisions, fault }) => {
    const about = stage === "pre" ? "it" : "its result";
    const all = decisions.map(({ policy, verdict, reason, reads }) => {
      const [glyph, tone, verb] = VERDICTS[verdict];
      return tellLine([glyph, tone], `${policy} ${verb} ${about}`, [policy], seq, because(reason) + readWords(reads));
    });
    if (fault) all.push(tellLine(["failed", "fail"], "The policies could not decide, which denies it", [], seq, because(fault)));
    return all;
  });

/**
 * How the result was verified.
 * @param {NodeReasons} reasons
 * @returns {Line[]}
 */
export const checkLines = ({ verifications }) =>
  verifications.flatMap(({ seq, checks }) =>
    checks.map(({ id, ok, reason, reads }) => {
      const rest = because(reason) + readWords(reads);
      return tellLine(ok ? ["tick", "done"] : ["failed", "fail"], id + (ok ? " passed" : " did not pass"), [id], seq, rest);
    }),
  );

/**
 * The rule of an edge and its verdict, for the mark on its line.
 * @param {import("../shapes.js").EdgeRule} rule
 * @param {boolean | undefined} isTaken  undefined: not decided
 */
export function ruleWords({ guard, errors }, isTaken) {
  const failure = errors && `on ${errors.includes("*") ? "any failure" : errors.join(" or ")}`;
  const verdict = isTaken === undefined ? "not decided" : isTaken ? "taken" : "not taken";
  return `${[failure, guard && `if ${guard}`].filter(Boolean).join(", ")}: ${verdict}`;
}
