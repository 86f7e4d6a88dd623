// The shared history of two runs as a line that parts: drawn to the width that there is, with the same in words for those who do
// not see it.

import { linesOf } from "../pure/comparisons.js";
import { LOOKS } from "../pure/statuses.js";
import { drawing, element, glyph, setAttribute } from "../shell/elements.js";

/** @typedef {import("../shapes.js").Comparison} Comparison */

/** The room for the words at the end of a line. */
const SIDE_LABEL_PX = 150;
const [TOP, BOTTOM] = [28, 54];
const BEND_PX = 56;

/** @returns {import("../shell/elements.js").Part<Comparison>} */
export function createPartingLines() {
  const picture = drawing("svg", { class: "compare-lines", role: "img" });
  const host = element("div", {}, picture);
  /** @type {Comparison | null} */
  let shown = null;
  const draw = () => shown && drawPartingLines(picture, shown, host.clientWidth);
  new ResizeObserver(draw).observe(host);
  return {
    element: host,
    update(found) {
      shown = found;
      setAttribute(picture, "aria-label", partingWords(found));
      draw();
    },
  };
}

/** @param {Comparison} found */
function partingWords({ a, b, shared }) {
  const history = shared ? `Shared history up to @${shared.seq}` : "No shared history";
  return `${history}. A ${a.status} at @${a.seq}, B ${b.status} at @${b.seq}.`;
}

/** @param {SVGSVGElement} picture @param {Comparison} found @param {number} width */
function drawPartingLines(picture, found, width) {
  const lines = linesOf(found);
  const length = Math.max(120, width - SIDE_LABEL_PX - 8);
  const x = (/** @type {number} */ part) => 6 + part * length;
  const from = x(lines.shared);
  const bend = Math.min(BEND_PX, Math.max(8, x(lines.b) - from));
  const [half, fall] = [bend / 2, BOTTOM - TOP];
  const curve = `M${from} ${TOP}c${half} 0 ${half} ${fall} ${bend} ${fall}H${Math.max(from + bend, x(lines.b))}`;
  const { shared } = found;
  picture.replaceChildren(
    drawing("path", { class: "line-b", d: shared ? curve : `M6 ${BOTTOM}H${x(lines.b)}` }),
    drawing("path", { d: `M6 ${TOP}H${x(lines.a)}` }),
    ...(shared
      ? [
          drawing("circle", { cx: from, cy: TOP, r: 6 }),
          drawing("text", { x: from, y: TOP - 13, "text-anchor": "middle" }, `@${shared.seq}`),
          drawing("text", { x: 6, y: TOP + 22 }, `Shared history, @1 to @${shared.seq}`),
        ]
      : []),
    ...createEnd("A", found.a, x(lines.a), TOP),
    ...createEnd("B", found.b, x(lines.b), BOTTOM),
  );
}

/** @param {string} name @param {import("../shapes.js").ComparedRun} run @param {number} x @param {number} y */
function createEnd(name, run, x, y) {
  const look = LOOKS[run.status] ?? LOOKS.unreached;
  const mark = glyph(look.glyph);
  for (const [attribute, value] of Object.entries({ x: x + 10, y: y - 8, width: 16, height: 16, "data-tone": look.tone }))
    setAttribute(mark, attribute, value);
  return [mark, drawing("text", { x: x + 32, y: y + 4 }, `${name} ${look.word} @${run.seq}`)];
}
