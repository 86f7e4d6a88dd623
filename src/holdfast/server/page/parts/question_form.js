// The form that answers a question. It is sent with a key made when it was opened, so that a second click answers once; what was
// typed stays when the answer is refused or when somebody else has answered meanwhile.

import {
  answerBody,
  answerCommand,
  closingWords,
  doubtsOf,
  faultsIn,
  happenedWords,
  isAboutCrash,
  schemaOf,
} from "../pure/questions.js";
import { button, element, setText } from "../shell/elements.js";
import { createKey, isRefusal } from "../shell/api.js";
import { createBanner, problemBanner } from "./banner.js";
import { createCopyButton } from "./command.js";
import { createSchemaForm } from "./schema_form.js";

/**
 * @typedef {import("../shapes.js").QuestionDetails} QuestionDetails
 * @typedef {import("../shell/app.js").App} App
 *
 * @typedef {object} QuestionForm
 * @property {HTMLElement} element
 * @property {(closing: import("../shapes.js").Closing | null) => void} close  the question was closed, here or elsewhere
 * @property {() => void} send
 * @property {(at: number) => void} choose  the option at this place, from 1
 */

/**
 * @param {App} app
 * @param {QuestionDetails} details
 * @param {object} options
 * @param {string} options.program  how the server calls the command
 * @param {() => void} options.sent  the answer was sent: accepted, or refused because the question is closed, say
 * @returns {QuestionForm}
 */
export function createQuestionForm(app, { run_id, question }, { program, sent }) {
  let key = createKey();
  let [sending, closed] = [false, false];
  const id = `why-${key}`;
  const crash = isAboutCrash(question);
  const form = createSchemaForm(schemaOf(question), crash ? "What to do" : "Answer");
  const help = `What ${question.node} would have changed, as JSON: field and value.`;
  const update = createSchemaForm({ type: "object", default: {}, description: help }, `Result of ${question.node}`);
  const results = doubtsOf(question).map((one) => ({
    choice: happenedWords(one),
    form: createSchemaForm(one.result_schema ?? {}, `Result of ${one.step}`),
  }));
  const reason = element("input", { class: "field", id });
  const banner = createBanner();
  const answer = button("button filled", () => void send(), "Answer");
  const copy = createCopyButton(() => answerCommand(program, run_id, bodyOfAnswer(form.peek(), {})), "Copy command", "words");
  const host = element(
    "form",
    {
      class: "question-form",
      oninput: draw,
      onsubmit(/** @type {Event} */ event) {
        event.preventDefault();
        void send();
      },
    },
    banner.element,
    form.element,
    update.element,
    ...results.map((one) => one.form.element),
    element("div", { class: "form-field answer-reason" }, element("label", { for: id }, "Reason"), reason),
    element("footer", {}, answer, element("span", { class: "hint" }, `as ${app.meta().name}`), copy),
  );

  const skips = () => crash && form.peek() === "skip";
  /** The form for the result of the step that has happened, if that is chosen. */
  const stated = () => results.find(({ choice }) => choice === form.peek())?.form;
  /** @param {unknown} value @param {{ update?: unknown, result?: unknown }} given */
  const bodyOfAnswer = (value, given) => answerBody(question, { answer: value, ...given, reason: reason.value.trim() });

  function draw() {
    update.element.hidden = !skips();
    const shown = stated();
    for (const one of results) one.form.element.hidden = one.form !== shown;
    reason.required = Boolean(shown);
    reason.placeholder = `${shown ? "Required" : "Optional"}, recorded with your answer`;
    // With a result of the node, the command would need the file of the flow, which the page does not know.
    copy.hidden = closed || skips() || Boolean(shown) || form.peek() === undefined;
    answer.disabled = sending || closed;
  }

  async function send() {
    if (answer.disabled) return;
    const none = { value: undefined };
    const [read, changes, result] = [form.read(), skips() ? update.read() : none, stated()?.read() ?? none];
    if ("faults" in read || "faults" in changes || "faults" in result || !reason.reportValidity()) return;
    sending = true;
    draw();
    const body = bodyOfAnswer(read.value, { update: changes.value, result: result.value });
    const reply = await app.api.post(`runs/${run_id}/answer`, body, { key });
    sending = false;
    draw();
    banner.update(null);
    if (!reply.ok) showProblem(reply.problem);
    sent();
  }

  /** @param {import("../shapes.js").Problem} problem */
  function showProblem(problem) {
    if (isRefusal(problem)) key = createKey(); // the next attempt is another request
    update.showFaults(faultsIn(problem, "update"));
    stated()?.showFaults(faultsIn(problem, "result"));
    form.showFaults(faultsIn(problem, "answer"));
    if (!host.querySelector("[aria-invalid]")) banner.update(problemBanner(problem, () => void send()));
  }

  draw();
  return {
    element: host,
    send: () => void send(),
    choose(at) {
      const choices = /** @type {NodeListOf<HTMLElement>} */ (form.element.querySelectorAll("[type=radio], option"));
      const chosen = choices[at - (choices[0] instanceof HTMLOptionElement ? 0 : 1)];
      if (chosen instanceof HTMLOptionElement) chosen.selected = true;
      chosen?.click();
      chosen?.focus();
      draw();
    },
    close(closing) {
      if (closed && !closing) {
        key = createKey(); // it is asked again
        banner.update(null);
      }
      closed = closing !== null;
      const isAnswered = closing?.how === "answered";
      setText(answer, closing ? (isAnswered ? "Answered" : "Closed") : "Answer");
      if (closing)
        banner.update({
          tone: "accent",
          glyph: isAnswered ? "tick" : "waiting",
          title: closingWords(closing, app.clock.now()),
        });
      draw();
    },
  };
}
