// The panel of a node: one visit of it, in tabs, at the same place in time as everything else. Chips choose iteration, execution,
// attempt and item.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { TABS, choiceIn, placeOfVisit, tabFor } from "../pure/run_choices.js";
import { lookOfNode, lookOfRun } from "../pure/statuses.js";
import { plural, timeOfDay } from "../pure/words.js";
import { element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createDifference, valueText } from "./difference.js";
import { createFields } from "./fields.js";
import { createMenu } from "./menu.js";
import { createSlot } from "./slot.js";
import { createStatus } from "./status.js";
import { createStream } from "./stream.js";
import { createTabs } from "./tabs.js";
import { createTree } from "./tree.js";
import { createOverview, createVisitSide } from "./visit_overview.js";

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

const READ_MS = 500;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<PanelView> & { tab: () => string, event: (event: RunEvent) => void,
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
  let [asked, readAt, tab] = ["", 0, "overview"];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

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
    clearTimeout(timer);
    timer = undefined;
    readAt = performance.now();
    const { path, query } = wanted();
    const key = asked;
    const answer = await app.api.get(path, query);
    if (key !== asked) return; // another one was chosen meanwhile
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => void read()));
    visit = answer.ok ? answer.value : null;
    draw();
  }

  function draw() {
    head.hidden = !view.node;
    content.hidden = !visit;
    if (!view.node) return;
    setText(name, view.node);
    if (!visit) return status.update({ ...lookOfNode(view.mark), word: lookOfNode(view.mark).word });
    const choice = choiceIn(view.place);
    const attempt = visit.attempts.find((one) => one.attempt === choice.attempt) ?? visit.attempts.at(-1) ?? null;
    tab = choice.tab ?? tabFor(view.place.at !== undefined, visit);
    status.update(
      visit.attempts.length
        ? lookOfRun({ ...visit, crashed: attempt?.status === "crashed" && visit.status === "running" })
        : lookOfNode(view.mark),
    );
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
    tab: () => tab,
    chunk: (chunk) => bodies.stream.chunk(chunk),
    event(event) {
      bodies.stream.event(event);
      // A visit that is shown as it was stays as it is.
      if (event.node !== view?.node || view.place.at !== undefined) return;
      timer ??= setTimeout(() => void read(), Math.max(0, readAt + READ_MS - performance.now()));
    },
    update(next) {
      view = next;
      setAttribute(host, "data-chosen", Boolean(next.place.query.node));
      const key = next.node ? JSON.stringify([wanted(), next.mark?.status]) : "";
      if (key !== asked) {
        const before = asked;
        asked = key;
        if (JSON.parse(before || "[{}]")[0].path !== JSON.parse(key || "[{}]")[0].path) visit = null;
        if (next.node) void read();
      }
      draw();
    },
  };
}

/** @returns {import("../shell/elements.js").Part<{ visit: NodeVisit, attempt: number | null, place: Place }>} */
function createChips() {
  const host = element("div", { class: "visit-chips" });
  const draw = keepChildren(host, (/** @type {any} */ chip) => chip.name, createChip);
  return {
    element: host,
    update({ visit, attempt, place }) {
      const { node, iteration, execution, visits, attempts, items } = visit;
      const at = (/** @type {[number, number, number?]} */ chosen) => formatFragment(placeOfVisit(place, node, chosen));
      const iterations = [...new Set(visits.map(([one]) => one))];
      const executions = visits.filter(([one]) => one === iteration).map(([, one]) => one);
      draw(
        [
          {
            name: "iteration",
            chosen: iteration,
            all: iterations.map((one) => ({ one, href: at([one, visits.findLast(([other]) => other === one)?.[1] ?? 1]) })),
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
            all: (items ?? []).map(({ item: one }) => ({
              one,
              href: formatFragment(withQuery(place, { node, item: String(one) })),
            })),
          },
        ].filter(({ name, all }) => all.length > 1 || (name === "item" && all.length)),
      );
    },
  };
}

/** @param {{ name: string }} first */
function createChip({ name }) {
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
              element("a", { href, "aria-current": one === chip.chosen && "true", onclick: close }, `${name} ${one}`),
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

/**
 * The tabs. Each takes the visit, and reads what else it needs when it is shown.
 * @param {import("../shell/app.js").App} app
 * @returns {Record<string, any>}
 */
function createBodies(app) {
  const [overview, stream, side] = [createOverview(), createStream(app), createVisitSide()];
  return {
    overview,
    input: createInput(app),
    output: createOutput(),
    change: createChanges(app),
    steps: createSlot("panel-pad", ({ visit }) => stepRows(visit)),
    stream: {
      ...stream,
      element: element("div", { class: "overview" }, element("div", { class: "overview-main" }, stream.element), side.element),
      /** @param {any} view */
      update(view) {
        const { node, iteration, execution, item } = view.visit;
        const streamer = { node, iteration, execution, attempt: view.attempt?.attempt ?? 1, item };
        stream.update({ run: view.place.run ?? "", streamer, isLive: view.attempt?.status === "running" });
        side.update(view);
      },
    },
    receipts: createReceipts(app),
  };
}

/** @param {NodeVisit} visit */
function stepRows(visit) {
  if (!visit.steps.length) return [element("p", { class: "hint" }, "This visit has kept no step.")];
  const rows = visit.steps.map((step) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, step.key ? `${step.name} ${step.key}` : step.name)),
      element("td", {}, `attempt ${step.attempt}`),
      element("td", { class: "hint" }, `@${step.seq} · ${timeOfDay(step.at)}`),
      element("td", {}, element("code", { class: "wrap", dir: "auto" }, valueText(step.result))),
    ),
  );
  return [
    element("table", { class: "steps" }, element("caption", { class: "unseen" }, "Steps kept"), element("tbody", {}, ...rows)),
  ];
}

