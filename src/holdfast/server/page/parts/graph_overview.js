// The overview of a graph that is larger than its pane: all boxes in their colours, and the part that is in view. It is for the
// pointer; keys move through the graph itself.

import { whenChanged } from "../pure/depending.js";
import { isButton } from "../pure/graph_shapes.js";
import { groupBy } from "../pure/groups.js";
import { lookOfNode } from "../pure/statuses.js";
import { drawing, setAttribute } from "../shell/elements.js";

const [WIDE, HIGH] = [96, 240];

/** @param {HTMLElement} scroller */
export function createOverview(scroller) {
  const [boxes, view] = [drawing("g"), drawing("rect", { class: "overview-view" })];
  const host = drawing("svg", { class: "graph-overview", "aria-hidden": "true" }, boxes, view);
  let [small, scale] = [1, 1];
  const draw = whenChanged((/** @type {{ class: string, d: string }[]} */ paths) =>
    boxes.replaceChildren(...paths.map((path) => drawing("path", path))),
  );

  /** @param {PointerEvent} event */
  function scroll({ buttons, clientX, clientY, pointerId }) {
    if (!buttons) return;
    host.setPointerCapture(pointerId);
    const { left, top } = host.getBoundingClientRect();
    scroller.scrollTo({
      left: ((clientX - left) / small) * scale - scroller.clientWidth / 2,
      top: ((clientY - top) / small) * scale - scroller.clientHeight / 2,
    });
  }
  host.addEventListener("pointerdown", scroll);
  host.addEventListener("pointermove", scroll);

  return {
    element: host,
    /**
     * @param {import("../pure/graph_shapes.js").Layout} layout
     * @param {number} nextScale  of the graph
     * @param {{ left: number, top: number, width: number, height: number }} pane  the part of it in view
     * @param {Record<string, import("../shapes.js").NodeMark>} nodes
     */
    update({ width, height, boxes: all }, nextScale, pane, nodes) {
      scale = nextScale;
      const fits = width * scale <= pane.width + 1 && height * scale <= pane.height + 1;
      setAttribute(host, "hidden", fits);
      if (fits) return;
      small = Math.min(WIDE / width, HIGH / height);
      setAttribute(host, "viewBox", `0 0 ${width} ${height}`);
      setAttribute(host, "width", width * small);
      setAttribute(host, "height", height * small);
      setAttribute(view, "x", pane.left / scale);
      setAttribute(view, "y", pane.top / scale);
      setAttribute(view, "width", Math.min(width, pane.width / scale));
      setAttribute(view, "height", Math.min(height, pane.height / scale));
      const looks = groupBy(all.filter(isButton), ({ kind, name, members }) =>
        kind === "stack" ? "" : lookOfNode(nodes[members?.[0] ?? name]).glyph,
      );
      const paths = [...looks].map(([look, same]) => ({
        class: `fill-${look}`,
        d: same.map(({ x, y, w, h }) => `M${x} ${y}h${w}v${Math.max(1 / small, h)}h-${w}z`).join(""),
      }));
      draw(paths);
    },
  };
}
