// How much of a limit is used: small cells, and the numbers beside them.

import { number } from "../pure/words.js";
import { element, setText } from "../shell/elements.js";

const GAUGE_CELLS_MAX = 12;

/** @returns {import("../shell/elements.js").Part<{ used: number, limit: number | null, words: string }>} */
export function createGauge() {
  const [cells, text] = [element("span", { class: "gauge-cells", "aria-hidden": "true" }), element("span", {})];
  let drawn = "";
  return {
    element: element("span", { class: "gauge" }, cells, text),
    update({ used, limit, words }) {
      setText(text, limit === null ? words : `${number(used)} of ${number(limit)}`);
      const total = limit === null ? 0 : Math.min(GAUGE_CELLS_MAX, limit);
      const full = limit ? Math.ceil((Math.min(used, limit) / limit) * total) : 0;
      if (drawn === `${full}/${total}`) return;
      drawn = `${full}/${total}`;
      cells.replaceChildren(...Array.from({ length: total }, (_, at) => element("span", { class: at < full ? "full" : "" })));
    },
  };
}
