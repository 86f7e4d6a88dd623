// The dialog before a verb: what it would do, made by the server, and a button that does exactly that. It is sent with the entity
// tag of the preview; if the preview has become stale, nothing is done and the new one is shown. It never closes on an error.

import { actionFor } from "../pure/actions.js";
import { formatFragment } from "../pure/fragments.js";
import { byName } from "../pure/groups.js";
import {
  EDITS,
  PLAIN,
  REPEATS,
  bodyOf,
  editOf,
  nameOfFork,
  previewRows,
  verbsAt,
  whatChanged,
  whyOff,
} from "../pure/previews.js";
import { faultsIn } from "../pure/questions.js";
import { instant, markNames } from "../pure/words.js";
import { createKey, isRefusal } from "../shell/api.js";
import { openDialog } from "../shell/dialogs.js";
import { button, element, glyph, iconButton, setText } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createCommand, createCopyButton } from "./command.js";
import { createOnce } from "./graph_node.js";
import { createSchemaForm } from "./schema_form.js";

/**
 * @typedef {import("../shapes.js").Preview} Preview
 * @typedef {import("../shell/app.js").App} App
 * @typedef {import("../pure/previews.js").Decision} Decision
 *
 * @typedef {object} Asked
 * @property {string} run
 * @property {string} verb  a resume or fork from a `checkpoint` can be changed into the other in the dialog
 * @property {string} label  what the button says: "Resume from @24"
 * @property {string} title
 * @property {Record<string, any>} options  of the verb, as the body of the request has them
 * @property {(answer: any, verb: string) => void} done  the request was accepted; `answer` is its body
 */

/** Verb -> what is given with it, in place of a change of the state. @type {Record<string, string>} */
const GIVES = { skip: "Result", signal: "Payload" };
const PAUSE_MS = 400;
/** A larger state is not shown: only the fields to change are written. */
const EDITED_MAX = 200_000;

/**
 * Open the dialog. The focus returns to where it was when the dialog closes.
 * @param {App} app
 * @param {Asked} asked
 */
