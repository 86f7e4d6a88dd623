// The bar at the top: where one is, what waits, whether it is live. On a phone the entries are tabs at the bottom.

import { number, storeName } from "../pure/words.js";
import { PLAIN_TEXT, button, element, glyph, iconButton, setAttribute, setText } from "../shell/elements.js";
import { createMenu } from "./menu.js";

/**
 * @typedef {import("../pure/fragments.js").ScreenName} ScreenName
 *
 * @typedef {object} Entry
 * @property {ScreenName} screen
 * @property {string} words
 * @property {import("../pure/glyphs.js").GlyphName} glyph  on a phone
 * @property {(board: import("../shapes.js").Board) => number | null} [count]
 * @property {"ask" | "fail"} [tone]  of the count
 * @property {boolean} [inMore]  on a phone it is behind "More"
 *
 * @typedef {object} BarState
 * @property {ScreenName} screen
 * @property {import("../shapes.js").Board | null} board
 * @property {import("../shapes.js").Meta | null} meta
 * @property {import("../pure/connection.js").Connection} connection
 */

/** What the bar leads to, in order. @type {Entry[]} */
const ENTRIES = [
  { screen: "runs", words: "Runs", glyph: "list" },
  { screen: "questions", words: "Questions", glyph: "asks", count: (board) => board.asks, tone: "ask" },
  { screen: "workers", words: "Workers", glyph: "store", inMore: true },
  { screen: "doctor", words: "Doctor", glyph: "pulse", count: (board) => board.problems, tone: "fail" },
];

/** @type {Record<import("../pure/connection.js").Connection["state"], [words: string, tone: string]>} */
const LIVE = {
  live: ["Live", "done"],
  connecting: ["Connecting", "rest"],
  lost: ["Not live", "ask"],
  hidden: ["Paused", "rest"],
};

/**
 * @param {object} options
 * @param {(text: string) => void} options.find
 * @param {() => void} options.switchTheme
 * @returns {import("../shell/elements.js").Part<BarState> & { focusSearch: () => void, showFound: (text: string) => void }}
 */
export function createTopBar({ find, switchTheme }) {
  const [store, live, who] = [element("span", { class: "store-name" }), element("span", { class: "live-word" }), element("span")];
  const entries = ENTRIES.map(createEntry);
  const search = createSearch(find);
  const liveHost = element("span", { class: "live" }, element("span", { class: "live-dot" }), live);
  const token = element("span", { class: "token-name" }, glyph("person"), who);
  const more = createMore(switchTheme, () => token.title);
  return {
    element: element(
      "header",
      { class: "top-bar" },
      element("a", { class: "brand", href: "#/runs" }, glyph("mark", "mark"), element("span", {}, "Holdfast")),
      element("span", { class: "store" }, glyph("store"), store),
      element(
        "nav",
        { class: "top-nav", "aria-label": "Screens" },
        element("div", { class: "top-entries" }, ...entries.map((entry) => entry.element)),
        more,
      ),
      search.element,
      liveHost,
      token,
      iconButton("theme", "Switch theme", switchTheme),
    ),
    focusSearch: search.focus,
    showFound: search.show,
    update(state) {
      for (const entry of entries) entry.update(state);
      const [words, tone] = LIVE[state.connection.state];
      setText(live, words);
      setAttribute(liveHost, "data-tone", tone);
      if (!state.meta) return;
      const { name, role } = state.meta;
      setText(store, storeName(state.meta.store));
      setAttribute(store, "title", state.meta.store);
      setText(who, name);
      token.title = `Token ${name}, role ${role}`;
    },
  };
}

/** @param {Entry} entry @returns {import("../shell/elements.js").Part<BarState>} */
function createEntry(entry) {
  const count = element("span", { class: "count", "data-tone": entry.tone });
  const link = element(
    "a",
    { class: entry.inMore && "in-more", href: `#/${entry.screen}` },
    glyph(entry.glyph, "phone-only"),
    element("span", {}, entry.words),
    count,
  );
  return {
    element: link,
    update({ board, screen }) {
      const value = (board && entry.count?.(board)) || 0;
      setText(count, number(value));
      count.hidden = !value;
      const isHere = screen === entry.screen || (entry.screen === "runs" && (screen === "run" || screen === "compare"));
      setAttribute(link, "aria-current", isHere && "page");
    },
  };
}

/**
 * What the tabs of a phone have no room for.
 * @param {() => void} switchTheme
 * @param {() => string} whose
 */
function createMore(switchTheme, whose) {
  const menu = createMenu({
    look: "more-opener",
    hostLook: "more-host phone-only",
    mark: "more",
    fill(panel, close) {
      const links = ENTRIES.filter((entry) => entry.inMore).map((entry) =>
        element("li", {}, element("a", { href: `#/${entry.screen}`, onclick: close }, entry.words)),
      );
      panel.append(
        element("ul", { class: "menu-list" }, ...links, element("li", {}, button("menu-item", switchTheme, "Switch theme"))),
        element("p", { class: "hint menu-note" }, whose()),
      );
    },
  });
  menu.update({ label: "More" });
  return menu.element;
}

/** @param {(text: string) => void} find */
function createSearch(find) {
  const field = element("input", {
    ...PLAIN_TEXT,
    type: "search",
    "aria-label": "Find a run",
    placeholder: "Find a run",
    pattern: "[A-Za-z0-9][\\w.\\-]*|[^= ]+=.*",
    title: "The beginning of a run id, or a label as name=value",
  });
  const form = element(
    "form",
    {
      class: "search",
      role: "search",
      onclick: () => field.focus(), // on a phone the field opens from its glyph
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        find(field.value.trim());
        field.blur();
      },
    },
    glyph("search"),
    field,
    element("kbd", { "aria-hidden": "true" }, "/"),
  );
  return { element: form, focus: () => field.select(), show: (/** @type {string} */ text) => (field.value = text) };
}
