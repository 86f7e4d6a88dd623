// The log of a run, newest first, by node and kind. New events wait behind a pill, so that no row moves under the pointer.

import { eventWords, kindWords, toneOfEvent } from "../pure/event_words.js";
import { formatFragment } from "../pure/fragments.js";
import { fullInstant, plural, timeOfDay } from "../pure/words.js";
import { button, element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createTree } from "./tree.js";

/**
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 *
 * @typedef {object} LogView
 * @property {string} run
 * @property {number | undefined} at
 * @property {string[]} nodes  of the flow
 * @property {string} node  the one that is chosen, or ""
 * @property {number} end  the last event of the log
 */

const EVENTS_PAGE = 100;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<LogView> & { event: (event: RunEvent) => void }}
 */
export function createLogView(app) {
  const [list, problem] = [element("ol", { class: "log" }), createBanner()];
  const [node, kind] = [createSelect("Node", "All nodes", reload), createSelect("Kind", "All kinds", reload)];
  const fresh = button("new-pill", reload);
  const more = button("button more", () => void read(false));
  const draw = keepChildren(
    list,
    (/** @type {RunEvent} */ event) => String(event.seq),
    () => createEventRow(app, () => view.run),
  );
  /** @type {LogView} */
  let view = { run: "", at: undefined, nodes: [], node: "", end: 0 };
  /** @type {RunEvent[]} */
  let events = [];
  /** @type {number | null} */
  let older = null;
  let [count, asked] = [0, ""];

  function reload() {
    void read(true);
  }

  /** @param {boolean} anew */
  async function read(anew) {
    const before = anew ? (view.at === undefined ? [] : [String(view.at + 1)]) : [String(older)];
    const query = {
      newest: ["true"],
      limit: [String(EVENTS_PAGE)],
      ...(before.length ? { before } : {}),
      ...(node.value() ? { node: [node.value()] } : {}),
      ...(kind.value() ? { kind: [kind.value()] } : {}),
    };
    const key = asked;
    const answer = await app.api.get(`runs/${view.run}/events`, query);
    if (key !== asked) return;
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => void read(anew)));
    if (!answer.ok) return;
    events = anew ? answer.value.events : [...events, ...answer.value.events];
    older = answer.value.older;
    if (anew) count = 0;
    show();
  }

  function showFresh() {
    fresh.hidden = count < 1;
    setText(fresh, plural(count, "new event"));
  }

  function show() {
    kind.update([...new Set(events.map((event) => event.kind))].sort().map((one) => [one, kindWords(one)]));
    draw(events);
    showFresh();
    more.hidden = older === null;
    setText(more, `Show ${EVENTS_PAGE} older`);
  }

  return {
    element: element(
      "div",
      { class: "view-pad" },
      element("div", { class: "view-tools" }, node.element, kind.element, fresh),
      problem.element,
      list,
      more,
    ),
    event(event) {
      const meets = (!node.value() || event.node === node.value()) && (!kind.value() || event.kind === kind.value());
      if (!meets || view.at !== undefined || !asked) return;
      count += 1;
      showFresh();
    },
    update(next) {
      view = next;
      node.update(next.nodes.map((one) => [one, one]));
      const key = `${next.run} ${next.at} ${next.node}`;
      if (key !== asked) {
        asked = key;
        node.set(next.node);
        return reload();
      }
      // What came while another view was shown.
      if (next.at !== undefined || node.value() || kind.value() || !events.length) return;
      count = next.end - events[0].seq;
      showFresh();
    },
  };
}

/**
 * @param {string} label
 * @param {string} all
 * @param {() => void} changed
 */
function createSelect(label, all, changed) {
  const host = element(
    "select",
    { class: "field", "aria-label": label, onchange: changed },
    element("option", { value: "" }, all),
  );
  return {
    element: host,
    value: () => host.value,
    /** @param {string} value */
    set(value) {
      host.value = value;
    },
    /** Choices are added, and never taken away from a reader. @param {string[][]} choices */
    update(choices) {
      const known = new Set([...host.options].map((option) => option.value));
      for (const [value, words] of choices) if (!known.has(value)) host.append(element("option", { value }, words));
    },
  };
}

/**
 * @param {import("../shell/app.js").App} app
 * @param {() => string} run
 * @returns {import("../shell/elements.js").Part<RunEvent>}
 */
function createEventRow(app, run) {
  const [seq, time, kind] = [element("a", { class: "log-seq" }), element("time", {}), element("span", {})];
  const [node, words] = [element("code", {}), element("span", { class: "cut hint", dir: "auto" })];
  const tree = createTree();
  const more = element("details", {}, element("summary", {}, time, kind, node, words), tree.element);
  return {
    element: element("li", {}, seq, more),
    update(event) {
      setText(seq, `@${event.seq}`);
      setAttribute(seq, "href", formatFragment({ screen: "run", run: run(), at: event.seq, query: {} }));
      setText(time, timeOfDay(event.at));
      setAttribute(time, "title", fullInstant(event.at));
      setText(kind, kindWords(event.kind));
      setAttribute(kind, "data-tone", toneOfEvent(event));
      setText(node, event.node ?? "");
      setText(words, eventWords(event, app.clock.now()));
      more.ontoggle = () => more.open && tree.update(event.body ?? {});
    },
  };
}