/** @param {import("../shell/app.js").App} app */
function createInput(app) {
  const none = element("p", { class: "hint" }, "It has not begun, or its input was compacted.");
  let run = "";
  const fields = createFields(async (name) => {
    const answer = await app.api.get(`runs/${run}/state`, { field: [name] });
    return answer.ok ? answer.value.state[name] : answer.problem.detail;
  });
  return {
    element: element("div", { class: "panel-pad" }, none, fields.element),
    /** @param {any} view */
    update({ visit, place }) {
      run = place.run;
      none.hidden = Boolean(visit.input);
      fields.update(visit.input ?? {});
    },
  };
}

function createOutput() {
  const [none, next, changes] = [element("p", { class: "hint" }), element("p", { class: "hint" }), createDifference()];
  return {
    element: element("div", { class: "panel-pad" }, none, changes.element, next),
    /** @param {any} view */
    update({ visit }) {
      const all = Object.entries(visit.output ?? {}).flatMap(([operation, fields]) =>
        Object.entries(/** @type {any} */ (fields)).map(([field, now]) => ({ operation, path: [field], now })),
      );
      setText(none, visit.output ? (all.length ? "" : "It completed and changed nothing.") : "It has not completed.");
      changes.update(/** @type {any} */ (all));
      setText(next, visit.next?.length ? `Led to ${visit.next.join(", ")}` : "");
    },
  };
}

/** What the visit changed in the state, or how the state differs from now. @param {import("../shell/app.js").App} app */
function createChanges(app) {
  const [compare, count, changes, problem] = [
    createTabs("Compare with", "segments"),
    element("span", { class: "hint" }),
    createDifference(),
    createBanner(),
  ];
  const head = element("div", { class: "compare-with" }, element("span", {}, "Compare with"), compare.element, count);
  let asked = "";
  /** @param {string} path @param {number} from @param {number} to */
  async function read(path, from, to) {
    const key = asked;
    const answer = await app.api.get(path, { from: [String(from)], to: [String(to)] });
    if (key !== asked) return;
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => void read(path, from, to)));
    const found = answer.ok ? answer.value.changes : [];
    changes.update(found);
    setText(count, answer.ok ? (found.length ? `${plural(found.length, "field")} changed` : "nothing differs") : "");
  }
  return {
    element: element("div", { class: "panel-pad" }, head, problem.element, changes.element),
    /** @param {any} view */
    update({ visit, place, checkpoints, end }) {
      const own = checkpoints.findLast(
        (/** @type {any} */ one) =>
          (place.at === undefined || one.seq <= place.at) &&
          one.node === visit.node &&
          one.iteration === visit.iteration &&
          one.execution === visit.execution,
      );
      const seq = own?.seq ?? place.at ?? end;
      const before = checkpoints.findLast((/** @type {any} */ one) => one.seq < seq)?.seq ?? seq;
      const withNow = place.query.with?.[0] === "now";
      const at = (/** @type {string | undefined} */ other) =>
        formatFragment(withQuery(place, { node: visit.node, tab: "change", with: other }));
      compare.update([
        { key: "before", words: `the checkpoint before, @${before}`, href: at(undefined), chosen: !withNow },
        { key: "now", words: `now, @${end}`, href: at("now"), chosen: withNow },
        {
          key: "other",
          words: "any other…",
          href: formatFragment(withQuery(place, { view: "state", from: String(before) })),
          chosen: false,
        },
      ]);
      const [from, to] = withNow ? [seq, end] : [before, seq];
      const key = `${place.run} ${from} ${to}`;
      if (key === asked) return;
      asked = key;
      void read(`runs/${place.run}/diff`, from, to);
    },
  };
}

/** @param {import("../shell/app.js").App} app */
function createReceipts(app) {
  const [host, problem] = [element("div", { class: "panel-pad" }), createBanner()];
  let asked = "";
  /** @param {string} run @param {NodeVisit} visit */
  async function read(run, visit) {
    const key = asked;
    const answer = await app.api.get(`runs/${run}/receipts`, { node: [visit.node] });
    if (key !== asked) return;
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => void read(run, visit)));
    const all = Object.entries(answer.ok ? answer.value.documents : {}).filter(
      ([, one]) =>
        /** @type {any} */ (one).iteration === visit.iteration && /** @type {any} */ (one).execution === visit.execution,
    );
    const parts = all.map(([path, document]) => {
      const tree = createTree();
      tree.update(document);
      return element("section", {}, element("h3", {}, element("code", {}, path)), tree.element);
    });
    host.replaceChildren(
      problem.element,
      ...(parts.length ? parts : [element("p", { class: "hint" }, "This visit has no receipt yet.")]),
    );
  }
  return {
    element: host,
    /** @param {any} view */
    update({ visit, place, attempt }) {
      const key = JSON.stringify([place.run, visit.node, visit.iteration, visit.execution, attempt?.status]);
      if (key === asked) return;
      asked = key;
      void read(place.run, visit);
    },
  };
}
