// The family of a run in rows: the runs that called it, the run itself, and its child runs with theirs. Each row leads to its run.

import { lookOfRun } from "./statuses.js";

/**
 * @typedef {import("../shapes.js").FamilyMember} FamilyMember
 * @typedef {import("../parts/visit_overview.js").VisitRow} VisitRow
 */

/**
 * A run of a family.
 * @param {Partial<Omit<FamilyMember, "status">> & { id: string, status: string | null }} run  without a status, it was deleted
 * @param {number} [level]  how far it is indented
 * @returns {VisitRow}
 */
export function familyRow({ id, status, asks, remedy, node, flow, reason }, level = 0) {
  const look = lookOfRun({ status: status ?? "deleted", asks, remedy });
  return {
    key: id,
    look,
    word: look.word,
    text: "\u2003".repeat(level) + id, // a space that is not folded
    note: [flow, node && `called by ${node}`, reason].filter(Boolean).join(" · "),
    place: { screen: "run", run: id, query: {} },
    now: 0,
  };
}

/**
 * The whole tree. A run with other children than those that are listed is followed by a link to all of them.
 * @param {import("../shapes.js").Family} family
 * @returns {VisitRow[]}
 */
export function familyRows({ callers, members }) {
  return [
    ...callers.toReversed().map((id, level) => familyRow({ id, status: "caller" }, level)),
    ...members.flatMap((one) => {
      const level = callers.length + one.depth;
      const row = { ...familyRow(one, level), chosen: !one.depth };
      /** @type {import("./fragments.js").Place} */
      const place = { screen: "runs", query: { origin: [one.id] } };
      return one.more
        ? [row, { ...familyRow({ id: "all its child runs", status: "more" }, level + 1), key: `${one.id}/`, place }]
        : row;
    }),
  ];
}
