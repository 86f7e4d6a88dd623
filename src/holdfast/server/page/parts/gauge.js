// How much of a queue's limit is used: small cells, and the numbers beside them.

import { queueWords } from "../pure/workers.js";
import { element, setAttribute, setText } from "../shell/elements.js";

const GAUGE_CELLS_MAX = 12;

/** @returns {import("../shell/elements.js").Part<import("../shapes.js").Queue>} */
export function createGauge() {
  const [cells, text] = [element("span", { class: "gauge-cells", "aria-hidden": "true" }), element("span")];
  let drawn = "";
  return {
    element: element("span", { class: "gauge" }, cells, text),
    update(queue) {
      const { held, limit } = queue;
      setText(text, queueWords(queue));
      setAttribute(text, "data-tone", limit === 0 && "ask");
      const total = Math.min(GAUGE_CELLS_MAX, limit ?? 0);
      const full = limit ? Math.ceil(Math.min(1, held / limit) * total) : 0;
      if (drawn === `${full}/${total}`) return;
      drawn = `${full}/${total}`;
      cells.replaceChildren(...Array.from({ length: total }, (_, at) => element("span", { class: at < full && "full" })));
    },
  };
}
