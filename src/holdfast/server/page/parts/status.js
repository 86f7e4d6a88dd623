// A status: glyph and word, always both.

import { element, glyph, setAttribute, setText } from "../shell/elements.js";

/** @returns {import("../shell/elements.js").Part<import("../pure/statuses.js").Look>} */
export function createStatus() {
  const word = element("span", { class: "status-word" });
  const host = element("span", { class: "status" }, word);
  let shown = "";
  return {
    element: host,
    update(look) {
      if (look.glyph !== shown) {
        if (shown) host.firstElementChild?.remove();
        host.prepend(glyph(look.glyph, look.turns ? "turns" : ""));
        shown = look.glyph;
      }
      setText(word, look.word);
      setAttribute(host, "data-tone", look.tone);
    },
  };
}
