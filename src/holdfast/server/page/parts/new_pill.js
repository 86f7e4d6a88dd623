// The pill that holds new runs back until the reader asks for them.

import { plural } from "../pure/words.js";
import { button, setText } from "../shell/elements.js";

/**
 * @param {() => void} show
 * @returns {import("../shell/elements.js").Part<number>}
 */
export function createNewPill(show) {
  const pill = button("new-pill", show);
  pill.hidden = true;
  return {
    element: pill,
    update(count) {
      pill.hidden = !count;
      setText(pill, count ? plural(count, "new run") : "");
    },
  };
}
