// What to know before answering: what follows from each answer, what is known of a node that crashed, the state that the question
// sees, and how far the run has come.

import { hrefOfRun } from "../pure/fragments.js";
import { consequences, isAboutCrash } from "../pure/questions.js";
import { checkLines, policyLines } from "../pure/reasons.js";
import { timeOf } from "../pure/node_views.js";
import { lookOfNode } from "../pure/statuses.js";
import { instant, markNames, plural, span } from "../pure/words.js";
import { element, glyph, setSentence } from "../shell/elements.js";
import { valueText } from "./difference.js";
import { createOnce } from "./graph_node.js";
import { createSlot } from "./slot.js";
import { createStatus } from "./status.js";
import { createWordLine } from "./visit_overview.js";

/**
 * @typedef {import("../shapes.js").QuestionDetails} QuestionDetails
 *
 * @typedef {object} Known
 * @property {QuestionDetails} details
 * @property {Record<string, import("../shapes.js").NodeMark>} marks  the nodes that the run has reached
 * @property {import("../shapes.js").NodeVisit | null} visit  of a node that crashed, or that policies judge
 */

const FIELDS_SHOWN = 12;
const TEXT_SHOWN = 160;

/** @param {() => number} now @returns {import("../shell/elements.js").Part<Known>} */
export function createQuestionSide(now) {
  const slot = createSlot("question-side", (/** @type {Known} */ { details, marks, visit }) => {
    const { run_id, question, state } = details;
    const fields = Object.entries(state ?? {});
    const more = fields.length - FIELDS_SHOWN;
    return [
      createSection("What follows", createConsequences(details)),
      ...createKnown(question, visit, now()),
      ...createJudgement(question, visit),
      createSection(
        visit?.capability ? `Input of ${visit.capability}` : "State it sees",
        createFacts(fields.slice(0, FIELDS_SHOWN).map(([name, value]) => [name, valueText(value)])),
        more > 0 && element("a", { href: hrefOfRun(run_id, { view: ["state"] }) }, plural(more, "more field")),
      ),
      createSection("Progress", createRunProgress(details, marks, now())),
      element("a", { href: hrefOfRun(run_id, { node: [question.node] }) }, "Open the run"),
    ];
  });
  return { element: element("aside", { "aria-label": "What to know" }, slot.element), update: slot.update };
}

/** @param {string} title @param {...import("../shell/elements.js").Child} content */
const createSection = (title, ...content) => element("section", {}, element("h3", {}, title), ...content);

/** @param {QuestionDetails} details */
function createConsequences({ outcomes, question, then }) {
  const names = [question.node, ...outcomes.flatMap((one) => one.nodes)];
  const rows = consequences(outcomes).map(({ answers, words, once }) => {
    const line = element("span", {});
    setSentence(line, markNames(answers.length ? `${answers.join(" or ")}: ${words}` : words, names));
    const are = once.length > 1 ? "are not idempotent: they are" : "is not idempotent: it is";
    const note = element("p", { class: "hint" }, createOnce(), ` ${once.join(", ")} ${are} never run twice without asking.`);
    return element("li", {}, glyph("right"), element("div", {}, line, once.length > 0 && note));
  });
  if (then) rows.push(element("li", {}, glyph("waiting"), `Without an answer in time, ${then}.`));
  return element("ul", {}, ...rows);
}

/**
 * What a policy asks about: what was returned, and what the policies and the verification said.
 * @param {import("../shapes.js").Question} question
 * @param {Known["visit"]} visit
 */
function createJudgement({ about, partial }, visit) {
  if (!visit?.reasons) return [];
  const lines = [...policyLines(visit.reasons), ...checkLines(visit.reasons)].map(createWordLine);
  const returned = element("p", { class: "excerpt" }, element("code", {}, valueText({ value: partial?.returned })));
  return [
    about === "result" && createSection("What it returned", returned),
    lines.length > 0 && createSection("Policies", ...lines),
  ];
}

/**
 * What is known of a node that may have had its effect: in the run that a fork was made from, or in an attempt that crashed.
 * @param {import("../shapes.js").Question} question
 * @param {Known["visit"]} visit
 * @param {number} now
 */
function createKnown(question, visit, now) {
  if (question.about === "repeat") return [createSection("What is known", createOrigin(question, now))];
  if (!visit?.attempts.length || !isAboutCrash(question)) return [];
  return [createSection("What is known", createEvidence(question, visit, now))];
}

/**
 * What the run has done that the fork was made from.
 * @param {import("../shapes.js").Question} question
 * @param {number} now
 */
function createOrigin({ partial = {} }, now) {
  const { run, at, iteration, items, items_done: done, result } = /** @type {Record<string, any>} */ (partial);
  const ended = result === undefined ? "it was not completed" : valueText({ value: result });
  return createFacts([
    ["Begun by", run ?? ""],
    ["At", at ? instant(at, now) : ""],
    ["Iteration", iteration > 1 ? String(iteration) : ""],
    items ? ["Items", `${done} of ${items.length} completed`] : ["Result", ended],
  ]);
}

/**
 * What a crashed attempt left behind.
 * @param {import("../shapes.js").Question} question
 * @param {import("../shapes.js").NodeVisit} visit
 * @param {number} now
 */
function createEvidence(question, { attempts }, now) {
  const { attempt, started_at, left } = attempts.findLast((one) => one.status === "crashed") ?? attempts[attempts.length - 1];
  return createFacts([
    ["Attempt", `${attempt}, began ${instant(started_at ?? now, now)}`],
    ["Steps done", left?.steps.join(", ") || "none"],
    ["Streamed", left?.chunks ? plural(left.chunks, "chunk") : "nothing"],
    ["Files", left?.files.join(", ") || "none"],
    ...Object.entries(question.partial ?? {}).map(([name, value]) => [name, valueText({ value })]),
    ["Last lines", left?.last_lines.slice(-3).join("\n") ?? ""],
  ]);
}

/** @param {string[][]} facts */
const createFacts = (facts) =>
  element(
    "dl",
    { class: "facts-list" },
    ...facts.flatMap(([name, value]) => {
      const text = value.length > TEXT_SHOWN ? `${value.slice(0, TEXT_SHOWN)}…` : value;
      return text ? [element("dt", { title: name }, name), element("dd", { dir: "auto" }, text)] : [];
    }),
  );

/**
 * @param {QuestionDetails} details
 * @param {Known["marks"]} marks
 * @param {number} now
 */
function createRunProgress({ outcomes, question }, marks, now) {
  const ahead = outcomes.flatMap((one) => one.nodes).filter((node) => node !== "END");
  const rows = [...new Set([...Object.keys(marks), ...ahead])].map((node) => {
    const mark = marks[node];
    const status = createStatus();
    status.update(lookOfNode(mark));
    const took = mark?.waits_for === "question" ? span(Math.max(0, now - question.asked_at)) : timeOf(mark, now);
    return element("li", {}, status.element, element("code", { class: mark ? "cut" : "cut hint" }, node), took);
  });
  return element("ul", { class: "progress-list" }, ...rows);
}
