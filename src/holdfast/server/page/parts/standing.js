// The head of a run: its status and id, what can be done, the sentence that says why it is where it is, and its facts.

import { formatFragment } from "../pure/fragments.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createCopyButton } from "./command.js";
import { createMenu } from "./menu.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../pure/run_actions.js").RunAction} RunAction
 * @typedef {{ name: string, value: string, title?: string, place?: import("../pure/fragments.js").Place, wide?: boolean,
 *   meter?: { part: number, tone: string }, act?: { words: string, place: import("../pure/fragments.js").Place } }} Fact
 *   `wide`: left out on a phone; `meter`: how much of a limit is used, up to 1; `act`: a link beside the value
 *
 * @typedef {object} StandingView
 * @property {string} id
 * @property {import("../pure/statuses.js").Look} look
 * @property {{ text: string, code: boolean }[]} reason
 * @property {string} about  title and goal of its plan
 * @property {string} next  what the first way out does
 * @property {string} ago
 * @property {Fact[]} facts
 * @property {Record<string, string>} labels
 * @property {{ shown: RunAction[], more: RunAction[] }} actions
 * @property {{ words: string, command: string }[]} commands  ways out as commands
 * @property {string} note  why there are no actions
 */

/**
 * @param {(verb: string, node: string | null) => void} act
 * @returns {import("../shell/elements.js").Part<StandingView> & { acts: HTMLElement }}
 */
export function createStanding(act) {
  const status = createStatus();
  const [id, reason] = [element("h1", { class: "run-id" }), element("span", { class: "standing-reason", dir: "auto" })];
  const [next, ago, note] = ["hint", "hint ago phone-only", "hint"].map((look) => element("span", { class: look }));
  const about = element("p", { class: "standing-about", dir: "auto" });
  const [facts, labels] = [element("dl", { class: "facts" }), element("ul", { class: "labels" })];
  const shown = element("div", { class: "acts" });
  /** @type {StandingView} */
  let view;
  const menu = createMenu({
    mark: "more",
    hostLook: "acts-more",
    fill(panel, close) {
      // A phone has room for two buttons; the others are here.
      const hidden = view.actions.shown.filter((_, at) => !shown.children[at].checkVisibility());
      const items = [
        ...[...hidden, ...view.actions.more].map(({ verb, node, label }) =>
          button("menu-item", () => (close(), act(verb, node)), `${label}…`),
        ),
        ...view.commands.map(({ command, words }) => createCopyButton(() => command, `Copy command: ${words}`, "words")),
      ];
      panel.append(element("ul", { class: "menu-list" }, ...items.map((item) => element("li", {}, item))));
    },
  });
  menu.element.firstElementChild?.setAttribute("aria-label", "More actions");
  const acts = element("div", { class: "acts-bar" }, note, shown, menu.element);
  const drawActs = keepChildren(
    shown,
    (/** @type {RunAction} */ one) => one.label,
    (one) => createAct(one, act),
  );
  const drawFacts = keepChildren(facts, (/** @type {Fact} */ fact) => fact.name, createFact);
  const drawLabels = keepChildren(
    labels,
    (/** @type {string} */ label) => label,
    (label) => ({ element: element("li", { class: "tag", dir: "auto" }, label), update() {} }),
  );
  const copy = createCopyButton(() => view.id, "Copy id");
  return {
    acts,
    element: element(
      "header",
      { class: "standing" },
      element("div", { class: "standing-line" }, status.element, id, copy, ago),
      acts,
      about,
      element("p", { class: "standing-sentence" }, reason, next),
      element("div", { class: "standing-facts" }, facts, labels),
    ),
    update(given) {
      view = given;
      status.update(view.look);
      setText(id, view.id);
      setSentence(reason, view.reason);
      setText(about, view.about);
      about.hidden = !view.about;
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

/**
 * @param {RunAction} action
 * @param {(verb: string, node: string | null) => void} act
 * @returns {import("../shell/elements.js").Part<RunAction>}
 */
function createAct({ verb, node, word, glyph: mark }, act) {
  const label = element("span", {}, word, node && element("span", { class: "act-node" }, ` ${node}`), "…");
  const host = button("button", () => act(verb, node), glyph(mark), label);
  host.dataset.verb = verb;
  return { element: host, update: ({ filled }) => void host.classList.toggle("filled", filled) };
}

/** @param {Fact} first @returns {import("../shell/elements.js").Part<Fact>} */
function createFact({ name, place, act }) {
  const other = element("a", { class: "button tiny" });
  const link = element("a", {});
  const [value, used] = [element("dd", { dir: "auto" }, place && link), element("span", {})];
  const meter = element("dd", { class: "meter", "aria-hidden": "true" }, used);
  const host = element("div", {}, element("dt", {}, name), value, act && element("dd", {}, other));
  return {
    element: host,
    update(fact) {
      setText(place ? link : value, fact.value);
      if (fact.place) setAttribute(link, "href", formatFragment(fact.place));
      setAttribute(value, "title", fact.title);
      if (fact.act) {
        setText(other, fact.act.words);
        setAttribute(other, "href", formatFragment(fact.act.place));
        setAttribute(other, "aria-label", `${fact.act.words} with ${fact.value}`);
      }
      setAttribute(host, "class", fact.wide && "wide");
      if (!fact.meter) return;
      if (!meter.isConnected) host.append(meter);
      used.style.width = `${fact.meter.part * 100}%`;
      setAttribute(meter, "data-tone", fact.meter.tone);
    },
  };
}
