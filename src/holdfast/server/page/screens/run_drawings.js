// The drawings of a run: its graph, or the same as a table, and its timeline, or on a phone its story. All show the same nodes at
// the same place in time.

import { nodesInOrder } from "../pure/graph_views.js";
import { plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createGraph } from "../parts/graph.js";
import { createNodeTable } from "../parts/node_table.js";
import { createTimeline } from "../parts/timeline.js";
import { button, element, setAttribute, setText } from "../shell/elements.js";

/**
 * @typedef {object} DrawnRun
 * @property {any} known
 * @property {Record<string, import("../shapes.js").NodeMark>} nodes
 * @property {import("../pure/fragments.js").Place} place
 * @property {string | null} chosen
 * @property {number} now
 * @property {() => void} again
 */

/**
 * @param {object} acts
 * @param {(node: string) => void} acts.choose
 * @param {(node: string, visit: string | undefined, item: string | undefined) => void} acts.chooseVisit
 * @param {(node: string, iteration: number) => void} acts.chooseIteration
 * @param {(shape: import("../parts/graph.js").Shape) => void} acts.reshape
 */
export function createRunDrawings({ choose, chooseVisit, chooseIteration, reshape }) {
  const [graph, table] = [createGraph({ choose, chooseIteration, reshape }), createNodeTable({ choose })];
  const timeline = createTimeline({ choose: ({ node, visit, item }) => chooseVisit(node, visit, item) });
  const [graphFault, timelineFault] = [createBanner(), createBanner()];
  const segments = element(
    "div",
    { class: "segments", role: "group", "aria-label": "How the nodes are shown" },
    button("segment", () => show(false), "Graph"),
    button("segment", () => show(true), "Table"),
  );
  const [note, body] = [element("span", { class: "hint" }), element("div", { class: "graph-body" })];
  const graphPane = element(
    "div",
    { class: "run-graph" },
    element("div", { class: "graph-head" }, segments, note),
    graphFault.element,
    body,
  );
  const timelinePane = element("div", { class: "run-timeline" }, timelineFault.element, timeline.element);
  let asTable = false;
  /** @type {DrawnRun | null} */
  let drawn = null;

  /** @param {boolean} next */
  function show(next) {
    asTable = next;
    if (drawn) update(drawn);
  }

  /** @param {DrawnRun} value */
  function update(value) {
    drawn = value;
    const { known, nodes, place, chosen, now, again } = value;
    const { picture, geometry, timeline: times, problems } = known;
    [...segments.children].forEach((one, number) => setAttribute(one, "aria-pressed", String(asTable === (number === 1))));
    const part = asTable ? table : graph;
    if (body.firstElementChild !== part.element) body.replaceChildren(part.element);
    const fault = problems.picture ?? problems.geometry ?? null;
    graphFault.update(fault && problemBanner(fault, again));
    timelineFault.update(problems.timeline ? problemBanner(problems.timeline, again) : null);
    const isPast = place.at !== undefined;
    const count = Object.keys(geometry?.nodes ?? {}).length;
    setText(note, isPast ? `as it was at @${place.at}` : count ? plural(count, "node") : "");
    body.hidden = !geometry || !picture;
    if (!geometry || !picture) return;
    const then = isPast ? picture.at : now;
    part.update({
      picture: geometry,
      states: { nodes, taken: picture.taken, chosen: picture.chosen },
      now: then,
      at: place.at ?? null,
      node: chosen,
      again: isPast ? new Set(known.again) : undefined,
    });
    if (!times) return;
    timeline.update({
      timeline: times,
      nodes: nodesInOrder(geometry).map((name) => ({
        name,
        mark: nodes[name],
        once: geometry.nodes[name]?.idempotent === false,
      })),
      chosen,
      checkpoint: isPast ? { seq: Number(place.at), at: picture.at } : null,
      now,
    });
  }

  return { graph: graphPane, timeline: timelinePane, tools: timeline.tools, update };
}
