// The family of a run in rows: the runs that called it, the run itself, and its child runs with theirs. A row leads to its run.

import { lookOfRun } from "./statuses.js";

/**
 * @typedef {import("../shapes.js").FamilyMember} FamilyMember
 * @typedef {import("../parts/visit_overview.js").VisitRow} VisitRow
 */

/**
 * A run of a family. Its reason is told if somebody has to do something: a run that waits for its children is explained by them.
 * @param {Partial<Omit<FamilyMember, "status">> & { id: string, status: string | null }} run  without a status, it was deleted
 * @param {number} [level]  how far it is indented
 * @returns {VisitRow}
 */
export function familyRow({ id, status, pausing, asks, remedy, node, flow, needs_attention, reason }, level = 0) {
  const look = lookOfRun({ status: status ?? "deleted", pausing, asks, remedy });
  return {
    key: id,
    look,
    word: look.word,
    text: "\u2003".repeat(level) + id, // a space that is not folded
    note: [flow, node && `called by ${node}`, needs_attention && reason].filter(Boolean).join(" · "),
    place: { screen: "run", run: id, query: {} },
    now: 0,
  };
}

/**
 * The whole tree. A run with other children than those that are listed is followed by a link to all of them.
 * @param {import("../shapes.js").Family} family
 * @returns {VisitRow[]}
 */
export const familyRows = ({ callers, members }) =>
  [...callers.toReversed(), ...members].flatMap((one) => {
    const level = callers.length + one.depth;
    const row = { ...familyRow(one, level), chosen: !one.depth };
    /** @type {import("./fragments.js").Place} */
    const place = { screen: "runs", query: { origin: [one.id] } };
    return one.more
      ? [row, { ...familyRow({ id: "all its child runs", status: "more" }, level + 1), key: one.id + level, place }]
      : row;
  });
