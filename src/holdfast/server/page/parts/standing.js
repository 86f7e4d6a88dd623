// The head of a run: its status and id, what can be done, the sentence that says why it is where it is, and its facts.

import { formatFragment } from "../pure/fragments.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createCopyButton } from "./command.js";
import { createMenu } from "./menu.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../pure/run_actions.js").RunAction} RunAction
 * @typedef {{ name: string, value: string, title?: string, place?: import("../pure/fragments.js").Place, wide?: boolean }} Fact
 *   `wide`: left out on a phone
 *
 * @typedef {object} StandingView
 * @property {string} id
 * @property {import("../pure/statuses.js").Look} look
 * @property {{ text: string, code: boolean }[]} reason
 * @property {string} next  what the first way out does
 * @property {string} ago
 * @property {Fact[]} facts
 * @property {Record<string, string>} labels
 * @property {{ shown: RunAction[], more: RunAction[] }} actions
 * @property {{ words: string, command: string }[]} commands  ways out that only a terminal has
 * @property {string} note  why there are no actions
 */

/**
 * @param {(verb: string, node: string | null) => void} act
 * @returns {import("../shell/elements.js").Part<StandingView> & { acts: HTMLElement }}
 */
export function createStanding(act) {
  const status = createStatus();
  const [id, reason] = [element("h1", { class: "run-id" }), element("span", { class: "standing-reason", dir: "auto" })];
  const [next, ago, note] = [
    element("span", { class: "hint" }),
    element("span", { class: "hint ago phone-only" }),
    element("p", { class: "hint" }),
  ];
  const [facts, labels, shown] = [
    element("dl", { class: "facts" }),
    element("ul", { class: "labels" }),
    element("div", { class: "acts" }),
  ];
  /** @type {StandingView} */
  let view;
  const menu = createMenu({
    mark: "more",
    hostLook: "acts-more",
    fill(panel, close) {
      const items = view.actions.more.map((one) =>
        element(
          "li",
          {},
          button("menu-item", () => (close(), act(one.verb, one.node)), `${one.label}…`),
        ),
      );
      const copies = view.commands.map((one) =>
        element(
          "li",
          {},
          createCopyButton(() => one.command, `Copy command: ${one.words}`, "words"),
        ),
      );
      panel.append(element("ul", { class: "menu-list" }, ...items, ...copies));
    },
  });
  menu.update({ label: "" });
  const opener = /** @type {HTMLElement} */ (menu.element.firstElementChild);
  opener.setAttribute("aria-label", "More actions");
  const acts = element("div", { class: "acts-bar" }, shown, menu.element);
  const drawActs = keepChildren(
    shown,
    (/** @type {RunAction} */ one) => `${one.verb} ${one.node}`,
    () => createAct(act),
  );
  const drawFacts = keepChildren(facts, (/** @type {Fact} */ fact) => fact.name, createFact);
  const drawLabels = keepChildren(
    labels,
    (/** @type {string} */ label) => label,
    (label) => ({ element: element("li", { class: "tag", dir: "auto" }, label), update() {} }),
  );
  return {
    acts,
    element: element(
      "header",
      { class: "standing" },
      element(
        "div",
        { class: "standing-line" },
        status.element,
        id,
        createCopyButton(() => view.id, "Copy id"),
        ago,
      ),
      acts,
      element("p", { class: "standing-sentence" }, reason, " ", next),
      element("div", { class: "standing-facts" }, facts, labels),
      note,
    ),
    update(given) {
      view = given;
      status.update(view.look);
      setText(id, view.id);
      setSentence(reason, view.reason);
      setText(next, view.next);
      setText(ago, view.ago);
      drawFacts(view.facts);
      drawLabels(Object.entries(view.labels).map((pair) => pair.join("=")));
      drawActs(view.actions.shown);
      menu.element.hidden = !view.actions.more.length && !view.commands.length;
      setText(note, view.note);
      note.hidden = !view.note;
    },
  };
}

/** @param {(verb: string, node: string | null) => void} act @returns {import("../shell/elements.js").Part<RunAction>} */
function createAct(act) {
  /** @type {RunAction} */
  let shown;
  const [words, node] = [element("span", {}), element("span", { class: "act-node" })];
  const host = button("button", () => act(shown.verb, shown.node), words, node);
  return {
    element: host,
    update(action) {
      if (shown?.verb !== action.verb) host.prepend(glyph(action.glyph));
      shown = action;
      const [first] = action.label.split(" ", 1);
      setText(words, action.node ? first : `${action.label}…`);
      setText(node, action.node ? `\u00a0${action.node}…` : "");
      host.classList.toggle("filled", action.filled);
      setAttribute(host, "data-verb", action.verb);
    },
  };
}

/** @returns {import("../shell/elements.js").Part<Fact>} */
function createFact() {
  const [name, value, link] = [element("dt", {}), element("dd", { dir: "auto" }), element("a", {})];
  const host = element("div", {}, name, value);
  return {
    element: host,
    update(fact) {
      setText(name, fact.name);
      setText(fact.place ? link : value, fact.value);
      if (fact.place) {
        setAttribute(link, "href", formatFragment(fact.place));
        if (!link.parentNode) value.append(link);
      }
      setAttribute(value, "title", fact.title);
      setAttribute(host, "class", fact.wide && "wide");
    },
  };
}
