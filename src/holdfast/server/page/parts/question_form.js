// The form that answers a question. It is sent with a key made when it was opened, so that a second click answers once; what was
// typed stays when the answer is refused or when somebody else has answered meanwhile.

import { answerBody, answerCommand, closingWords, faultsIn, isAboutCrash, schemaOf } from "../pure/questions.js";
import { button, element, setText } from "../shell/elements.js";
import { isRefusal } from "../shell/api.js";
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
export function createQuestionForm(app, details, { program, sent }) {
  const { run_id, question, outcomes } = details;
  let key = crypto.randomUUID();
  const id = `why-${key}`;
  const crash = isAboutCrash(question);
  const notes = crash ? Object.fromEntries(outcomes.map((one) => [one.answer ?? "", one.words])) : {};
  const form = createSchemaForm(schemaOf(question), crash ? "What to do" : "Answer", notes);
  const update = createSchemaForm(
    { type: "object", default: {}, description: updateHelp(question.node) },
    `Result of ${question.node}`,
  );
  const reason = element("input", { class: "field", id, placeholder: "Optional, recorded with your answer" });
  const banner = createBanner();
  const answer = button("button filled", () => void send(), "Answer");
  const copy = createCopyButton(() => command(), "Copy command", "words");
  const fields = element(
    "fieldset",
    { class: "answer-fields" },
    form.element,
    update.element,
    element("div", { class: "form-field answer-reason" }, element("label", { for: id }, "Reason"), reason),
  );
  const acts = element("footer", {}, answer, element("span", { class: "hint" }, `as ${app.meta().name}`), copy);
  const host = element("form", { class: "question-form", onsubmit: submit, oninput: draw }, banner.element, fields, acts);
  let sending = false;
  let closed = false;

  const skips = () => crash && form.peek() === "skip";
  const command = () =>
    answerCommand(program, run_id, answerBody(question, { ...given(), answer: form.peek(), reason: reason.value.trim() }));
  const given = () => ({ update: skips() ? update.peek() : undefined });

  function draw() {
    update.element.hidden = !skips();
    copy.hidden = closed || !command();
    answer.disabled = sending || closed;
  }

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    void send();
  }

  async function send() {
    if (sending || closed) return;
    const [read, result] = [form.read(), skips() ? update.read() : { value: undefined }];
    if ("faults" in read || "faults" in result) return;
    const body = answerBody(question, { answer: read.value, update: result.value, reason: reason.value.trim() });
    sending = true;
    draw();
    const reply = await app.api.post(`runs/${run_id}/answer`, body, { key });
    sending = false;
    draw();
    banner.update(null);
    if (!reply.ok) showProblem(reply.problem);
    sent();
  }

  /** @param {import("../shapes.js").Problem} problem */
  function showProblem(problem) {
    if (isRefusal(problem)) key = crypto.randomUUID(); // the next attempt is another request
    const [wrong, wrongUpdate] = [faultsIn(problem, "answer"), faultsIn(problem, "update")];
    if (wrongUpdate.length) update.showFaults(wrongUpdate);
    if (wrong.length) form.showFaults(wrong);
    if (!wrong.length && !wrongUpdate.length) banner.update(problemBanner(problem, () => void send()));
  }

  draw();
  return {
    element: host,
    send: () => void send(),
    choose(at) {
      const cards = /** @type {NodeListOf<HTMLInputElement>} */ (form.element.querySelectorAll("input[type=radio]"));
      cards[at - 1]?.click();
      cards[at - 1]?.focus();
      const select = form.element.querySelector("select");
      if (cards.length || !select || at >= select.options.length) return;
      select.selectedIndex = at; // after the empty one
      draw();
    },
    close(closing) {
      if (closed && !closing) {
        key = crypto.randomUUID(); // it is asked again
        banner.update(null);
      }
      closed = closing !== null;
      draw();
      setText(answer, closed ? (closing?.how === "answered" ? "Answered" : "Closed") : "Answer");
      if (closing) banner.update(closedBanner(closing, app.clock.now()));
    },
  };
}

/** @param {string} node */
const updateHelp = (node) => `What ${node} would have changed, as JSON: field and value.`;

/**
 * @param {import("../shapes.js").Closing} closing
 * @param {number} now
 * @returns {import("./banner.js").BannerText}
 */
const closedBanner = (closing, now) => ({
  tone: "accent",
  glyph: closing.how === "answered" ? "tick" : "waiting",
  title: closingWords(closing, now),
});
