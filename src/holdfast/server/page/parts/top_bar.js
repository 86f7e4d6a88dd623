// The bar at the top: where one is, what waits, whether it is live. On a phone the entries are tabs at the bottom.

import { formatFragment } from "../pure/fragments.js";
import { number, storeName } from "../pure/words.js";
import { button, element, glyph, keepChildren, setAttribute, setText } from "../shell/elements.js";
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

/** What the bar leads to, in order. An entry appears when its screen is there. @type {Entry[]} */
export const ENTRIES = [
  { screen: "runs", words: "Runs", glyph: "list" },
  { screen: "questions", words: "Questions", glyph: "asks", count: (board) => board.asks, tone: "ask" },
  { screen: "workers", words: "Workers", glyph: "store", inMore: true },
  { screen: "doctor", words: "Doctor", glyph: "pulse", count: (board) => board.problems, tone: "fail" },
];

/** @type {Record<string, { words: string, tone: string }>} */
const LIVE = {
  live: { words: "Live", tone: "done" },
  connecting: { words: "Connecting", tone: "rest" },
  lost: { words: "Not live", tone: "ask" },
  hidden: { words: "Paused", tone: "rest" },
};

/**
 * @param {object} options
 * @param {ScreenName[]} options.screens  those that are there
 * @param {(text: string) => void} options.find
 * @param {() => void} options.switchTheme
 * @returns {import("../shell/elements.js").Part<BarState> & { focusSearch: () => void }}
 */
export function createTopBar({ screens, find, switchTheme }) {
  const store = element("span", { class: "store-name" });
  const nav = element("nav", { class: "top-nav", "aria-label": "Screens" });
  const entries = ENTRIES.filter((entry) => screens.includes(entry.screen));
  /** @type {BarState} */
  let state;
  const list = element("div", { class: "top-entries" });
  nav.append(
    list,
    createMore(entries, switchTheme, () => state.meta),
  );
  const drawEntries = keepChildren(
    list,
    (/** @type {Entry} */ entry) => entry.screen,
    (entry) => createEntry(entry, () => state),
  );
  const search = createSearch(find);
  const live = element("span", { class: "live-word" });
  const liveHost = element("span", { class: "live" }, element("span", { class: "live-dot" }), live);
  const who = element("span", {});
  const token = element("span", { class: "token-name" }, glyph("person"), who);
  const theme = button("icon-button", switchTheme, glyph("theme"), element("span", { class: "unseen" }, "Other theme"));
  theme.title = "Other theme";
  return {
    element: element(
      "header",
      { class: "top-bar" },
      element("a", { class: "brand", href: "#/runs" }, glyph("mark", "mark"), element("span", {}, "Holdfast")),
      element("span", { class: "store" }, glyph("store"), store),
      nav,
      search.element,
      liveHost,
      token,
      theme,
    ),
    focusSearch: search.focus,
    update(next) {
      state = next;
      drawEntries(entries);
      const look = LIVE[next.connection.state];
      setText(live, look.words);
      setAttribute(liveHost, "data-tone", look.tone);
      if (!next.meta) return;
      setText(store, storeName(next.meta.store));
      setAttribute(store, "title", next.meta.store);
      setText(who, next.meta.name);
      setAttribute(token, "title", `Token ${next.meta.name}, role ${next.meta.role}`);
    },
  };
}

/**
 * @param {Entry} entry
 * @param {() => BarState} stateOf
 * @returns {import("../shell/elements.js").Part<Entry>}
 */
function createEntry(entry, stateOf) {
  const count = element("span", { class: "count", "data-tone": entry.tone });
  const link = element(
    "a",
    { class: entry.inMore && "in-more", href: formatFragment({ screen: entry.screen, query: {} }) },
    glyph(entry.glyph, "phone-only"),
    element("span", {}, entry.words),
    count,
  );
  return {
    element: link,
    update() {
      const { board, screen } = stateOf();
      const value = board && entry.count ? (entry.count(board) ?? 0) : 0;
      setText(count, value ? number(value) : "");
      count.hidden = !value;
      const isHere = screen === entry.screen || (entry.screen === "runs" && (screen === "run" || screen === "compare"));
      setAttribute(link, "aria-current", isHere && "page");
    },
  };
}

/**
 * What the tabs of a phone have no room for.
 * @param {Entry[]} entries
 * @param {() => void} switchTheme
 * @param {() => import("../shapes.js").Meta | null} metaOf
 */
function createMore(entries, switchTheme, metaOf) {
  const menu = createMenu({
    look: "more-opener",
    hostLook: "more-host phone-only",
    mark: "more",
    fill(panel, close) {
      const links = entries.filter((entry) => entry.inMore);
      const meta = metaOf();
      panel.append(
        element(
          "ul",
          { class: "menu-list" },
          ...links.map((entry) =>
            element(
              "li",
              {},
              element("a", { href: formatFragment({ screen: entry.screen, query: {} }), onclick: close }, entry.words),
            ),
          ),
          element("li", {}, button("menu-item", switchTheme, "Other theme")),
        ),
        element("p", { class: "hint menu-note" }, meta ? `Token ${meta.name}, role ${meta.role}` : ""),
      );
    },
  });
  menu.update({ label: "More" });
  return menu.element;
}

/** @param {(text: string) => void} find */
function createSearch(find) {
  const field = element("input", {
    type: "search",
    "aria-label": "Find a run",
    placeholder: "Find a run",
    autocomplete: "off",
    spellcheck: "false",
  });
  const form = element(
    "form",
    { class: "search", role: "search" },
    glyph("search"),
    field,
    element("kbd", { "aria-hidden": "true" }, "/"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    find(field.value.trim());
    field.blur();
  });
  // On a phone the field opens from its glyph.
  form.addEventListener("click", () => field.focus());
  return { element: form, focus: () => field.select() };
}
