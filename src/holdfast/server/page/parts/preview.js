// The dialog before a verb: what it would do, made by the server, and a button that does exactly that. It is sent with the entity
// tag of the preview; if the preview has become stale, nothing is done and the new one is shown. It never closes on an error.

import { bodyOf, nodeWords, previewRows, whatChanged, whyOff } from "../pure/previews.js";
import { instant, markNames } from "../pure/words.js";
import { button, element, glyph, setSentence, setText } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createCopyButton } from "./command.js";

/**
 * @typedef {import("../shapes.js").Preview} Preview
 * @typedef {import("../shell/app.js").App} App
 *
 * @typedef {object} Asked
 * @property {string} run
 * @property {string} verb
 * @property {string} label  what the button says: "Resume from @24"
 * @property {string} title
 * @property {Record<string, unknown>} options  of the verb, as the body of the request has them
 * @property {(answer: any) => void} done  the request was accepted; `answer` is its body
 */

/** What a fork does with a node that is not idempotent. @type {[value: string, words: string][]} */
const REPEATS = [
  ["ask", "Ask"],
  ["run", "Run again"],
  ["skip", "Skip"],
];

/**
 * Open the dialog. The focus returns to where it was when the dialog closes.
 * @param {App} app
 * @param {Asked} asked
 */
export function openPreview(app, asked) {
  const key = crypto.randomUUID(); // made once: a second click sends the same request
  const path = `runs/${asked.run}/${asked.verb}`;
  /** @type {Preview | null} */
  let preview = null;
  let sending = false;
  /** @type {import("../pure/previews.js").Decision} */
  const decision = { reason: "", ticked: new Set(), repeat: {} };

  const banner = createBanner();
  const body = element("div", { class: "preview-body" });
  const why = element("span", { class: "hint" });
  const act = button("button filled", () => void send(), asked.label);
  const copy = createCopyButton(() => preview?.command ?? "", "Copy command", "words");
  const close = button("icon-button", () => dialog.close(), glyph("close"), element("span", { class: "unseen" }, "Close"));
  const reason = element("input", {
    class: "field",
    autofocus: true,
    "aria-label": "Reason",
    placeholder: `Recorded with your name, ${app.meta().name}`,
    oninput: () => (decision.reason = reason.value.trim()),
  });
  const title = element("h2", { id: "preview-title" });
  setSentence(title, markNames(asked.title, [asked.run]));
  const dialog = element(
    "dialog",
    { class: "dialog preview", "aria-labelledby": "preview-title" },
    element("header", {}, title, close),
    banner.element,
    body,
    createRow("person", "accent", "Reason", 0, reason),
    element(
      "footer",
      {},
      copy,
      why,
      button("button", () => dialog.close(), "Cancel"),
      act,
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());

  async function look() {
    const answer = await app.api.post(path, asked.options, { key, query: { preview: ["1"] } });
    if (!answer.ok) return banner.update(problemBanner(answer.problem, () => void look()));
    banner.update(null);
    show(answer.value);
  }

  /** @param {Preview} next */
  function show(next) {
    preview = next;
    const confirm = next.confirm.length ? [createConfirm(app, next, decision, decide)] : [];
    const rows = previewRows(next).map((row) =>
      createRow(
        row.glyph,
        row.tone,
        row.words,
        row.count,
        ...row.nodes.map((node) => element("code", { class: "tag" }, nodeWords(node))),
        ...row.sentences.map((sentence) => element("p", { dir: "auto" }, sentence)),
      ),
    );
    const refused = next.refused && !next.confirm.length ? [createRefusal(next)] : [];
    body.replaceChildren(...refused, ...confirm, ...rows);
    copy.hidden = !next.command;
    decide();
  }

  function decide() {
    const words = preview ? whyOff(preview, decision) : "";
    setText(why, words);
    act.disabled = !preview || sending || words !== "";
  }

  async function send() {
    if (!preview || sending) return;
    sending = true;
    decide();
    const answer = await app.api.post(path, bodyOf(preview, asked.options, decision), { key, match: `"${preview.digest}"` });
    sending = false;
    if (answer.ok) {
      dialog.close();
      return asked.done(answer.value);
    }
    const { problem } = answer;
    if (problem.status === 412 && problem.preview) {
      const changed = whatChanged(preview, problem.preview);
      banner.update({
        tone: "accent",
        glyph: "retry",
        title: "The run moved on while you looked.",
        detail: `Nothing was done. The list below is new${changed ? `: ${changed}` : "."}`,
      });
      decision.ticked.clear();
      return show(problem.preview);
    }
    banner.update(problemBanner(problem, () => void send()));
    return decide();
  }

  document.body.append(dialog);
  dialog.showModal();
  decide();
  void look();
}

/**
 * The nodes that are not idempotent, first, with a tick or a choice for each.
 * @param {App} app
 * @param {Preview} preview
 * @param {import("../pure/previews.js").Decision} decision
 * @param {() => void} changed
 */
function createConfirm(app, preview, decision, changed) {
  const parts = preview.confirm.flatMap((node) => {
    const name = () => element("code", {}, node.node);
    const when = node.at === null ? "has begun" : `${node.status} at ${instant(node.at, app.clock.now())}`;
    const said = element("p", {}, name(), ` ${when}. Its effect would happen again.`);
    if (preview.verb === "fork") return /** @type {HTMLElement[]} */ ([said, createChoice(node.node, decision)]);
    const tick = element("input", { type: "checkbox", checked: decision.ticked.has(node.node) });
    tick.addEventListener("change", () => {
      if (tick.checked) decision.ticked.add(node.node);
      else decision.ticked.delete(node.node);
      changed();
    });
    return [said, element("label", { class: "check" }, tick, element("span", {}, "Run ", name(), " again"))];
  });
  const row = createRow("warning", "ask", "Not idempotent", preview.confirm.length, ...parts);
  row.classList.add("confirm");
  return row;
}

/** @param {string} node @param {import("../pure/previews.js").Decision} decision */
function createChoice(node, decision) {
  const options = REPEATS.map(([value, words]) => element("option", { value }, words));
  const choice = element("select", { class: "field", "aria-label": `What the fork does with ${node}` }, ...options);
  choice.value = decision.repeat[node] ?? "ask";
  choice.addEventListener("change", () => (decision.repeat[node] = choice.value));
  return choice;
}

/** @param {Preview} preview */
function createRefusal(preview) {
  const remedies = preview.remedies.map((remedy) => element("p", {}, `${remedy.words}: `, element("code", {}, remedy.command)));
  const row = createRow("failed", "fail", "Refused", 0, element("p", { dir: "auto" }, preview.refused ?? ""), ...remedies);
  row.classList.add("refused");
  return row;
}

/**
 * @param {import("../pure/glyphs.js").GlyphName} mark
 * @param {string} tone
 * @param {string} words
 * @param {number} count
 * @param {...Node} content
 */
function createRow(mark, tone, words, count, ...content) {
  return element(
    "section",
    { class: "preview-row" },
    element("span", { "data-tone": tone }, glyph(mark)),
    element("h3", {}, words, count ? element("span", { class: "preview-count" }, ` ${count}`) : null),
    element("div", { class: "preview-content" }, ...content),
  );
}
