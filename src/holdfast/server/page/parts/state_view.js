// The state of a run at the place that is shown, as a tree, or how it differs from the state at any other place.

import { withQuery } from "../pure/fragments.js";
import { plural } from "../pure/words.js";
import { element, setText } from "../shell/elements.js";
import { createDifference } from "./difference.js";
import { createFetched } from "./fetched.js";
import { createFields } from "./fields.js";
import { createTabs, tabTo } from "./tabs.js";

/**
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {{ place: Place, end: number, go: (place: Place) => void }} StateView
 */

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<StateView>}
 */
export function createStateView(app) {
  const [modes, count] = [createTabs("How the state is shown", "segments"), element("span", { class: "hint" })];
  const [fields, changes] = [createFields(app), createDifference()];
  const [from, to] = [createSeqField("From event", move), createSeqField("To event", move)];
  const places = element("div", { class: "seq-fields" }, "from @", from, "to @", to);
  /** @type {StateView} */
  let view;
  const fetched = createFetched(app, (value) => {
    fields.element.hidden = !value?.state;
    changes.element.hidden = !value?.changes;
    setText(count, value?.state ? plural(Object.keys(value.state).length, "field") : value ? changedWords(value.changes) : "");
    if (value?.state) fields.update({ run: view.place.run, at: value.seq, values: value.state });
    if (value?.changes) changes.update(value.changes);
  });

  /** Another place to compare: in the fragment, like every choice. */
  function move() {
    const { at: _, ...rest } = withQuery(view.place, { from: from.value });
    view.go(Number(to.value) >= view.end ? rest : { ...rest, at: Number(to.value) });
  }

  return {
    element: element(
      "div",
      { class: "view-pad" },
      element("div", { class: "view-tools" }, modes.element, places, count),
      fetched.problem,
      fields.element,
      changes.element,
    ),
    update(next) {
      view = next;
      const { place, end } = next;
      const since = place.query.from?.[0];
      modes.update([
        tabTo(place, "Tree", { from: undefined }, !since),
        tabTo(place, "Difference", { from: since ?? "1" }, Boolean(since)),
      ]);
      places.hidden = !since;
      if (document.activeElement !== from) from.value = since ?? "1";
      if (document.activeElement !== to) to.value = String(place.at ?? end);
      const asked = since ? { from: since, to: place.at } : { brief: true, at: place.at };
      fetched.want({ path: `runs/${place.run}/${since ? "diff" : "state"}`, asked, follows: end });
    },
  };
}

/** @param {unknown[]} changes */
export const changedWords = (changes) => (changes.length ? `${plural(changes.length, "field")} changed` : "nothing differs");

/** @param {string} label @param {() => void} changed */
const createSeqField = (label, changed) =>
  element("input", { class: "field", type: "number", min: "1", "aria-label": label, onchange: changed });
