// What a reader can do about a run: where the button of a remedy leads, and what it says. A verb opens a preview on the screen of
// the run; an answer is given on the screen of questions. A remedy that only a terminal can carry out is a command to copy.

/**
 * @typedef {import("./fragments.js").Place} Place
 * @typedef {import("../shapes.js").Remedy} Remedy
 * @typedef {{ label: string, place: Place }} Action
 */

/** Verbs of the API that the page has a form for, and what their button says. @type {Record<string, string>} */
export const VERBS = {
  resume: "Resume",
  retry: "Retry",
  skip: "Skip",
  fork: "Fork",
  cancel: "Cancel",
  pause: "Pause",
  answer: "Answer",
  signal: "Send",
};

/** The run that a remedy is about. @param {Remedy} remedy @returns {string} */
export const runOf = ({ arguments: { run, run_id = run } }) => /** @type {any} */ (run_id);

/**
 * The action for a remedy; null if only a terminal can carry it out.
 * @param {string} run
 * @param {Remedy} remedy
 * @returns {Action | null}
 */
export function actionFor(run, remedy) {
  if (remedy.verb === "queue") return { label: "Set limit", place: { screen: "workers", query: {} } };
  const label = VERBS[remedy.verb];
  run = runOf(remedy) ?? run; // a remedy of a child run helps its caller
  if (label === undefined) return null;
  if (remedy.verb === "answer") {
    const key = remedy.arguments.question;
    return { label, place: { screen: "questions", query: { run: [run], ...(typeof key === "string" ? { key: [key] } : {}) } } };
  }
  const node = remedy.arguments.node;
  return {
    label,
    place: { screen: "run", run, query: { do: [remedy.verb], ...(typeof node === "string" ? { node: [node] } : {}) } },
  };
}

/**
 * The action in a row of the list: only where the run does not move by itself and has not ended as it should.
 * @param {import("../shapes.js").Row} row
 * @returns {Action | null}
 */
export function actionOfRow(row) {
  if (!row.remedy || !(row.needs_attention || row.status === "paused")) return null;
  return actionFor(row.id, row.remedy);
}

const RANKS = ["read", "start", "operate", "admin"];

/**
 * Whether a token may operate runs.
 * @param {import("../shapes.js").Role} role
 */
export const mayOperate = (role) => RANKS.indexOf(role) >= RANKS.indexOf("operate");
