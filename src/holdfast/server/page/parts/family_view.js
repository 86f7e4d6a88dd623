// The family of a run, as a tree: its callers above it, its child runs below it.

import { familyRows } from "../pure/families.js";
import { element } from "../shell/elements.js";
import { createFetched } from "./fetched.js";
import { createVisitRows } from "./visit_overview.js";

/** Child runs move without an event of their caller: they are asked for so often, in seconds. */
const FAMILY_S = 5;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<{ place: import("../pure/fragments.js").Place, end: number }>}
 */
export function createFamilyView(app) {
  const rows = createVisitRows("family");
  const fetched = createFetched(app, (family) => rows.update(family ? familyRows(family) : []));
  return {
    element: element("div", { class: "view-pad" }, fetched.problem, rows.element),
    update({ place, end }) {
      const follows = { end, turn: Math.floor(app.clock.now() / FAMILY_S) };
      fetched.want({ path: `runs/${place.run}/family`, asked: {}, follows });
    },
  };
}
