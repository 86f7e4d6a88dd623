// What the verification of a ledger says.

/** @param {import("../shapes.js").Ledger} ledger  the events that were altered */
export const damagedSeqs = ({ damage }) => new Set(damage.map((one) => one.seq));

/** @param {boolean} verified @param {string[]} problems */
export const verifiedWords = (verified, problems) =>
  verified ? "Verified: the log is exactly what was written" : `Not what was written: ${problems.join("; ")}`;
