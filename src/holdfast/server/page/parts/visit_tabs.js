// The tabs of the panel of a node: what a visit was given, what it returned and changed, its steps, its stream and its receipts.

import { withQuery } from "../pure/fragments.js";
import { element, setText } from "../shell/elements.js";
import { createDifference } from "./difference.js";
import { createFetched } from "./fetched.js";
import { createFields } from "./fields.js";
import { createSlot } from "./slot.js";
import { changedWords } from "./state_view.js";
import { createStream } from "./stream.js";
import { createTabs, tabTo } from "./tabs.js";
import { createTree } from "./tree.js";
import { createLeft, createStep, createVisitOverview, createVisitSide } from "./visit_overview.js";

/** @typedef {import("../shapes.js").NodeVisit} NodeVisit */

/**
 * The tabs. Each takes the visit, and reads what else it needs when it is shown.
 * @param {import("../shell/app.js").App} app
 * @returns {Record<string, any>}
 */
export function createBodies(app) {
  const [stream, left, side] = [createStream(app), createLeft(), createVisitSide()];
  const main = element("div", { class: "visit-main" }, stream.element, left.element);
  return {
    overview: createVisitOverview(app),
    input: createInputTab(app),
    output: createOutput(),
    change: createChanges(app),
    steps: createStepsTab(),
    stream: {
      ...stream,
      element: element("div", { class: "visit" }, main, side.element),
      /** @param {any} view */
      update(view) {
        const { node, iteration, execution, item } = view.visit;
        const streamer = { node, iteration, execution, attempt: view.attempt?.attempt ?? 1, item };
        stream.update({ run: view.place.run ?? "", streamer, isLive: view.attempt?.status === "running" });
        left.update(view.visit);
        side.update(view);
      },
    },
    receipts: createReceipts(app),
  };
}

function createStepsTab() {
  const slot = createSlot("panel-pad", (/** @type {NodeVisit["steps"]} */ steps) =>
    steps.length ? steps.map((one) => createStep(one, true)) : [element("p", { class: "hint" }, "This visit has kept no step.")],
  );
  return { element: slot.element, update: (/** @type {any} */ { visit }) => slot.update(visit.steps) };
}

/** @param {import("../shell/app.js").App} app */
function createInputTab(app) {
  const none = element("p", { class: "hint" }, "It has not begun, or its input was compacted.");
  const fields = createFields(app);
  return {
    element: element("div", { class: "panel-pad" }, none, fields.element),
    /** @param {any} view */
    update({ visit, place }) {
      none.hidden = Boolean(visit.input);
      // The visit was given the state as its last cause left it. The value of an item is no field of the state.
      const at = visit.item === null ? Math.max(1, ...visit.causes.map((/** @type {{ seq: number }} */ one) => one.seq)) : null;
      fields.update({ run: place.run, at, values: visit.input ?? {} });
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
  const [compare, count] = [createTabs("Compare with", "segments"), element("span", { class: "hint" })];
  const changes = createDifference();
  const fetched = createFetched(app, (value) => {
    changes.update(value?.changes ?? []);
    setText(count, value ? changedWords(value.changes) : "");
  });
  const head = element("div", { class: "compare-with" }, "Compare with", compare.element, count);
  return {
    element: element("div", { class: "panel-pad" }, head, fetched.problem, changes.element),
    /** @param {any} view */
    update({ visit, place, checkpoints, end }) {
      const last = place.at ?? end;
      const isOwn = (/** @type {any} */ one) =>
        one.node === visit.node && one.iteration === visit.iteration && one.execution === visit.execution;
      const seq = checkpoints.findLast((/** @type {any} */ one) => one.seq <= last && isOwn(one))?.seq ?? last;
      const before = checkpoints.findLast((/** @type {any} */ one) => one.seq < seq)?.seq;
      const withNow = !before || place.query.with?.[0] === "now"; // there is none before the first
      const base = withQuery(place, { node: visit.node, tab: "change", with: undefined });
      compare.update([
        ...(before ? [tabTo(base, `the checkpoint before, @${before}`, {}, !withNow)] : []),
        tabTo(base, `now, @${end}`, { with: "now" }, withNow),
        tabTo(base, "any other…", { view: "state", from: String(before ?? seq) }, false),
      ]);
      const [asked, follows] = withNow ? [{ from: seq }, end] : [{ from: before, to: seq }];
      fetched.want({ path: `runs/${place.run}/diff`, asked, follows });
    },
  };
}

/** @param {import("../shell/app.js").App} app */
function createReceipts(app) {
  const list = element("div", {});
  /** @type {NodeVisit} */
  let visit;
  const fetched = createFetched(app, (value) => {
    const parts = Object.entries(value?.documents ?? {}).flatMap(([path, document]) => {
      const { iteration, execution } = /** @type {any} */ (document);
      if (iteration !== visit.iteration || execution !== visit.execution) return [];
      const tree = createTree();
      tree.update(document);
      return element("section", {}, element("h3", {}, element("code", {}, path)), tree.element);
    });
    list.replaceChildren(...(parts.length ? parts : [element("p", { class: "hint" }, "This visit has no receipt yet.")]));
  });
  return {
    element: element("div", { class: "panel-pad" }, fetched.problem, list),
    /** @param {any} view */
    update(view) {
      visit = view.visit;
      fetched.want({ path: `runs/${view.place.run}/receipts`, asked: { node: visit.node }, follows: visit });
    },
  };
}
