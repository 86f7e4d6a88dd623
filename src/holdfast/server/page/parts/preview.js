// The dialog before a verb: what it would do, made by the server, and a button that does exactly that. It is sent with the entity
// tag of the preview; if the preview has become stale, nothing is done and the new one is shown. It never closes on an error.

import { actionFor } from "../pure/actions.js";
import { formatFragment } from "../pure/fragments.js";
import {
  EDITS,
  PLAIN,
  bodyOf,
  nodeWords,
  placeOptions,
  plainPreview,
  previewRows,
  whatChanged,
  whyOff,
} from "../pure/previews.js";
import { faultsIn } from "../pure/questions.js";
import { instant, markNames } from "../pure/words.js";
import { isRefusal } from "../shell/api.js";
import { button, element, glyph, setSentence, setText } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createCopyButton } from "./command.js";
import { createStateEditor } from "./state_editor.js";

/**
 * @typedef {import("../shapes.js").Preview} Preview
 * @typedef {import("../shell/app.js").App} App
 *
 * @typedef {object} Asked
 * @property {string} run
 * @property {string} verb  a resume or fork from a `checkpoint` can be changed into the other in the dialog
 * @property {string} label  what the button says: "Resume from @24"
 * @property {string} title
 * @property {Record<string, unknown>} options  of the verb, as the body of the request has them
 * @property {(answer: any, verb: string) => void} done  the request was accepted; `answer` is its body
 */

/** What a fork does with a node that is not idempotent. @type {[value: string, words: string][]} */
const REPEATS = [
  ["ask", "Ask"],
  ["run", "Run again"],
  ["skip", "Skip"],
];

/** Verb -> what is given with it, in place of a change of the state. @type {Record<string, string>} */
const GIVES = { skip: "result", signal: "payload" };

/**
 * Open the dialog. The focus returns to where it was when the dialog closes.
 * @param {App} app
 * @param {Asked} asked
 */
