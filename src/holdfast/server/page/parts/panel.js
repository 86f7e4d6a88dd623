// The panel of a node: one visit of it, in tabs, at the same place in time as everything else. Chips choose iteration, execution,
// attempt and item.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { statusOfItem } from "../pure/node_views.js";
import { TABS, choiceIn, placeOfVisit, tabFor, titled } from "../pure/run_choices.js";
import { lookOfNode, lookOfRun } from "../pure/statuses.js";
import { element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { createFetched } from "./fetched.js";
import { createMenu } from "./menu.js";
import { createStatus } from "./status.js";
import { createTabs, tabTo } from "./tabs.js";
import { createBodies } from "./visit_tabs.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {import("../pure/fragments.js").Place} Place
 *
 * @typedef {object} PanelView
 * @property {Place} place
 * @property {string | null} node
 * @property {{ mark: import("../shapes.js").NodeMark | undefined } & Record<string, unknown>} signs  whatever can change it
 * @property {{ seq: number, node: string | null, iteration: number, execution: number }[]} checkpoints
 * @property {number} end  the last event of the log
 *
 * @typedef {{ name: string, label: string, choices: { words: string, href: string, chosen: boolean }[] }} Chip
 */

const LISTED = 200;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<PanelView> & { event: (event: RunEvent) => void,
 *   chunk: (chunk: any) => void }}
 */
export function createPanel(app) {
  const [status, name, chips] = [createStatus(), element("h2", {}), element("div", { class: "visit-chips" })];
  const tabs = createTabs("About the node", "segments");
  const drawChips = keepChildren(chips, (/** @type {Chip} */ chip) => chip.name, createVisitChip);
  const bodies = createBodies(app);
  const content = element("div", { class: "panel-body" });
  const head = element("header", { class: "panel-head" }, status.element, name, chips, tabs.element);
  /** @type {PanelView} */
  let view;
  /** @type {NodeVisit | null} */
  let visit = null;
  /** The tab that opened by itself, and where. */
  let [tab, openedAt] = [/** @type {string | null} */ (null), ""];
  /** The nodes of the run that have streamed since it is looked at. @type {Set<string>} */
  let streaming = new Set();
  const fetched = createFetched(app, (value) => {
    visit = value;
    draw();
  });
  const host = element("section", { class: "run-panel", "aria-label": "Node" }, head, fetched.problem, content);

  function draw() {
    const { place, node } = view;
    const { mark } = view.signs;
    head.hidden = node === null;
    content.hidden = tabs.element.hidden = chips.hidden = !visit;
    setText(name, node ?? "");
    if (!visit) return status.update(lookOfNode(mark));
    const choice = choiceIn(place);
    const attempt = visit.attempts.find((one) => one.attempt === choice.attempt) ?? visit.attempts.at(-1) ?? null;
    const where = `${place.run} ${place.at} ${node}`;
    const opened = where === openedAt ? tab : null;
    const isLookedAt = opened !== null && content.matches(":hover, :focus-within");
    tab = isLookedAt ? opened : tabFor(place.at !== undefined, visit, { opened, streams: streaming.has(visit.node) });
    openedAt = where;
    const shown = choice.tab ?? tab;
    const isLatest = !visit.attempts.length || (mark?.iteration === visit.iteration && mark.execution === visit.execution);
    const ofItem = { status: statusOfItem(visit.status, isLatest ? mark : undefined) };
    status.update(isLatest && visit.item === null ? lookOfNode(mark) : lookOfRun(ofItem));
    drawChips(chipsOf(visit, attempt?.attempt ?? null, place));
    tabs.update(
      TABS.map((key) => ({
        ...tabTo(place, titled(key), { node: node ?? undefined, tab: key }, key === shown),
        key,
        count: key === "steps" ? visit?.steps.length : 0,
      })),
    );
    const body = bodies[shown];
    if (content.firstElementChild !== body.element) content.replaceChildren(body.element);
    body.update({ ...view, mark, visit, attempt, now: app.clock.now() });
  }

  return {
    element: host,
    chunk(chunk) {
      bodies.stream.chunk(chunk);
      if (streaming.has(chunk.node)) return;
      streaming.add(chunk.node);
      draw();
    },
    event: bodies.stream.event,
    update(next) {
      const { place, node, signs } = next;
      if (node !== view?.node || place.run !== view.place.run) visit = null;
      if (place.run !== view?.place.run) streaming = new Set();
      view = next;
      setAttribute(host, "data-chosen", Boolean(place.query.node));
      const { iteration, execution, item } = choiceIn(place);
      const asked = { iteration, execution, item, at: place.at };
      if (node !== null) fetched.want({ path: `runs/${place.run}/nodes/${node}`, asked, follows: signs });
      draw();
    },
  };
}

