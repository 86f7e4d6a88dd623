// The one stream of values that replace each other: the board for the top bar, and the rows of the list that is shown. A screen
// says which rows it wants; the stream is then opened again with its filters.

import { formatQuery } from "../pure/fragments.js";
import { beginConnection } from "../pure/connection.js";
import { followLive } from "./live.js";

/**
 * @typedef {import("../shapes.js").Board} Board
 * @typedef {import("../pure/connection.js").Connection} Connection
 *
 * @typedef {object} RowListener
 * @property {(row: import("../shapes.js").Row) => void} onRow
 * @property {(ids: string[]) => void} onIds  the runs of the first page, in order
 * @property {(again: boolean) => void} onOpen
 *
 * @typedef {object} Feed
 * @property {() => Board | null} board
 * @property {() => Connection} connection
 * @property {() => boolean} isLive  what is shown is fresh; also true until the first connection is there
 * @property {(filters: import("../pure/fragments.js").Query, listener: RowListener | null) => void} watch
 * @property {() => void} retry
 */

const ALONE = { limit: ["1"] };

/**
 * @param {import("./api.js").Api} api
 * @param {() => void} onChange  the board or the connection changed
 * @param {() => void} onReturn  the connection was lost, and is there again
 * @returns {Feed}
 */
export function createFeed(api, onChange, onReturn) {
  /** @type {Board | null} */
  let board = null;
  let connection = beginConnection(Date.now() / 1000);
  let path = "";
  let wasAway = false; // also where another screen has opened a stream of its own meanwhile
  /** @type {import("./live.js").Stream | null} */
  let stream = null;

  /** @param {Board} next */
  function setBoard(next) {
    board = next;
    onChange();
  }

  let reading = false;
  async function readBoard() {
    if (reading) return;
    reading = true;
    const answer = await api.get("board");
    reading = false;
    if (answer.ok) setBoard(answer.value);
  }

  /** @param {Partial<Board>} news */
  function receiveBoard(news) {
    if (board) setBoard({ ...board, ...news });
    // Which runs need attention takes longer to find out than the rest, so the stream may leave it out.
    if (news.attention === undefined) void readBoard();
  }

  void readBoard();
  return {
    board: () => board,
    connection: () => connection,
    isLive: () => !connection.failures,
    retry: () => stream?.retry(),
    watch(filters, listener) {
      const wanted = `live?${formatQuery(listener ? filters : ALONE)}`;
      if (wanted === path) return;
      path = wanted;
      stream?.stop();
      stream = followLive(api, path, {
        onOpen(again) {
          if (again || wasAway) onReturn();
          wasAway = false;
          listener?.onOpen(again);
        },
        onChange(next) {
          connection = next;
          wasAway ||= next.state === "lost" || next.state === "hidden";
          onChange();
        },
        onEvent({ event, data }) {
          const value = JSON.parse(data);
          if (event === "board") receiveBoard(value);
          else if (event === "row") listener?.onRow(value);
          else if (event === "runs") listener?.onIds(value.ids);
        },
      });
    },
  };
}
