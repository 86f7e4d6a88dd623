// The panel of a node: one visit of it, in tabs, at the same place in time as everything else. Chips choose iteration, execution,
// attempt and item.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { TABS, choiceIn, placeOfVisit, tabFor } from "../pure/run_choices.js";
import { lookOfNode, lookOfRun } from "../pure/statuses.js";
import { plural } from "../pure/words.js";
import { element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { createReader } from "../shell/reader.js";
import { createBanner, problemBanner } from "./banner.js";
import { createMenu } from "./menu.js";
import { createStatus } from "./status.js";
import { createTabs } from "./tabs.js";
import { createBodies } from "./visit_tabs.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {import("../pure/fragments.js").Place} Place
 *
 * @typedef {object} PanelView
 * @property {Place} place
 * @property {string | null} node
 * @property {import("../shapes.js").NodeMark | undefined} mark
 * @property {{ seq: number, node: string | null, iteration: number, execution: number }[]} checkpoints
 * @property {number} end  the last event of the log
 */

const PANEL_READ_MS = 500;
const LISTED = 200;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<PanelView> & { event: (event: RunEvent) => void,
 *   chunk: (chunk: any) => void }}
 */
export function createPanel(app) {
  const [status, name, tabs, problem] = [
    createStatus(),
    element("h2", {}),
    createTabs("About the node", "segments"),
    createBanner(),
  ];
  const chips = createChips();
  const bodies = createBodies(app);
  const content = element("div", { class: "panel-body" });
  const head = element("header", { class: "panel-head" }, status.element, name, chips.element, tabs.element);
  const host = element("section", { class: "run-panel", "aria-label": "Node" }, head, problem.element, content);
  /** @type {PanelView} */
  let view;
  /** @type {NodeVisit | null} */
  let visit = null;
  let [asked, tab, openedAt] = ["", "overview", ""];
  const reader = createReader(() => PANEL_READ_MS, read);

  /** The request for the visit that is chosen. */
  function wanted() {
    const { iteration, execution, item } = choiceIn(view.place);
    const given = { iteration, execution, item, at: view.place.at ?? null };
    const query = Object.fromEntries(
      Object.entries(given).flatMap(([key, value]) => (value === null ? [] : [[key, [String(value)]]])),
    );
    return { path: `runs/${view.place.run}/nodes/${view.node}`, query };
  }

  async function read() {
    if (!view.node) return;
    const { path, query } = wanted();
    const key = asked;
    const answer = await app.api.get(path, query);
    if (key !== asked) return; // another one was chosen meanwhile
    if (!answer.ok && !answer.problem.status && visit) return; // the server does not answer, and what is known stays
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => reader.ask(true)));
    visit = answer.ok ? answer.value : null;
    draw();
  }

  function draw() {
    head.hidden = !view.node;
    content.hidden = !visit;
    if (!view.node) return;
    setText(name, view.node);
    if (!visit) return status.update(lookOfNode(view.mark));
    const choice = choiceIn(view.place);
    const attempt = visit.attempts.find((one) => one.attempt === choice.attempt) ?? visit.attempts.at(-1) ?? null;
    // A tab that opened by itself stays when the visit goes on.
    const where = `${view.place.run} ${view.place.at} ${view.node}`;
    if (choice.tab || where !== openedAt) tab = choice.tab ?? tabFor(view.place.at !== undefined, visit);
    openedAt = where;
    const { mark } = view;
    const isLatest = !visit.attempts.length || (mark?.iteration === visit.iteration && mark.execution === visit.execution);
    status.update(isLatest && visit.item === null ? lookOfNode(mark) : lookOfRun(visit));
    chips.update({ visit, attempt: attempt?.attempt ?? null, place: view.place });
    const counts = /** @type {Record<string, number>} */ ({ steps: visit.steps.length });
    const base = withQuery(view.place, { node: view.node });
    tabs.update(
      TABS.map((key) => ({
        key,
        words: key.replace(/^./, (first) => first.toUpperCase()),
        count: counts[key],
        href: formatFragment(withQuery(base, { tab: key })),
        chosen: key === tab,
      })),
    );
    const body = bodies[tab];
    if (content.firstElementChild !== body.element) content.replaceChildren(body.element);
    body.update({ ...view, visit, attempt, now: app.clock.now() });
  }

  return {
    element: host,
    chunk: (chunk) => bodies.stream.chunk(chunk),
    event(event) {
      bodies.stream.event(event);
      // A visit that is shown as it was stays as it is.
      if (event.node !== view?.node || view.place.at !== undefined) return;
      reader.ask();
    },
    update(next) {
      view = next;
      setAttribute(host, "data-chosen", Boolean(next.place.query.node));
      const key = next.node ? JSON.stringify([wanted(), next.mark?.status, next.mark?.tries]) : "";
      if (key !== asked) {
        const before = asked;
        asked = key;
        if (JSON.parse(before || "[{}]")[0].path !== JSON.parse(key || "[{}]")[0].path) visit = null;
        reader.ask(true);
      }
      draw();
    },
  };
}

