// The overview of a graph that is larger than its pane: all boxes in their colours, and the part that is in view. It is for the
// pointer; keys move through the graph itself.

import { isButton } from "../pure/graph_shapes.js";
import { groupBy } from "../pure/groups.js";
import { lookOfNode } from "../pure/statuses.js";
import { drawing, setAttribute } from "../shell/elements.js";

const [WIDE, HIGH] = [96, 240];

/** @param {HTMLElement} scroller */
export function createOverview(scroller) {
  const [boxes, view] = [drawing("g"), drawing("rect", { class: "overview-view" })];
  const host = drawing("svg", { class: "graph-overview", "aria-hidden": "true" }, boxes, view);
  /** @type {import("../pure/graph_shapes.js").Layout} */
  let layout = { width: 1, height: 1, boxes: [], lines: [] };
  let [small, scale, drawn] = [1, 1, ""];

  function showView() {
    setAttribute(view, "x", scroller.scrollLeft / scale);
    setAttribute(view, "y", scroller.scrollTop / scale);
    setAttribute(view, "width", Math.min(layout.width, scroller.clientWidth / scale));
    setAttribute(view, "height", Math.min(layout.height, scroller.clientHeight / scale));
  }
  scroller.addEventListener("scroll", showView, { passive: true });

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
     * @param {import("../pure/graph_shapes.js").Layout} next
     * @param {number} nextScale  of the graph
     * @param {Record<string, import("../shapes.js").NodeMark>} nodes
     */
    update(next, nextScale, nodes) {
      [layout, scale] = [next, nextScale];
      const { width, height } = layout;
      const fits = width * scale <= scroller.clientWidth + 1 && height * scale <= scroller.clientHeight + 1;
      setAttribute(host, "hidden", fits);
      if (fits) return;
      small = Math.min(WIDE / width, HIGH / height);
      setAttribute(host, "viewBox", `0 0 ${width} ${height}`);
      setAttribute(host, "width", width * small);
      setAttribute(host, "height", height * small);
      showView();
      const tones = groupBy(layout.boxes.filter(isButton), ({ kind, name, members }) =>
        kind === "stack" ? "rest" : lookOfNode(nodes[members?.[0] ?? name]).tone,
      );
      const paths = [...tones].map(([tone, same]) => ({
        class: `overview-${tone}`,
        d: same.map(({ x, y, w, h }) => `M${x} ${y}h${w}v${Math.max(1 / small, h)}h-${w}z`).join(""),
      }));
      const key = JSON.stringify(paths);
      if (key === drawn) return;
      drawn = key;
      boxes.replaceChildren(...paths.map((path) => drawing("path", path)));
    },
  };
}