export function openPreview(app, asked) {
  let key = crypto.randomUUID(); // a second click sends the same request
  const { checkpoint } = asked.options;
  const hasPlace = typeof checkpoint === "number" && (asked.verb === "resume" || asked.verb === "fork");
  let { verb } = asked;
  /** @type {Preview | null} */
  let preview = null;
  let sending = false;
  let looks = 0;
  let confirmed = "";
  /** @type {import("../pure/previews.js").Decision} */
  const decision = { reason: "", ticked: new Set(), repeat: {}, edit: null, faulty: false };

  const banner = createBanner();
  const [confirms, body, edits] = [element("div", {}), element("div", { class: "preview-body" }), element("div", {})];
  const why = element("span", { class: "hint" });
  const act = button("button filled", () => void send(), asked.label);
  const copy = createCopyButton(() => preview?.command ?? "", "Copy command", "words");
  const gives = GIVES[verb];
  const editWords = gives ? `Give a ${gives}…` : "Edit state first…";
  const edit = button("quiet-button edit-state", () => void openEditor(), editWords);
  const close = button("icon-button", () => dialog.close(), glyph("close"), element("span", { class: "unseen" }, "Close"));
  const reason = element("input", {
    class: "field",
    autofocus: true,
    "aria-label": "Reason",
    placeholder: `Recorded with your name, ${app.meta().name}`,
    oninput: () => (decision.reason = reason.value.trim()),
    onchange: () => void look(), // the command has the reason, too
  });
  const title = element("h2", { id: "preview-title" });
  setSentence(title, markNames(asked.title, [asked.run]));
  const dialog = element(
    "dialog",
    { class: "dialog preview", "aria-labelledby": "preview-title" },
    element("header", {}, title, close),
    hasPlace && createVerbCards(checkpoint, verb, chooseVerb),
    banner.element,
    confirms,
    body,
    edits,
    createConsequence("person", "accent", "Reason", 0, reason),
    element(
      "footer",
      {},
      edit,
      copy,
      why,
      button("button", () => dialog.close(), "Cancel"),
      act,
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  edit.hidden = !(verb in EDITS);
  /** @type {import("./state_editor.js").StateEditor | null} */
  let editor = null;

  const path = () => `runs/${asked.run}/${verb}`;
  const options = () => (verb === asked.verb ? asked.options : placeOptions(asked.options));

  /** Ask what the verb would do, as it is decided so far. */
  async function look() {
    const own = (looks += 1);
    if (decision.faulty) return decide();
    if (verb in PLAIN) return show(plainPreview(asked.run, verb));
    const answer = await app.api.post(path(), bodyOf({ verb }, options(), decision), { key, query: { preview: ["1"] } });
    if (own !== looks || sending) return; // decided otherwise meanwhile
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

  /** @param {string} next */
  function chooseVerb(next) {
    verb = next;
    preview = null;
    setText(act, `${verb === "fork" ? "Fork" : "Resume"} from @${checkpoint}`);
    decide();
    void look();
  }

  async function openEditor() {
    edit.hidden = true;
    /** @type {Record<string, unknown>} */
    let state = {};
    if (!gives) {
      /** @type {import("../pure/fragments.js").Query} */
      const at = typeof checkpoint === "number" ? { at: [String(checkpoint)] } : {};
      const answer = await app.api.get(`runs/${asked.run}/state`, at);
      if (!answer.ok) {
        edit.hidden = false;
        return banner.update(problemBanner(answer.problem, () => void openEditor()));
      }
      state = answer.value.state;
    }
    const words = gives ? gives.replace(/^./, (first) => first.toUpperCase()) : "State";
    editor = createStateEditor(state, `${words} as JSON`, (read) => {
      decision.faulty = read !== null && "faults" in read;
      decision.edit = read && "edit" in read ? read.edit : null;
      looks += 1;
      preview = null; // the one that is shown is of another state
      decide();
      if (read) void look();
    });
    edits.replaceChildren(createConsequence("file", "accent", words, 0, editor.element));
    editor.element.querySelector("textarea")?.focus();
  }

  /** @param {Preview} next */
  function show(next) {
    preview = next;
    const nodes = `${verb} ${next.confirm.map((node) => node.node).join(" ")}`;
    // Ticks and choices keep their elements, and so the focus, while what follows from them is shown anew.
    if (nodes !== confirmed) {
      confirmed = nodes;
      const decided = () => {
        decide();
        void look();
      };
      confirms.replaceChildren(...(next.confirm.length ? [createConfirm(app, next, decision, decided)] : []));
    }
    const rows = previewRows(next).map((row) =>
      createConsequence(
        row.glyph,
        row.tone,
        row.words,
        row.count,
        ...row.nodes.map((node) => element("code", { class: "tag" }, nodeWords(node))),
        ...row.sentences.map((sentence) => element("p", { dir: "auto" }, sentence)),
      ),
    );
    const refused = next.refused && !next.confirm.length ? [createRefusal(next, () => dialog.close())] : [];
    body.replaceChildren(...refused, ...rows);
    copy.hidden = !next.command;
    decide();
  }

  function decide() {
    const words = whyOff(preview, decision);
    setText(why, words);
    act.disabled = !preview || sending || words !== "";
  }

  async function send() {
    if (!preview || sending) return;
    sending = true;
    decide();
    const answer = await app.api.post(path(), bodyOf(preview, options(), decision), {
      key,
      match: preview.digest && `"${preview.digest}"`,
    });
    sending = false;
    if (answer.ok) {
      dialog.close();
      return asked.done(answer.value, verb);
    }
    const { problem } = answer;
    if (isRefusal(problem)) key = crypto.randomUUID(); // the next attempt is another request
    if (problem.status === 412 && problem.preview) {
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
    banner.update(problemBanner(problem, () => void send()));
    return decide();
  }

  document.body.append(dialog);
  dialog.showModal();
  decide();
  void look();
}

/**
 * Resume or fork, as cards.
 * @param {number} at
 * @param {string} chosen
 * @param {(verb: string) => void} choose
 */
function createVerbCards(at, chosen, choose) {
  const card = (/** @type {string} */ verb, /** @type {string} */ words, /** @type {string} */ note) =>
    element(
      "label",
      { class: "card" },
      element("input", { type: "radio", name: "preview-verb", checked: verb === chosen, onchange: () => choose(verb) }),
      element("span", {}, element("strong", {}, words), element("span", { class: "hint" }, note)),
    );
  return element(
    "fieldset",
    { class: "verb-cards" },
    element("legend", { class: "unseen" }, "Resume or fork"),
    card("resume", "Resume this run", `Goes back to @${at}; nothing is deleted.`),
    card("fork", "Fork a new run", `Shares ${at > 1 ? `@1 to @${at}` : "@1"}; this run stays.`),
  );
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
    if (preview.verb === "fork") return /** @type {HTMLElement[]} */ ([said, createChoice(node.node, decision, changed)]);
    const tick = element("input", { type: "checkbox", checked: decision.ticked.has(node.node) });
    tick.addEventListener("change", () => {
      if (tick.checked) decision.ticked.add(node.node);
      else decision.ticked.delete(node.node);
      changed();
    });
    return [said, element("label", { class: "check" }, tick, element("span", {}, "Run ", name(), " again"))];
  });
  const row = createConsequence("warning", "ask", "Not idempotent", preview.confirm.length, ...parts);
  row.classList.add("confirm");
  return row;
}

/** @param {string} node @param {import("../pure/previews.js").Decision} decision @param {() => void} changed */
function createChoice(node, decision, changed) {
  const options = REPEATS.map(([value, words]) => element("option", { value }, words));
  const choice = element("select", { class: "field", "aria-label": `What the fork does with ${node}` }, ...options);
  choice.value = decision.repeat[node] ?? "ask";
  choice.addEventListener("change", () => {
    decision.repeat[node] = choice.value;
    changed();
  });
  return choice;
}

/** Why it would be refused, with other ways. @param {Preview} preview @param {() => void} close */
function createRefusal(preview, close) {
  const ways = preview.remedies.map((remedy) => {
    const action = remedy.verb === preview.verb ? null : actionFor(preview.run_id, remedy);
    if (!action) return element("p", {}, `${remedy.words}: `, element("code", {}, remedy.command));
    const link = { class: "button small", href: formatFragment(action.place), onclick: close };
    return element("p", {}, `${remedy.words}: `, element("a", link, `${action.label}…`));
  });
  const row = createConsequence("failed", "fail", "Refused", 0, element("p", { dir: "auto" }, preview.refused ?? ""), ...ways);
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
function createConsequence(mark, tone, words, count, ...content) {
  return element(
    "section",
    { class: "preview-row" },
    element("span", { "data-tone": tone }, glyph(mark)),
    element("h3", {}, words, count ? element("span", { class: "preview-count" }, ` ${count}`) : null),
    element("div", { class: "preview-content" }, ...content),
  );
}