export function openPreview(app, asked) {
  let key = createKey(); // a second click sends the same request
  let { verb, options } = asked;
  const { checkpoint } = options;
  const hasPlace = checkpoint && (verb === "resume" || verb === "fork");
  const gives = GIVES[verb];
  /** @type {Preview | null} */
  let preview = null;
  let [sending, looks, confirmed] = [false, 0, ""];
  /** @type {Decision} */
  const decision = { reason: "", name: "", ticked: new Set(), repeat: byName({}), edit: null, faulty: false };
  /** @type {import("./schema_form.js").SchemaForm | null} */
  let editor = null;

  const banner = createBanner();
  const why = element("span", { class: "hint" });
  const [confirms, body, edits] = [element("div", {}), element("div", { class: "preview-body" }), element("div", {})];
  const act = button("button filled", () => void send(), asked.label);
  const copy = createCopyButton(() => preview?.command ?? `holdfast ${verb} ${asked.run}`, "Copy command", "words");
  const edit = button("quiet-button", () => void openEditor(), gives ? `Give a ${gives.toLowerCase()}…` : "Edit state first…");
  const name = element("input", {
    class: "field",
    "aria-label": "Name of the fork",
    placeholder: "Empty: a name is made",
    maxlength: "128",
    oninput: () => (decision.name = name.value.trim()),
    onchange: () => void look(), // the command has it, too
  });
  const named = createConsequence("fork", "accent", "Name", 0, name);
  const reason = element("input", {
    class: "field",
    autofocus: true,
    "aria-label": "Reason",
    placeholder: `Recorded with your name, ${app.meta().name}`,
    oninput: () => (decision.reason = reason.value.trim()),
    onchange: () => void look(), // the command has the reason, too
  });
  const verbs = hasPlace ? createSchemaForm({ anyOf: verbsAt(checkpoint), default: verb }, "Resume or fork") : null;
  verbs?.element.addEventListener("change", chooseVerb);
  const close = () => dialog.close();
  const title = hasPlace ? `Continue from ${asked.run}@${checkpoint}` : asked.title;
  const dialog = openDialog(
    "preview",
    markNames(title, [asked.run, options.node ?? asked.run]).map(({ text, code }) => (code ? element("code", {}, text) : text)),
    verbs?.element,
    verb in PLAIN && element("p", { class: "preview-note" }, PLAIN[verb]),
    banner.element,
    confirms,
    body,
    edits,
    named,
    createConsequence("person", "rest", "Reason", 0, reason),
    element("footer", {}, edit, copy, why, button("button", close, verb === "cancel" ? "Keep the run" : "Cancel"), act),
  );
  dialog.querySelector("header")?.append(iconButton("close", "Close", close));
  dialog.addEventListener("cancel", (event) => sending && event.preventDefault()); // what becomes of it is shown here
  edit.hidden = !(verb in EDITS);
  void suggestName();
  copy.hidden = verb !== "pause";

  const path = () => `runs/${asked.run}/${verb}`;

  /** A fork gets the name of its parent and a number that no other fork has, unless the reader gives it one. */
  async function suggestName() {
    named.hidden = verb !== "fork";
    if (named.hidden || name.value) return;
    const answer = await app.api.get("runs", { parent: [asked.run], limit: ["200"] });
    if (!answer.ok || name.value || name === document.activeElement) return;
    name.value = decision.name = nameOfFork(
      asked.run,
      answer.value.runs.map((/** @type {{ id: string }} */ one) => one.id),
    );
    void look();
  }

  /** Ask what the verb would do, as it is decided so far. */
  async function look() {
    const own = (looks += 1);
    decide();
    if (decision.faulty) return;
    if (verb in PLAIN) return show(null);
    const answer = await app.api.post(path(), bodyOf({ verb }, options, decision), { key, query: { preview: ["1"] } });
    if (own !== looks) return; // decided otherwise meanwhile
    if (answer.ok) {
      banner.update(null);
      return show(answer.value);
    }
    const faults = faultsIn(answer.problem, EDITS[verb] ?? "");
    if (!editor || !faults.length) return banner.update(problemBanner(answer.problem, () => void look()));
    editor.showFaults(faults);
    decision.faulty = true;
    decide();
  }

  function chooseVerb() {
    verb = String(verbs?.peek());
    options = verb === asked.verb ? asked.options : { checkpoint };
    preview = null;
    void suggestName();
    setText(act, `${verb === "fork" ? "Fork" : "Resume"} from @${checkpoint}`);
    void look();
  }

  async function openEditor() {
    edit.hidden = true;
    const answer = gives ? null : await app.api.get(`runs/${asked.run}/state`, checkpoint ? { at: [String(checkpoint)] } : {});
    if (answer && !answer.ok) {
      edit.hidden = false;
      return banner.update(problemBanner(answer.problem, () => void openEditor()));
    }
    const whole = answer?.value.state ?? {};
    const length = JSON.stringify(whole).length;
    const state = length > EDITED_MAX ? {} : whole;
    const size = length > EDITED_MAX && `The state has ${Math.round(length / 1024)} KB. Write only the fields to change.`;
    const words = gives ?? "State";
    const form = createSchemaForm({ type: "object", default: state, description: size || undefined }, `${words} as JSON`);
    editor = form;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    form.element.addEventListener("input", (event) => {
      clearTimeout(timer);
      looks += 1;
      preview = null; // the one that is shown is of another state
      decide();
      timer = setTimeout(() => {
        const read = editOf(state, /** @type {HTMLTextAreaElement} */ (event.target).value);
        form.showFaults("faults" in read ? read.faults : []);
        decision.faulty = "faults" in read;
        decision.edit = "edit" in read ? read.edit : null;
        void look();
      }, PAUSE_MS);
    });
    edits.replaceChildren(createConsequence("file", "rest", words, 0, form.element));
    form.element.querySelector("textarea")?.focus();
  }

  /** @param {Preview | null} next  null for a verb that has none */
  function show(next) {
    preview = next;
    decide();
    if (!next) return;
    const nodes = `${verb} ${next.confirm.map((node) => node.node).join(" ")}`;
    // Ticks and choices keep their elements, and so the focus, while what follows from them is shown again.
    if (nodes !== confirmed) {
      confirmed = nodes;
      if (decision.ticked.size) {
        decision.ticked.clear(); // what was ticked was shown otherwise
        return void look();
      }
      confirms.replaceChildren(...(next.confirm.length ? [createConfirm(app, next, decision, () => void look())] : []));
    }
    const rows = previewRows(next).map(({ glyph: mark, tone, words, items }) =>
      createConsequence(mark, tone, words, items.length, ...items.map(createPreviewItem)),
    );
    if (next.refused && !next.confirm.length) rows.unshift(createRefusal(next, { close, adopt }));
    body.replaceChildren(...rows);
    copy.hidden = !next.command;
  }

  /** Take a way out that is the same verb with other options. @param {Record<string, unknown>} given */
  function adopt({ run: _, run_id: __, ...given }) {
    options = { ...given, ...options };
    void look();
  }

  function decide() {
    const words = whyOff(preview, decision);
    setText(why, words);
    act.disabled = !(preview || verb in PLAIN) || sending || words !== "";
  }

  async function send() {
    if (act.disabled) return;
    sending = true;
    looks += 1; // a preview that comes now would hide what becomes of it
    decide();
    const match = preview ? `"${preview.digest}"` : undefined;
    const answer = await app.api.post(path(), bodyOf({ verb }, options, decision), { key, match });
    sending = false;
    if (answer.ok) {
      close();
      return asked.done(answer.value, verb);
    }
    const { problem } = answer;
    if (problem.type.endsWith("key-reused")) {
      decide();
      return banner.update({
        tone: "ask",
        glyph: "warning",
        title: "What you asked before may have been done.",
        detail: "Its answer was lost, and this differs from it. Close this, and look at the run first.",
      });
    }
    if (isRefusal(problem)) key = createKey(); // the next attempt is another request
    if (problem.status !== 412 || !problem.preview || !preview) {
      banner.update(problemBanner(problem, () => void send()));
      return decide();
    }
    const changed = whatChanged(preview, problem.preview);
    banner.update({
      tone: "accent",
      glyph: "retry",
      title: "The run moved on while you looked.",
      detail: `Nothing was done. The list below is new${changed ? `: ${changed}` : "."}`,
    });
    decision.ticked.clear();
    confirmed = "";
    return show(problem.preview);
  }

  void look();
}

