// Server-sent events, read from the pieces in which a response arrives. `fetch` is used because `EventSource` cannot send the
// header with the token.

/**
 * @typedef {{ event: string, data: string, id: string | null }} ServerEvent  `id` is null for one that has none
 */

/**
 * Returns a function that takes the next piece of text and returns the events that are complete with it. A comment (a heartbeat
 * is one) gives no event; the caller sees that a piece came.
 * @returns {(piece: string) => ServerEvent[]}
 */
export function createEventReader() {
  let rest = "";
  /** @type {string[]} */
  let data = [];
  let event = "";
  /** @type {string | null} */
  let id = null;

  /** @param {string} line @returns {ServerEvent | null} */
  function takeLine(line) {
    if (line === "") {
      const made = data.length ? { event: event || "message", data: data.join("\n"), id } : null;
      [data, event, id] = [[], "", null];
      return made;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "event") event = value;
    else if (name === "id" && !value.includes("\0")) id = value;
    return null;
  }

  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    return lines.map(takeLine).filter((made) => made !== null);
  };
}
