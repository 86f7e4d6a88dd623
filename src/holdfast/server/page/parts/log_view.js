// The log of a run, newest first, by node and kind. New events wait behind a pill, so that no row moves under the pointer.

import { eventWords, kindWords, toneOfEvent } from "../pure/event_words.js";
import { whenChanged } from "../pure/depending.js";
import { formatFragment } from "../pure/fragments.js";
import { fullInstant, plural, timeOfDay } from "../pure/words.js";
import { button, element, glyph, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { createFetched } from "./fetched.js";
import { createTree } from "./tree.js";

/**
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 *
 * @typedef {object} LogView
 * @property {import("../pure/fragments.js").Place} place
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
  const list = element("ol", { class: "log" });
  const [node, kind] = [createSelect("Node", "All nodes", reload), createSelect("Kind", "All kinds", reload)];
  const fresh = button("new-pill", reload);
  const more = button("button more", () => read(older), `Show ${EVENTS_PAGE} older`);
  const draw = keepChildren(
    list,
    (/** @type {RunEvent} */ event) => String(event.seq),
    () => createEventRow(app, () => view.place.run),
  );
  /** @type {LogView} */
  let view;
  /** @type {RunEvent[]} */
  let events = [];
  /** The seq before which events are read, and were read; null: from the end. */
  let [before, older] = /** @type {(number | null)[]} */ ([null, null]);
  let count = 0;
  kind.update([]);
  const fetched = createFetched(app, (page) => {
    if (!page) return;
    events = before === null ? page.events : [...events, ...page.events];
    older = page.older;
    kind.update(page.kinds.map((/** @type {string} */ one) => [one, kindWords(one)]));
    draw(events);
    more.hidden = older === null;
    if (before === null) showFresh(0);
  });

  function reload() {
    read(null);
    fetched.ask(true);
  }

  /** @param {number | null} next */
  function read(next) {
    before = next;
    const chosen = { node: node.element.value || null, kind: kind.element.value || null };
    const asked = { newest: true, limit: EVENTS_PAGE, before: before ?? (view.place.at && view.place.at + 1), ...chosen };
    fetched.want({ path: `runs/${view.place.run}/events`, asked });
  }

  const choose = whenChanged((/** @type {{ run: string | undefined, at: number | undefined, node: string }} */ chosen) => {
    node.element.value = chosen.node;
    read(null);
  });

  /** @param {number} next */
  function showFresh(next) {
    count = next;
    fresh.hidden = count < 1;
    setText(fresh, plural(count, "new event"));
  }

  return {
    element: element(
      "div",
      { class: "view-pad" },
      element("div", { class: "view-tools" }, node.element, kind.element, fresh),
      fetched.problem,
      list,
      more,
    ),
    event(event) {
      const { value } = node.element;
      const meets = (!value || event.node === value) && (!kind.element.value || event.kind === kind.element.value);
      if (view && meets && view.place.at === undefined) showFresh(count + 1);
    },
    update(next) {
      view = next;
      node.update(next.nodes.map((one) => [one, one]));
      const { run, at } = next.place;
      if (choose({ run, at, node: next.node })) return;
      const isWhole = at === undefined && !node.element.value && !kind.element.value;
      if (isWhole && events.length) showFresh(next.end - events[0].seq); // also what came while another view was shown
    },
  };
}

/**
 * @param {string} label
 * @param {string} all
 * @param {() => void} changed
 */
export function createSelect(label, all, changed) {
  const host = element("select", { class: "field", "aria-label": label, onchange: changed });
  let shown = "-";
  return {
    element: host,
    /** @param {string[][]} choices */
    update(choices) {
      if (choices.join() === shown) return;
      shown = choices.join();
      const { value } = host;
      host.replaceChildren(...[["", all], ...choices].map(([one, words]) => element("option", { value: one }, words)));
      host.value = value;
    },
  };
}

/**
 * @param {import("../shell/app.js").App} app
 * @param {() => string | undefined} run
 * @returns {import("../shell/elements.js").Part<RunEvent>}
 */
function createEventRow(app, run) {
  const [seq, time, kind] = [element("a", { class: "log-seq" }), element("time", {}), element("span", {})];
  const [node, words] = [element("code", {}), element("span", { class: "cut hint", dir: "auto" })];
  const tree = createTree();
  const more = element("details", {}, element("summary", {}, glyph("right"), time, kind, node, words), tree.element);
  return {
    element: element("li", {}, seq, more),
    update(event) {
      setText(seq, `@${event.seq}`);
      setAttribute(
        seq,
        "href",
        formatFragment({ screen: "run", run: run(), at: event.seq, query: event.node ? { node: [event.node] } : {} }),
      );
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
