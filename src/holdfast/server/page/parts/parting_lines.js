// The shared history of two runs as a line that parts: drawn to the width that there is, with the same in words for those who do
// not see it.

import { linesOf } from "../pure/comparisons.js";
import { lookOfRun } from "../pure/statuses.js";
import { drawing, element, glyph, setAttribute } from "../shell/elements.js";

/** @typedef {import("../shapes.js").Comparison} Comparison */

/** The room for the words at the end of a line. */
const SIDE_LABEL_PX = 150;
const [TOP, BOTTOM] = [28, 54];
const BEND_PX = 56;
/** The room for the words below the shared line. */
const HISTORY_PX = 150;

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
  const { a, b, shared } = found;
  const lines = linesOf(found);
  const x = (/** @type {number} */ part) => 6 + part * Math.max(120, width - SIDE_LABEL_PX - 8);
  const [from, to] = [x(lines.shared), x(lines.b)];
  const bend = Math.min(BEND_PX, Math.max(8, to - from));
  const [half, fall] = [bend / 2, BOTTOM - TOP];
  const curve = `M${from} ${TOP}c${half} 0 ${half} ${fall} ${bend} ${fall}H${Math.max(from + bend, to)}`;
  const parting = shared && [
    drawing("circle", { cx: from, cy: TOP, r: 6 }),
    drawing("text", { x: from, y: TOP - 13, "text-anchor": "middle" }, `@${shared.seq}`),
    // Where there is no room beside the curve, the words for those who do not see it have to do.
    drawing("text", { x: 6, y: TOP + 22, visibility: from < HISTORY_PX && "hidden" }, `Shared history, @1 to @${shared.seq}`),
  ];
  picture.replaceChildren(
    drawing("path", { class: "line-b", d: shared ? curve : `M6 ${BOTTOM}H${to}` }),
    drawing("path", { d: `M6 ${TOP}H${x(lines.a)}` }),
    ...(parting ?? []),
    ...createEnd("A", a, x(lines.a), TOP),
    ...createEnd("B", b, to, BOTTOM),
  );
}

/** @param {string} name @param {import("../shapes.js").ComparedRun} run @param {number} x @param {number} y */
function createEnd(name, { status, seq }, x, y) {
  const look = lookOfRun({ status });
  const mark = glyph(look.glyph);
  for (const [attribute, value] of Object.entries({ x: x + 10, y: y - 8, width: 16, height: 16, "data-tone": look.tone }))
    setAttribute(mark, attribute, value);
  return [mark, drawing("text", { x: x + 32, y: y + 4 }, `${name} ${look.word} @${seq}`)];
}
