// What to know before answering: what follows from each answer, what is known of a node that crashed, the state that the question
// sees, and how far the run has come.

import { formatFragment } from "../pure/fragments.js";
import { consequences, isAboutCrash } from "../pure/questions.js";
import { lookOfNode } from "../pure/statuses.js";
import { duration, instant, markNames, plural, span } from "../pure/words.js";
import { element, glyph, setSentence } from "../shell/elements.js";
import { valueText } from "./difference.js";

/**
 * @typedef {import("../shapes.js").QuestionDetails} QuestionDetails
 *
 * @typedef {object} Known
 * @property {QuestionDetails} details
 * @property {Record<string, import("../shapes.js").NodeMark>} marks  the nodes that the run has reached
 * @property {any} visit  of a node that crashed, as `GET runs/{id}/nodes/{node}` has it; else null
 * @property {number} now
 */

const FIELDS_SHOWN = 12;
const TEXT_SHOWN = 160;

/** @returns {import("../shell/elements.js").Part<Known>} */
export function createQuestionSide() {
  const host = element("aside", { class: "question-side", "aria-label": "What to know" });
  let shown = "";
  return {
    element: host,
    update(known) {
      const text = JSON.stringify([known.details, known.marks, known.visit]);
      if (text === shown) return;
      shown = text;
      const { run_id, question } = known.details;
      const open = formatFragment({ screen: "run", run: run_id, query: { node: [question.node] } });
      host.replaceChildren(
        createSection("What follows", ...createConsequences(known.details)),
        ...(isAboutCrash(question) && known.visit ? [createSection("What is known", createEvidence(known))] : []),
        ...(known.details.state ? [createSection("State it sees", createSeenState(known.details))] : []),
        createSection("Progress", createRunProgress(known)),
        element("a", { href: open }, "Open the run"),
      );
    },
  };
}

/** @param {string} title @param {...Node} content */
const createSection = (title, ...content) => element("section", {}, element("h3", {}, title), ...content);

/** @param {QuestionDetails} details */
function createConsequences({ outcomes, question, then }) {
  const names = [question.node, ...outcomes.flatMap((one) => one.nodes)];
  const rows = consequences(outcomes).map(({ answers, words, once }) => {
    const line = element("span", {});
    setSentence(line, markNames(answers.length ? `${answers.join(" or ")}: ${words}` : words, names));
    const marks = once.length ? [" ", element("span", { class: "tag outlined", title: "not idempotent" }, "1×")] : [];
    const are = once.length > 1 ? "are not idempotent: they are" : "is not idempotent: it is";
    const note = once.length > 0 && element("p", { class: "hint" }, `${once.join(", ")} ${are} never run twice without asking.`);
    return element("li", {}, glyph("right"), element("div", {}, line, ...marks, note));
  });
  if (then) rows.push(element("li", {}, glyph("waiting"), element("div", {}, `Without an answer in time, ${then}.`)));
  return [element("ul", { class: "follows" }, ...rows)];
}

/** What a crashed attempt left behind. @param {Known} known */
function createEvidence({ details, visit, now }) {
  const attempt = visit.attempts.findLast((/** @type {any} */ one) => one.status === "crashed") ?? visit.attempts.at(-1);
  const left = attempt?.left ?? {};
  const partial = Object.entries(details.question.partial ?? {});
  /** @type {[string, string][]} */
  const facts = [
    ["Attempt", attempt ? `${attempt.attempt}, began ${instant(attempt.started_at, now)}` : "none began"],
    ["Steps done", left.steps?.map((/** @type {any} */ step) => step.name ?? step).join(", ") || "none"],
    ["Streamed", left.chunks ? plural(left.chunks, "chunk") : "nothing"],
    ["Files", left.files?.map((/** @type {any} */ file) => file.path ?? file).join(", ") || "none"],
    ...partial.map(([name, value]) => /** @type {[string, string]} */ ([name, cutText(valueText({ value }))])),
    ...(left.last_lines?.length ? [/** @type {[string, string]} */ (["Last lines", left.last_lines.slice(-3).join("\n")])] : []),
  ];
  return createFacts(facts);
}

/** @param {QuestionDetails} details */
function createSeenState({ run_id, state }) {
  const fields = Object.entries(state ?? {});
  const list = createFacts(fields.slice(0, FIELDS_SHOWN).map(([name, value]) => [name, cutText(valueText(value))]));
  const more = fields.length - FIELDS_SHOWN;
  if (more <= 0) return fields.length ? list : element("p", { class: "hint" }, "Empty");
  const whole = formatFragment({ screen: "run", run: run_id, query: { view: ["state"] } });
  return element("div", {}, list, element("a", { href: whole }, plural(more, "more field")));
}

/** @param {[string, string][]} facts */
const createFacts = (facts) =>
  element(
    "dl",
    { class: "facts-list" },
    ...facts.flatMap(([name, value]) => [element("dt", { title: name }, name), element("dd", { dir: "auto" }, value)]),
  );

/** @param {Known} known */
function createRunProgress({ details, marks, now }) {
  const ahead = details.outcomes.flatMap((one) => one.nodes).filter((node) => !(node in marks) && node !== "END");
  const rows = [...Object.keys(marks), ...new Set(ahead)].map((node) => {
    const look = lookOfNode(marks[node]);
    const mark = element("span", { class: "status", "data-tone": look.tone, title: look.word }, glyph(look.glyph));
    const name = element("code", { class: "cut" }, node);
    return element(
      "li",
      {},
      mark,
      name,
      element("span", { class: "unseen" }, look.word),
      element("span", { class: "hint" }, tookWords(marks[node], details, now)),
    );
  });
  return element("ul", { class: "progress-list" }, ...rows);
}

/** @param {import("../shapes.js").NodeMark | undefined} mark @param {QuestionDetails} details @param {number} now */
function tookWords(mark, { question }, now) {
  if (!mark) return "";
  if (mark.waits_for === "question") return span(Math.max(0, now - question.asked_at));
  return mark.seconds === undefined ? "" : duration(mark.seconds);
}

/** @param {string} text */
const cutText = (text) => (text.length > TEXT_SHOWN ? `${text.slice(0, TEXT_SHOWN)}…` : text);