/** @returns {import("../shell/elements.js").Part<{ visit: NodeVisit, attempt: number | null, place: Place }>} */
function createChips() {
  const [host, only] = [element("div", { class: "visit-chips" }), element("span", { class: "tag" })];
  const draw = keepChildren(host, (/** @type {any} */ chip) => chip.name, createVisitChip);
  return {
    element: element("div", { class: "visit-chips" }, only, host),
    update({ visit, attempt, place }) {
      const { node, iteration, execution, visits, attempts, items } = visit;
      const at = (/** @type {[number, number, number?]} */ chosen) => formatFragment(placeOfVisit(place, node, chosen));
      const iterations = [...new Set(visits.map(([one]) => one))];
      only.hidden = visits.length !== 1;
      setText(only, `visit ${iteration}.${execution}`);
      const executions = visits.filter(([one]) => one === iteration).map(([, one]) => one);
      draw(
        [
          {
            name: "iteration",
            chosen: iteration,
            all: iterations
              .slice(-LISTED)
              .map((one) => ({ one, href: at([one, visits.findLast(([other]) => other === one)?.[1] ?? 1]) })),
          },
          { name: "execution", chosen: execution, all: executions.map((one) => ({ one, href: at([iteration, one]) })) },
          {
            name: "attempt",
            chosen: attempt,
            all: attempts.map(({ attempt: one }) => ({ one, href: at([iteration, execution, one]) })),
          },
          {
            name: "item",
            chosen: visit.item,
            all: [null, ...(items ?? []).map(({ item: one }) => one)].map((one) => ({
              one,
              href: formatFragment(
                withQuery(place, { node, item: one === null ? undefined : String(one), visit: `${iteration}.${execution}` }),
              ),
            })),
          },
        ].filter(({ all, chosen, name }) => all.length > 1 || (name === "item" && chosen !== null)),
      );
    },
  };
}

/** @param {{ name: string }} first */
function createVisitChip({ name }) {
  /** @type {any} */
  let chip;
  const menu = createMenu({
    look: "chip-button",
    fill(panel, close) {
      panel.append(
        element(
          "ul",
          { class: "menu-list" },
          ...chip.all.map((/** @type {any} */ { one, href }) =>
            element(
              "li",
              {},
              element(
                "a",
                { href, "aria-current": one === chip.chosen && "true", onclick: close },
                one === null ? "all items" : `${name} ${one}`,
              ),
            ),
          ),
        ),
      );
    },
  });
  return {
    element: menu.element,
    /** @param {any} next */
    update(next) {
      chip = next;
      menu.update({ label: next.chosen === null ? plural(next.all.length, name) : `${name} ${next.chosen}` });
    },
  };
}