/**
 * The chips that have something to choose.
 * @param {NodeVisit} visit
 * @param {number | null} attempt
 * @param {Place} place
 * @returns {Chip[]}
 */
function chipsOf({ node, iteration, execution, item, visits, attempts, items }, attempt, place) {
  const labels = new Map((items ?? []).map((one) => [one.item, one.label]));
  /** @param {string} name @param {number | null} chosen @param {(number | null)[]} all @param {(one: any) => Place} placeOf */
  const chip = (name, chosen, all, placeOf) => {
    const words = (/** @type {number | null} */ one) =>
      one === null ? `all ${name}s` : `${name} ${one}${name === "item" && labels.get(one) ? ` · ${labels.get(one)}` : ""}`;
    const choices = [...new Set(all)].slice(-LISTED);
    const made = choices.map((one) => ({ words: words(one), href: formatFragment(placeOf(one)), chosen: one === chosen }));
    return choices.some((one) => one !== chosen) ? [{ name, label: words(chosen), choices: made }] : [];
  };
  const visitAt = (/** @type {[number, number, number?]} */ ...one) => placeOfVisit(place, node, one);
  const latest = (/** @type {number} */ one) => visits.findLast(([other]) => other === one)?.[1] ?? 1;
  return [
    ...chip(
      "iteration",
      iteration,
      visits.map(([one]) => one),
      (one) => visitAt(one, latest(one)),
    ),
    ...chip(
      "execution",
      execution,
      visits.flatMap(([of, one]) => (of === iteration ? one : [])),
      (one) => visitAt(iteration, one),
    ),
    ...chip(
      "attempt",
      attempt,
      attempts.map((one) => one.attempt),
      (one) => visitAt(iteration, execution, one),
    ),
    ...chip("item", item, [null, ...(items ?? []).map((one) => one.item)], (one) =>
      withQuery(visitAt(iteration, execution), { item: one === null ? "" : String(one) }),
    ),
  ];
}

/** What a chip counts. @type {Record<string, string>} */
const MEANINGS = {
  iteration: "In a loop, a node is visited several times. Each visit is an iteration.",
  execution: "A run that goes back to an earlier checkpoint executes a visit again, from its beginning.",
  attempt: "A visit is tried again after a failure or a crash. Steps that were kept are not repeated.",
  item: "A fan-out calls its node once for each item.",
};

/** @param {Chip} first */
function createVisitChip({ name }) {
  /** @type {Chip} */
  let chip;
  const menu = createMenu({
    look: "chip-button",
    fill(panel, close) {
      const items = chip.choices.map(({ words, href, chosen }) =>
        element("li", {}, element("a", { href, "aria-current": chosen && "true", onclick: close }, words)),
      );
      panel.append(element("ul", { class: "menu-list" }, ...items));
    },
  });
  menu.element.title = MEANINGS[name];
  return {
    element: menu.element,
    /** @param {Chip} next */
    update(next) {
      chip = next;
      menu.update(next);
    },
  };
}
