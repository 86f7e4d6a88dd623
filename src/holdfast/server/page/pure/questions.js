// Questions: their order, the schema of their answer, what follows, and what became of one that was answered elsewhere.

import { LOOKS } from "./statuses.js";
import { agoWords, instant } from "./words.js";

/**
 * @typedef {import("../shapes.js").AskedQuestion} Asked
 * @typedef {import("../shapes.js").Question} Question
 *
 * @typedef {object} QuestionList
 * @property {Asked[]} shown  in the order in which they were first shown
 * @property {Set<string>} closed  the keys of questions that are not open any more
 * @property {Asked[]} fresh  those that were asked since, which wait until the reader asks for them
 */

/** @param {Asked} asked */
export const keyOfAsked = (asked) => `${asked.run_id} ${asked.question.key}`;

/**
 * Soonest deadline first, then oldest.
 * @param {Asked[]} all
 */
export const orderQuestions = (all) => {
  const due = (/** @type {Asked} */ { question }) => question.until ?? Infinity;
  return [...all].sort((one, other) => due(one) - due(other) || one.question.asked_at - other.question.asked_at);
};

/**
 * What is open now, without moving a row that a reader sees: new questions wait, closed ones stay where they are.
 * @param {QuestionList | null} list
 * @param {Asked[]} open
 * @returns {QuestionList}
 */
export function receiveQuestions(list, open) {
  if (!list?.shown.length) return { shown: orderQuestions(open), closed: new Set(), fresh: [] };
  const now = new Map(open.map((one) => [keyOfAsked(one), one]));
  const known = new Set(list.shown.map(keyOfAsked));
  return {
    shown: list.shown.map((one) => now.get(keyOfAsked(one)) ?? one),
    closed: new Set([...known].filter((key) => !now.has(key))),
    fresh: open.filter((one) => !known.has(keyOfAsked(one))),
  };
}

/**
 * The list in order, with the new questions and without the closed ones.
 * @param {QuestionList} list
 * @returns {QuestionList}
 */
export const reorder = (list) =>
  receiveQuestions(null, [...list.shown.filter((one) => !list.closed.has(keyOfAsked(one))), ...list.fresh]);

/** Whether the engine asks what to do with a node that may have had its effect. @param {Question} question */
export const isAboutCrash = ({ about = "interrupt" }) => about === "interrupt" || about === "repeat";

/** The text, in which the engine quotes the name of the node. @param {Question} question */
export const questionWords = ({ text, node }) => text.replace(`'${node}'`, node);

/** @param {Question} question @returns {import("./statuses.js").Look} */
export const lookOfQuestion = (question) => (isAboutCrash(question) ? LOOKS.crashed : LOOKS.asks);

/**
 * The schema that an answer has to fit.
 * @param {Question} question
 * @returns {Record<string, any>}
 */
export const schemaOf = (question) => {
  const { answer_schema, options } = question;
  return options.length ? { enum: [...options, ...doubtsOf(question).map(happenedWords)] } : (answer_schema ?? {});
};

/** The steps of which an answer can say that they have happened. @param {Question} question */
export const doubtsOf = ({ partial }) => partial?.in_doubt ?? [];

/** That choice in words. @param {import("../shapes.js").DoubtfulStep} doubt */
export const happenedWords = ({ step, item }) => `${step}${item === undefined ? "" : ` (item ${item})`} has happened`;

/** When it wants an answer: "until 16:00:00"; "" at any time. @param {Question} question @param {number} now */
export const untilWords = ({ until }, now) => (until ? (until > now ? `until ${instant(until, now)}` : "time is up") : "");

/** How long it waits, and in a second line until when. @param {Question} question @param {number} now */
export const whenWords = (question, now) =>
  [`asked ${agoWords(now - question.asked_at)}`, untilWords(question, now)].filter(Boolean).join("\n");

/**
 * How a question was closed, as a sentence.
 * @param {import("../shapes.js").Closing} closing
 * @param {number} now
 */
export function closingWords({ how, by, at, answer, reason }, now) {
  const when = at === null ? "" : ` at ${instant(at, now)}`;
  if (how === "timed out") return "No answer came in time.";
  if (how === "withdrawn") return "The question was withdrawn: its node or the run ended, or was resumed from before it.";
  const value = typeof answer === "string" ? `“${answer}”` : JSON.stringify(answer);
  const why = reason ? ` Reason: “${reason}”.` : "";
  return `Answered${by ? ` by ${by}` : ""}${when}: ${value}.${why}`;
}

/**
 * What follows, with the answers that have the same consequence together.
 * @param {import("../shapes.js").AnswerOutcome[]} outcomes
 * @returns {{ answers: string[], words: string, once: string[] }[]}
 */
export function consequences(outcomes) {
  return [...new Set(outcomes.map(({ words }) => words))].map((words) => {
    const same = outcomes.filter((one) => one.words === words);
    const answers = same.length === outcomes.length ? [] : same.flatMap(({ answer }) => answer ?? []);
    return { answers, words, once: same[0].once };
  });
}

/**
 * The body of the request that answers.
 * @param {Question} question
 * @param {{ answer: unknown, update?: unknown, result?: unknown, reason: string }} given
 */
export function answerBody(question, { answer, update, result, reason }) {
  const doubt = doubtsOf(question).find((one) => happenedWords(one) === answer);
  return {
    question: question.key,
    answer: doubt ? "happened" : answer,
    ...(update === undefined ? {} : { update }),
    ...(doubt && { step: doubt.step, item: doubt.item, result }), // JSON leaves out what is undefined
    ...(reason ? { reason } : {}),
  };
}

/**
 * The command that gives the same answer.
 * @param {string} program  as the server calls it
 * @param {string} run
 * @param {ReturnType<typeof answerBody>} body
 */
export function answerCommand(program, run, { question, answer, reason }) {
  const value = typeof answer === "string" && !isJson(answer) ? answer : JSON.stringify(answer);
  const why = reason ? ["--reason", reason] : [];
  return `${program} answer ${[run, question, ...why, ...(value.startsWith("-") ? ["--"] : []), value].map(quote).join(" ")}`;
}

/** @param {string} text */
function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** As a word of a POSIX shell. @param {string} word */
const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

/**
 * The faults that the server found in an answer, by the path in its form.
 * @param {import("../shapes.js").Problem} problem
 * @param {string} field  of the body: "answer"
 * @returns {import("./schemas.js").Fault[]}
 */
export const faultsIn = (problem, field) =>
  (problem.errors ?? [])
    .filter(({ path }) => path === field || path.startsWith(`${field}.`))
    .map(({ path, message }) => ({ path: path.split(".").slice(1), message }));