/**
 * The nodes that are not idempotent, first, with a tick or a choice for each.
 * @param {App} app
 * @param {Preview} preview
 * @param {Decision} decision
 * @param {() => void} changed
 */
function createConfirm(app, { verb, confirm }, { ticked, repeat }, changed) {
  const parts = confirm.flatMap(({ node, at, status }) => {
    const when = at === null ? "has begun" : `${status} at ${instant(at, app.clock.now())}`;
    const form =
      verb === "fork"
        ? createSchemaForm({ anyOf: REPEATS, default: repeat[node] ?? "ask" }, `What the fork does with ${node}`)
        : createSchemaForm({ type: "boolean" }, `Run ${node} again`);
    form.element.addEventListener("change", () => {
      const chosen = form.peek();
      if (typeof chosen === "string") repeat[node] = chosen;
      else ticked[chosen ? "add" : "delete"](node);
      changed();
    });
    return [element("p", {}, element("code", {}, node), ` ${when}. Its effect would happen again.`), form.element];
  });
  const row = createConsequence("warning", "ask", "Not idempotent", confirm.length, ...parts);
  row.classList.add("confirm");
  return row;
}

/**
 * Why it would be refused, with other ways.
 * @param {Preview} preview
 * @param {{ close: () => void, adopt: (given: Record<string, unknown>) => void }} acts
 */
function createRefusal(preview, { close, adopt }) {
  const ways = preview.remedies.map((remedy) => {
    const action = actionFor(preview.run_id, remedy);
    const link = { class: "button small", href: action ? formatFragment(action.place) : "", onclick: close };
    if (action && remedy.verb !== preview.verb) return [remedy.words, element("a", link, `${action.label}…`)];
    if (action) return [remedy.words, button("button small", () => adopt(remedy.arguments), "Preview that")];
    const command = createCommand();
    command.update(remedy.command);
    return [remedy.words, command.element];
  });
  const lines = [[preview.refused ?? ""], ...ways].map((line) =>
    element("div", { class: "sentence whole", dir: "auto" }, ...line.flatMap((part) => [part, " "])),
  );
  const row = createConsequence("failed", "fail", "Refused", 0, ...lines);
  row.classList.add("refused");
  return row;
}

/** @param {import("../pure/previews.js").PreviewItem} item */
const createPreviewItem = ({ node, words, once }) =>
  node ? element("code", { class: "tag" }, words, ...(once ? [" ", createOnce()] : [])) : element("p", { dir: "auto" }, words);

/**
 * @param {import("../pure/glyphs.js").GlyphName} mark
 * @param {string} tone
 * @param {string} words
 * @param {number} count
 * @param {...Node} content
 */
function createConsequence(mark, tone, words, count, ...content) {
  return element(
    "section",
    { class: "preview-row" },
    element("span", { "data-tone": tone }, glyph(mark)),
    element("h3", {}, words, count > 0 && element("span", { class: "hint" }, ` ${count}`)),
    element("div", { class: "preview-content" }, ...content),
  );
}
