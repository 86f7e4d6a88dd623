// How many runs there are of each status. Each count is a filter, and a link.

import { LOOKS, STATUS_ORDER } from "../pure/statuses.js";
import { formatFragment } from "../pure/fragments.js";
import { number } from "../pure/words.js";
import { element, glyph, keepChildren, setAttribute, setText } from "../shell/elements.js";

/**
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
 * The tabs for a board. A status that no run has is left out, unless it is the filter: ten zeros say nothing.
 * @param {import("../shapes.js").Board | null} board
 * @param {import("../pure/fragments.js").Query} query
 * @returns {Tab[]}
 */
export function tabsFor(board, query) {
  const status = query.status?.length === 1 ? query.status[0] : "";
  const attention = Boolean(query.attention);
  const { status: _, attention: __, ...others } = query;
  /** @param {import("../pure/fragments.js").Query} own */
  const place = (own) => ({ screen: /** @type {const} */ ("runs"), query: { ...others, ...own } });
  const total = board ? Object.values(board.counts).reduce((sum, count) => sum + count, 0) : null;
  const tabs = [
    { key: "all", words: "All", glyph: null, tone: "rest", count: total, place: place({}), chosen: !query.status && !attention },
    {
      key: "attention",
      words: "Need attention",
      glyph: /** @type {const} */ ("warning"),
      tone: "ask",
      count: board?.attention ?? null,
      place: place({ attention: ["true"] }),
      chosen: attention,
    },
  ];
  const counted = STATUS_ORDER.map((name) => ({
    key: name,
    words: LOOKS[name].word,
    glyph: LOOKS[name].glyph,
    tone: LOOKS[name].tone,
    count: board ? (board.counts[name] ?? 0) : null,
    place: place({ status: [name] }),
    chosen: !attention && status === name,
  }));
  return [...tabs, ...counted].filter((tab) => tab.count !== 0 || tab.chosen || tab.key === "all");
}
