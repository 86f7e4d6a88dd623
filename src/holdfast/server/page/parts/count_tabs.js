// How many runs there are of each status. Each count is a filter, and a link.

import { LOOKS, STATUS_ORDER, countAll } from "../pure/statuses.js";
import { formatFragment } from "../pure/fragments.js";
import { number } from "../pure/words.js";
import { element, glyph, keepChildren, setAttribute, setText } from "../shell/elements.js";

/**
 * @typedef {import("../pure/fragments.js").Query} Query
 *
 * @typedef {object} Tab
 * @property {string} key
 * @property {string} words
 * @property {import("../pure/glyphs.js").GlyphName | null} glyph
 * @property {string} tone
 * @property {number | null} count  null: not known yet
 * @property {import("../pure/fragments.js").Place} place
 * @property {boolean} chosen
 */

/** @returns {import("../shell/elements.js").Part<Tab[]>} */
export function createCountTabs() {
  const list = element("div", { class: "count-tabs" });
  const update = keepChildren(list, (/** @type {Tab} */ tab) => tab.key, createCountTab);
  return { element: element("nav", { "aria-label": "Runs by status" }, list), update };
}

/** @param {Tab} first @returns {import("../shell/elements.js").Part<Tab>} */
function createCountTab(first) {
  const count = element("strong", {});
  const label = element(
    "span",
    { class: "status", "data-tone": first.tone },
    first.glyph && glyph(first.glyph),
    element("span", {}, first.words),
  );
  const link = element("a", { class: "count-tab" }, count, label);
  return {
    element: link,
    update(tab) {
      setText(count, tab.count === null ? "–" : number(tab.count));
      setAttribute(link, "href", formatFragment(tab.place));
      setAttribute(link, "aria-current", tab.chosen && "true");
    },
  };
}

/**
 * The tabs for a board. A status that no run has is left out, unless it is the filter: ten zeros say nothing. One that was shown
 * stays, so that no tab moves away under the pointer.
 * @param {import("../shapes.js").Board | null} board
 * @param {Query} query
 * @param {Set<string>} known  the tabs that were shown before; those that are shown now are added
 * @returns {Tab[]}
 */
export function tabsFor(board, query, known) {
  const { status, attention, ...others } = query;
  /**
   * @param {string} key
   * @param {Pick<Tab, "words" | "glyph" | "tone">} look
   * @param {number | undefined} count
   * @param {Query} own
   */
  const tab = (key, { words, glyph, tone }, count, own) => ({
    ...{ key, words, glyph, tone },
    count: board && (count ?? 0),
    place: { screen: /** @type {const} */ ("runs"), query: { ...others, ...own } },
    chosen: key === (attention ? "attention" : (status?.join() ?? "all")),
  });
  const tabs = [
    tab("all", { words: "All", glyph: null, tone: "rest" }, countAll(board) ?? 0, {}),
    tab("attention", { words: "Need attention", glyph: "warning", tone: "ask" }, board?.attention, { attention: ["true"] }),
    ...STATUS_ORDER.map((name) =>
      tab(name, { ...LOOKS[name], words: LOOKS[name].word }, board?.counts[name], { status: [name] }),
    ),
  ];
  for (const one of tabs) if (one.count || one.chosen || one.key === "all") known.add(one.key);
  return tabs.filter((one) => known.has(one.key));
}
