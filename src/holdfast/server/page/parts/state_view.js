// The state of a run at the place that is shown, as a tree, or how it differs from the state at any other place.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { plural } from "../pure/words.js";
import { element, setText } from "../shell/elements.js";
import { createReader } from "../shell/reader.js";
import { createBanner, problemBanner } from "./banner.js";
import { createDifference } from "./difference.js";
import { createFields } from "./fields.js";
import { createTabs } from "./tabs.js";

/**
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {{ place: Place, end: number, go: (place: Place) => void }} StateView
 */

const READ_MS = 1000;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<StateView>}
 */
export function createStateView(app) {
  const [modes, problem, count] = [
    createTabs("How the state is shown", "segments"),
    createBanner(),
    element("span", { class: "hint" }),
  ];
  const [fields, changes] = [createFields(async () => null), createDifference()];
  const [from, to] = [createSeqField("From event", move), createSeqField("To event", move)];
  const places = element("div", { class: "seq-fields" }, "from @", from, "to @", to);
  /** @type {StateView} */
  let view;
  let [asked, shown] = ["", ""];
  const reader = createReader(() => READ_MS, read);

  /** Another place to compare: in the fragment, like every choice. */
  function move() {
    const at = Number(to.value) >= view.end ? undefined : Number(to.value);
    const { at: _, ...rest } = withQuery(view.place, { from: from.value });
    view.go(at === undefined ? rest : { ...rest, at });
  }

  async function read() {
    const where = shown;
    const [since, at] = [view.place.query.from?.[0], view.place.at];
    const base = `runs/${view.place.run}`;
    const answer = since
      ? await app.api.get(`${base}/diff`, { from: [since], ...(at === undefined ? {} : { to: [String(at)] }) })
      : await app.api.get(`${base}/state`, at === undefined ? {} : { at: [String(at)] });
    if (where !== shown) return;
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => reader.ask(true)));
    if (!answer.ok) return;
    [fields.element.hidden, changes.element.hidden] = [Boolean(since), !since];
    if (since) changes.update(answer.value.changes);
    else fields.update(Object.fromEntries(Object.entries(answer.value.state).map(([name, value]) => [name, { value }])));
    const size = since ? answer.value.changes.length : Object.keys(answer.value.state).length;
    setText(count, since ? (size ? `${plural(size, "field")} changed` : "nothing differs") : plural(size, "field"));
  }

  return {
    element: element(
      "div",
      { class: "view-pad" },
      element("div", { class: "view-tools" }, modes.element, places, count),
      problem.element,
      fields.element,
      changes.element,
    ),
    update(next) {
      view = next;
      const { place, end } = next;
      const since = place.query.from?.[0];
      const at = place.at ?? end;
      modes.update([
        { key: "tree", words: "Tree", href: formatFragment(withQuery(place, { from: undefined })), chosen: !since },
        {
          key: "difference",
          words: "Difference",
          href: formatFragment(withQuery(place, { from: since ?? "1" })),
          chosen: Boolean(since),
        },
      ]);
      places.hidden = !since;
      if (document.activeElement !== from) from.value = since ?? "1";
      if (document.activeElement !== to) to.value = String(at);
      const [key, where] = [JSON.stringify([place.run, at, since]), JSON.stringify([place.run, place.at, since])];
      if (key === asked) return;
      reader.ask(where !== shown);
      [asked, shown] = [key, where];
    },
  };
}

/** @param {string} label @param {() => void} changed */
const createSeqField = (label, changed) =>
  element("input", { class: "field", type: "number", min: "1", "aria-label": label, onchange: changed });
