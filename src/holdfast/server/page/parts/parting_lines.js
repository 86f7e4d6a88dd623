// The shared history of two runs as a line that parts, with the same in words for those who do not see it. Places along the lines
// are parts of the width, so that the browser keeps them when the width changes.

import { linesOf } from "../pure/comparisons.js";
import { lookOfRun } from "../pure/statuses.js";
import { drawing, element, glyph, setAttribute } from "../shell/elements.js";

/** @typedef {import("../shapes.js").Comparison} Comparison */

const [TOP, BOTTOM] = [28, 54];
const BEND_PX = 56;

/** @returns {import("../shell/elements.js").Part<Comparison>} */
export function createPartingLines() {
  const picture = drawing("svg", { class: "compare-lines", role: "img" });
  return {
    element: element("div", {}, picture),
    update(found) {
      const { a, b, shared } = found;
      const lines = linesOf(found);
      const history = shared ? `Shared history, @1 to @${shared.seq}` : "No shared history";
      setAttribute(picture, "aria-label", `${history}. A ${a.status} at @${a.seq}, B ${b.status} at @${b.seq}.`);
      const bend = shared ? BEND_PX : 0;
      const curve = `M0 ${TOP}c${bend / 2} 0 ${bend / 2} ${BOTTOM - TOP} ${bend} ${BOTTOM - TOP}`;
      picture.replaceChildren(
        createPiece(
          lines.shared,
          lines.b - lines.shared,
          ...(shared ? [drawing("path", { d: curve })] : []),
          drawing("line", { x1: bend, x2: "100%", y1: BOTTOM, y2: BOTTOM }),
        ),
        drawing("line", { x2: percent(lines.a), y1: TOP, y2: TOP }),
        ...(shared
          ? [
              drawing("circle", { cx: percent(lines.shared), cy: TOP, r: 6 }),
              drawing("text", { x: percent(lines.shared), y: TOP - 13, "text-anchor": "middle" }, `@${shared.seq}`),
              drawing("svg", { width: percent(lines.shared) }, drawing("text", { y: TOP + 22 }, history)),
            ]
          : []),
        createEnd("A", a, lines.a, TOP),
        createEnd("B", b, lines.b, BOTTOM),
      );
    },
  };
}

/** @param {number} part */
const percent = (part) => `${part * 100}%`;

/** @param {number} from @param {number} width @param {...SVGElement} content */
const createPiece = (from, width, ...content) =>
  drawing("svg", { x: percent(from), width: percent(width), overflow: "visible" }, ...content);

/** @param {string} name @param {import("../shapes.js").ComparedRun} run @param {number} part @param {number} y */
function createEnd(name, { status, seq }, part, y) {
  const look = lookOfRun({ status });
  const mark = glyph(look.glyph);
  for (const [attribute, value] of Object.entries({ x: 10, y: y - 8, width: 16, height: 16, "data-tone": look.tone }))
    setAttribute(mark, attribute, value);
  return createPiece(part, 0.1, mark, drawing("text", { x: 32, y: y + 4 }, `${name} ${look.word} @${seq}`));
}
