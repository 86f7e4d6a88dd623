// The tabs of the panel of a node: what a visit was given, what it returned and changed, its steps, its stream and its receipts.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { plural, timeOfDay } from "../pure/words.js";
import { element, setText } from "../shell/elements.js";
import { createReader } from "../shell/reader.js";
import { createBanner, problemBanner } from "./banner.js";
import { createDifference, valueText } from "./difference.js";
import { createFields } from "./fields.js";
import { createSlot } from "./slot.js";
import { createStream } from "./stream.js";
import { createTabs } from "./tabs.js";
import { createTree } from "./tree.js";
import { createVisitOverview, createVisitSide } from "./visit_overview.js";

/** @typedef {import("../shapes.js").NodeVisit} NodeVisit */

const VISIT_READ_MS = 1000;

/**
 * The tabs. Each takes the visit, and reads what else it needs when it is shown.
 * @param {import("../shell/app.js").App} app
 * @returns {Record<string, any>}
 */
export function createBodies(app) {
  const [overview, stream, side] = [createVisitOverview(app), createStream(app), createVisitSide()];
  return {
    overview,
    input: createInputTab(app),
    output: createOutput(),
    change: createChanges(app),
    steps: createSlot("panel-pad", ({ visit }) => stepRows(visit)),
    stream: {
      ...stream,
      element: element("div", { class: "visit" }, element("div", { class: "visit-main" }, stream.element), side.element),
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
function createInputTab(app) {
  const none = element("p", { class: "hint" }, "It has not begun, or its input was compacted.");
  let [run, seq] = ["", 0];
  const fields = createFields(async (name) => {
    // The visit was given the state as its last cause left it.
    const answer = await app.api.get(`runs/${run}/state`, { field: [name], at: [String(seq)] });
    return answer.ok ? answer.value.state[name] : answer.problem.detail;
  });
  return {
    element: element("div", { class: "panel-pad" }, none, fields.element),
    /** @param {any} view */
    update({ visit, place }) {
      [run, seq] = [place.run, Math.max(1, ...visit.causes.map((/** @type {{ seq: number }} */ one) => one.seq))];
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
  const [compare, count] = [createTabs("Compare with", "segments"), element("span", { class: "hint" })];
  const [changes, problem] = [createDifference(), createBanner()];
  const head = element("div", { class: "compare-with" }, element("span", {}, "Compare with"), compare.element, count);
  let [run, from, to] = ["", 0, 0];
  const reader = createReader(() => VISIT_READ_MS, read);
  async function read() {
    const wanted = `${run} ${from}`;
    const answer = await app.api.get(`runs/${run}/diff`, { from: [String(from)], to: [String(to)] });
    if (wanted !== `${run} ${from}`) return;
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => reader.ask(true)));
    const found = answer.ok ? answer.value.changes : [];
    changes.update(found);
    setText(count, answer.ok ? (found.length ? `${plural(found.length, "field")} changed` : "nothing differs") : "");
  }
  return {
    element: element("div", { class: "panel-pad" }, head, problem.element, changes.element),
    /** @param {any} view */
    update({ visit, place, checkpoints, end }) {
      const last = place.at ?? end;
      const isOwn = (/** @type {any} */ one) =>
        one.node === visit.node && one.iteration === visit.iteration && one.execution === visit.execution;
      const seq = checkpoints.findLast((/** @type {any} */ one) => one.seq <= last && isOwn(one))?.seq ?? last;
      const before = checkpoints.findLast((/** @type {any} */ one) => one.seq < seq)?.seq ?? seq;
      const withNow = place.query.with?.[0] === "now";
      const base = withQuery(place, { node: visit.node, tab: "change", with: undefined });
      compare.update([
        { key: "before", words: `the checkpoint before, @${before}`, href: formatFragment(base), chosen: !withNow },
        { key: "now", words: `now, @${end}`, href: formatFragment(withQuery(base, { with: "now" })), chosen: withNow },
        {
          key: "other",
          words: "any other…",
          href: formatFragment(withQuery(base, { view: "state", from: String(before) })),
          chosen: false,
        },
      ]);
      const wanted = withNow ? [seq, end] : [before, seq];
      if (run === place.run && from === wanted[0] && to === wanted[1]) return;
      const isOther = run !== place.run || from !== wanted[0];
      [run, from, to] = [place.run, wanted[0], wanted[1]];
      reader.ask(isOther);
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
