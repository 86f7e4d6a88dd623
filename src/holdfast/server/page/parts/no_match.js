// Nothing matches: the filters as words, each of which can be taken off.

import { filterWords, withoutFilter } from "../pure/filters.js";
import { formatFragment } from "../pure/fragments.js";
import { element, glyph } from "../shell/elements.js";

const COUNTED = ["", "", "both", "all three", "all four"];

/** @param {import("../pure/fragments.js").Place} place */
export function createNoMatch(place) {
  const words = filterWords(place.query);
  const chips = words.map((word) =>
    element(
      "a",
      {
        class: "chip",
        href: formatFragment({ ...place, query: withoutFilter(place.query, word) }),
        "aria-label": `Remove filter ${word.words}`,
      },
      word.words,
      glyph("close"),
    ),
  );
  const clear = words.length > 1 && element("a", { href: "#/runs" }, `Clear ${COUNTED[words.length] ?? "all"}`);
  return element(
    "section",
    { class: "no-match panel" },
    element("h2", {}, "No run matches"),
    element("p", { class: "chips" }, ...chips),
    clear,
  );
}
