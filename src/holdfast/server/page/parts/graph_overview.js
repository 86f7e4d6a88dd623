// The overview of a graph that is larger than its pane: all boxes in their colours, and the part that is in view. It is for the
// pointer; keys move through the graph itself.

import { lookOfNode } from "../pure/statuses.js";
import { drawing, setAttribute } from "../shell/elements.js";

const SIZE = 96;
const LONGEST = 240;

/** @param {HTMLElement} scroller */
export function createOverview(scroller) {
  const [boxes, view] = [drawing("g", {}), drawing("rect", { class: "overview-view", rx: 2 })];
  const host = drawing("svg", { class: "graph-overview", "aria-hidden": "true" }, boxes, view);
  /** @type {import("../pure/graph_shapes.js").Layout} */
  let layout = { width: 1, height: 1, boxes: [], lines: [] };
  let [small, scale, drawn] = [1, 1, ""];

  function showView() {
    setAttribute(view, "x", (scroller.scrollLeft / scale) * small);
    setAttribute(view, "y", (scroller.scrollTop / scale) * small);
    setAttribute(view, "width", Math.min(layout.width, scroller.clientWidth / scale) * small);
    setAttribute(view, "height", Math.max(2, Math.min(layout.height, scroller.clientHeight / scale) * small));
  }
  scroller.addEventListener("scroll", showView, { passive: true });

  /** @param {PointerEvent} event */
  function scroll(event) {
    if (!event.buttons) return;
    const { left, top } = host.getBoundingClientRect();
    scroller.scrollTo({
      left: ((event.clientX - left) / small) * scale - scroller.clientWidth / 2,
      top: ((event.clientY - top) / small) * scale - scroller.clientHeight / 2,
    });
  }
  host.addEventListener("pointerdown", (event) => {
    host.setPointerCapture(event.pointerId);
    scroll(event);
  });
  host.addEventListener("pointermove", scroll);

  return {
    element: host,
    /** @param {import("../pure/graph_shapes.js").Layout} next */
    show(next) {
      [layout, drawn] = [next, ""];
      small = Math.min(SIZE / layout.width, LONGEST / layout.height);
      setAttribute(host, "width", layout.width * small);
      setAttribute(host, "height", layout.height * small);
    },
    /** @param {number} next  the scale of the graph */
    fit(next) {
      scale = next;
      const fits = layout.width * scale <= scroller.clientWidth + 1 && layout.height * scale <= scroller.clientHeight + 1;
      setAttribute(host, "hidden", fits);
      showView();
    },
    /** @param {Record<string, import("../shapes.js").NodeMark>} nodes */
    update(nodes) {
      if (host.hasAttribute("hidden")) return;
      /** @type {Map<string, string>} */
      const paths = new Map();
      for (const { name, kind, members, x, y, w, h } of layout.boxes) {
        if (kind === "start" || kind === "end") continue;
        const tone = kind === "stack" ? "rest" : lookOfNode(nodes[members?.[0] ?? name]).tone;
        const size = `h${(w * small).toFixed(1)}v${Math.max(1, h * small).toFixed(1)}h-${(w * small).toFixed(1)}z`;
        paths.set(tone, `${paths.get(tone) ?? ""}M${(x * small).toFixed(1)} ${(y * small).toFixed(1)}${size}`);
      }
      const next = [...paths.values()].join();
      if (next === drawn) return;
      drawn = next;
      boxes.replaceChildren(...[...paths].map(([tone, d]) => drawing("path", { d, class: `overview-${tone}` })));
    },
  };
}
