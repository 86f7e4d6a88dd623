// Tabs: one of several views. A view is a place, so a tab is a link, and the one that is shown is marked as current.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { element, keepChildren, setAttribute, setText } from "../shell/elements.js";

/** @typedef {{ key: string, words: string, count?: number | null, href: string, chosen: boolean }} TabItem */

/**
 * @param {string} label  what the tabs choose
 * @param {"tabs" | "segments"} [look]  a line below the chosen one, or a raised box around it
 * @returns {import("../shell/elements.js").Part<TabItem[]>}
 */
export function createTabs(label, look = "tabs") {
  const host = element("nav", { class: look, "aria-label": label });
  const update = keepChildren(host, (/** @type {TabItem} */ tab) => tab.key, createTab);
  return { element: host, update };
}

/**
 * A tab that leads to the same place with other parameters.
 * @param {import("../pure/fragments.js").Place} place
 * @param {string} words
 * @param {Record<string, string | undefined>} changes
 * @param {boolean} chosen
 * @returns {TabItem}
 */
export const tabTo = (place, words, changes, chosen) => ({
  key: words,
  words,
  href: formatFragment(withQuery(place, changes)),
  chosen,
});

/** @returns {import("../shell/elements.js").Part<TabItem>} */
function createTab() {
  const [words, count] = [element("span", {}), element("span", { class: "tab-count" })];
  const link = element("a", {}, words, count);
  return {
    element: link,
    update(tab) {
      setText(words, tab.words);
      setText(count, tab.count ? String(tab.count) : "");
      setAttribute(link, "href", tab.href);
      setAttribute(link, "data-key", tab.key);
      setAttribute(link, "aria-current", tab.chosen && "true");
    },
  };
}
