// The rows of the Runs screen, as a value that each page and each live row changes into the next. Nothing moves under the
// pointer: a row that is shown changes where it is, and a run that is new waits among `fresh` until the reader asks for it.

/**
 * @typedef {import("../shapes.js").Row} Row
 *
 * @typedef {object} RunList
 * @property {Row[]} rows  as shown, newest first
 * @property {Row[]} fresh  new runs behind the pill, newest first
 * @property {string | null} next  the cursor of the next page
 */

/**
 * The list for a first page.
 * @param {import("../shapes.js").RunPage} page
 * @returns {RunList}
 */
export const beginList = (page) => ({ rows: page.runs, fresh: [], next: page.next });

/**
 * The list with a further page at its end. A row that the list has already is not added twice.
 * @param {RunList} list
 * @param {import("../shapes.js").RunPage} page
 * @returns {RunList}
 */
export function extendList(list, page) {
  const known = new Set(list.rows.map((row) => row.id));
  return { ...list, rows: [...list.rows, ...page.runs.filter((row) => !known.has(row.id))], next: page.next };
}

/**
 * The list after a run changed or began. A shown row stays where it is, also if it no longer meets the filters: it leaves when
 * the list is read again. A run that is older than the first row and not shown is on a later page, so it is left alone.
 * @param {RunList} list
 * @param {Row} row
 * @param {(row: Row) => boolean} matches  whether the row meets the filters
 * @returns {RunList}
 */
export function receiveRow(list, row, matches) {
  const shown = list.rows.findIndex((one) => one.id === row.id);
  if (shown >= 0) return isNews(list.rows[shown], row) ? { ...list, rows: list.rows.with(shown, row) } : list;
  const waiting = list.fresh.findIndex((one) => one.id === row.id);
  if (waiting >= 0) {
    const fresh = matches(row) ? list.fresh.with(waiting, row) : list.fresh.toSpliced(waiting, 1);
    return { ...list, fresh };
  }
  const first = list.rows[0];
  if (!matches(row) || (first && !isNewer(row, first))) return list;
  return { ...list, fresh: [row, ...list.fresh].sort((a, b) => (isNewer(a, b) ? -1 : 1)) };
}

/**
 * The list with its new runs shown.
 * @param {RunList} list
 * @returns {RunList}
 */
export const releaseFresh = (list) => ({ ...list, rows: [...list.fresh, ...list.rows], fresh: [] });

/** The row of a run that the store has no more: it stays where it is, and says so. @param {Row} row @returns {any} */
export const deletedRow = (row) => ({
  ...row,
  ...{ status: "deleted", reason: "Deleted from the store", remedy: null },
  ...{ crashed: false, pausing: false, needs_attention: false },
});

/**
 * @param {Row} before
 * @param {Row} after
 */
function isNews(before, after) {
  // A crash is not an event, so rows of the same seq may differ. An older row comes late if two answers overtook each other.
  return after.seq > before.seq || (after.seq === before.seq && JSON.stringify(after) !== JSON.stringify(before));
}

/**
 * @param {Row} a
 * @param {Row} b
 */
const isNewer = (a, b) => a.created_at > b.created_at || (a.created_at === b.created_at && a.id > b.id);
