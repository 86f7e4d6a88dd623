// Which rows of a long list are drawn. Rows have one height, so the place of each follows from its number.

/**
 * @typedef {{ from: number, to: number, above: number, below: number }} Window  the rows [from, to), and the space of the others
 */

/**
 * @param {{ count: number, rowHeight: number, scrolled: number, height: number, spare?: number }} view  `scrolled`: how far the
 *   top of the list is above the top of the view; `spare`: rows that are drawn beyond both ends, for fast scrolling
 * @returns {Window}
 */
export function visibleRows({ count, rowHeight, scrolled, height, spare = 20 }) {
  const first = Math.floor(Math.max(0, scrolled) / rowHeight) - spare;
  const last = Math.ceil((Math.max(0, scrolled) + height) / rowHeight) + spare;
  const from = Math.min(Math.max(0, first), Math.max(0, count - 1));
  const to = Math.min(count, Math.max(from, last));
  return { from, to, above: from * rowHeight, below: (count - to) * rowHeight };
}
