// The drawings of a run: its graph, or the same as a table, and its timeline, or on a phone its story. All show the same nodes at
// the same place in time.

import { whenChanged } from "../pure/depending.js";
import { placeAt } from "../pure/run_choices.js";
import { plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createGraph } from "../parts/graph.js";
import { createNodeTable } from "../parts/node_table.js";
import { createStory } from "../parts/story.js";
import { createTabs, tabTo } from "../parts/tabs.js";
import { createTimeline } from "../parts/timeline.js";
import { element, setText } from "../shell/elements.js";

/**
 * @typedef {object} DrawnRun
 * @property {any} known
 * @property {Record<string, import("../shapes.js").NodeMark>} nodes
 * @property {import("../pure/fragments.js").Place} place
 * @property {string | null} chosen
 * @property {number} now
 * @property {() => void} again
 */

/** There is no room for the graph beside the other views. */
export const isNarrow = () => matchMedia("(max-width: 1100px)").matches;

/** There is room for one pane. */
export const isPhone = () => matchMedia("(max-width: 640px)").matches;

/**
 * @param {object} acts
 * @param {(place: import("../pure/fragments.js").Place) => void} acts.go
 * @param {(node: string) => void} acts.choose
 * @param {(node: string, visit: string | undefined, item: string | undefined) => void} acts.chooseVisit
 * @param {(node: string, iteration: number) => void} acts.chooseIteration
 * @param {(shape: import("../parts/graph.js").Shape) => void} acts.reshape
 */
export function createRunDrawings({ go, choose, chooseVisit, chooseIteration, reshape }) {
  const [graph, table] = [createGraph({ choose, chooseIteration, reshape }), createNodeTable({ choose })];
  const timeline = createTimeline({ choose: ({ node, visit, item }) => chooseVisit(node, visit, item) });
  const story = createStory({ choose: ({ node }) => choose(node) });
  const [graphFault, timelineFault] = [createBanner(), createBanner()];
  const modes = createTabs("How the nodes are shown", "segments");
  const [note, body] = [element("span", { class: "hint" }), element("div", { class: "graph-body" })];
  const graphPane = element(
    "div",
    { class: "run-graph" },
    element("div", { class: "graph-head" }, modes.element, note),
    graphFault.element,
    body,
  );
  const timelinePane = element("div", { class: "run-timeline" }, timelineFault.element, timeline.element, story.element);
  /** The present, to the second: running times move on with it. */
  let second = 0;
  const drawGraph = whenChanged((/** @type {{ part: typeof graph, value: any }} */ { part, value }) => part.update(value));
  const drawTimeline = whenChanged((/** @type {any} */ value) => {
    if (isPhone()) story.update(value);
    timeline.update(value);
  });

  /** @param {DrawnRun} value */
  function update(value) {
    const { known, nodes, place, chosen, now, again } = value;
    const { picture, geometry, timeline: times, problems } = known;
    const asTable = place.query.nodes?.[0] === "table";
    modes.update([tabTo(place, "Graph", { nodes: undefined }, !asTable), tabTo(place, "Table", { nodes: "table" }, asTable)]);
    const part = asTable ? table : graph;
    if (body.firstElementChild !== part.element) body.replaceChildren(part.element);
    const fault = problems.picture ?? problems.geometry ?? null;
    graphFault.update(fault && faultBanner(fault, place, again, go));
    timelineFault.update(problems.timeline ? problemBanner(problems.timeline, again) : null);
    const isPast = place.at !== undefined;
    setText(note, isPast ? `as it was at @${place.at}` : geometry ? tellGraph(geometry) : "");
    body.hidden = !geometry || !picture;
    if (!geometry || !picture) return;
    if (Math.floor(now) !== Math.floor(second)) second = now;
    drawGraph({
      part,
      value: {
        picture: geometry,
        states: { nodes, taken: picture.taken, chosen: picture.chosen, not_taken: picture.not_taken },
        now: isPast ? picture.at : second,
        at: place.at ?? null,
        node: chosen,
        again: isPast ? known.again : undefined,
      },
    });
    if (!times) return;
    drawTimeline({
      timeline: times,
      nodes: Object.keys(geometry.nodes).map((name) => ({
        name,
        mark: nodes[name],
        once: geometry.nodes[name]?.idempotent === false,
      })),
      chosen,
      checkpoint: isPast ? { seq: Number(place.at), at: picture.at } : null,
      now: Math.max(second, times.ended_at), // nothing is drawn after the present
    });
  }

  return { graph: graphPane, timeline: timelinePane, tools: timeline.tools, update };
}

/** "6 nodes, 1 loop" @param {import("../shapes.js").FlowPicture} picture */
function tellGraph({ nodes, lines }) {
  const loops = lines.filter((line) => line.badge).length;
  return plural(Object.keys(nodes).length, "node") + (loops ? `, ${plural(loops, "loop")}` : "");
}

/**
 * A checkpoint that is not there, or was retired, has one way out: now.
 * @param {import("../shapes.js").Problem} fault
 * @param {import("../pure/fragments.js").Place} place
 * @param {() => void} again
 * @param {(place: import("../pure/fragments.js").Place) => void} go
 */
function faultBanner(fault, place, again, go) {
  const banner = problemBanner(fault, again);
  if (place.at === undefined || fault.status !== 404) return banner;
  const action = { words: "Back to now", act: () => go(placeAt(place, null)) };
  return { ...banner, title: `There is no event @${place.at} to show`, action };
}
