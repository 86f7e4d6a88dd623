// A stream of live events that stays: it is opened again after a loss, with `Last-Event-ID`, so that no event is missing or
// comes twice; it is closed while the tab is hidden, because a browser has six connections to a server. For the same reason only
// some streams of all the windows that are seen stay open; the others are opened in turns, and caught up each time.

import { SILENCE_S, beginConnection, connect } from "../pure/connection.js";
import { createEventReader } from "../pure/sse.js";

/**
 * @typedef {object} Listener
 * @property {(event: import("../pure/sse.js").ServerEvent) => void} onEvent
 * @property {(again: boolean) => void} [onOpen]  the stream is open; `again`: it was before, so values may have been missed
 * @property {(connection: import("../pure/connection.js").Connection) => void} [onChange]
 *
 * @typedef {{ stop: () => void, retry: () => void }} Stream
 */

/** How many streams stay open. The other connections are for requests. */
const SEATS = 4;
const TURN_MS = 1000;
const TURN = "turn";
const BETWEEN_TURNS_MS = 4000;

/**
 * Follow a path until `stop` is called.
 * @param {import("./api.js").Api} api
 * @param {string} path  such as "live?run=ID"
 * @param {Listener} listener
 * @param {string | null} [after]  the id of the last event that is known
 * @returns {Stream}
 */
export function followLive(api, path, listener, after = null) {
  const now = () => Date.now() / 1000;
  let connection = beginConnection(now());
  let lastId = after;
  let opened = 0;
  let stopped = false;
  let attempt = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {import("../pure/connection.js").Happening} what */
  function happen(what) {
    if (stopped) return;
    const before = connection;
    connection = connect(connection, what);
    if (before.state !== connection.state || before.retryAt !== connection.retryAt) listener.onChange?.(connection);
  }

  async function open() {
    clearTimeout(timer);
    attempt.abort();
    if (stopped || document.hidden) return;
    const own = (attempt = new AbortController());
    let wait = 0;
    const hasSeat = await takeSeat(own.signal);
    try {
      wait = await readAll(own, hasSeat);
    } catch {
      // aborted by us, or cut by the network
    }
    const isTurnOver = own.signal.reason === TURN;
    own.abort(); // leaves the seat
    if (stopped || attempt !== own || connection.state === "hidden") return; // another attempt has taken over, or will
    if (isTurnOver) return void (timer = setTimeout(open, BETWEEN_TURNS_MS));
    happen({ kind: "failed", at: now(), wait });
    timer = setTimeout(retry, Math.max(0, connection.retryAt - now()) * 1000);
  }

  /** @param {AbortController} own @param {boolean} hasSeat @returns {Promise<number>} seconds that the server asked to wait */
  async function readAll(own, hasSeat) {
    const response = await api.stream(path, lastId === null ? {} : { "Last-Event-ID": lastId }, own.signal);
    if (!(response instanceof Response)) return response.retryAfter;
    if (!response.headers.get("Content-Type")?.includes("event-stream")) return 0; // a page of a proxy
    happen({ kind: "opened", at: now() });
    listener.onOpen?.(opened > 0);
    opened += 1;
    if (!hasSeat) setTimeout(() => own.abort(TURN), TURN_MS);
    const read = createEventReader();
    const decoder = new TextDecoder();
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    let silence = setTimeout(() => own.abort(), SILENCE_S * 1000);
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return 0;
        clearTimeout(silence);
        silence = setTimeout(() => own.abort(), SILENCE_S * 1000);
        happen({ kind: "heard", at: now() });
        for (const event of read(decoder.decode(value, { stream: true }))) {
          if (event.id !== null) lastId = event.id;
          listener.onEvent(event);
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  function retry() {
    happen({ kind: "retry", at: now() });
    void open();
  }

  function onVisibility() {
    clearTimeout(timer);
    if (document.hidden) {
      happen({ kind: "hidden", at: now() });
      attempt.abort();
    } else {
      happen({ kind: "shown", at: now() });
      void open();
    }
  }

  document.addEventListener("visibilitychange", onVisibility);
  void open();
  return {
    retry,
    stop() {
      stopped = true;
      clearTimeout(timer);
      attempt.abort();
      document.removeEventListener("visibilitychange", onVisibility);
    },
  };
}

/**
 * Take one of the seats, which all tabs of the browser share, until the signal comes. Without HTTPS, browsers have no locks.
 * @param {AbortSignal} signal
 * @returns {Promise<boolean>}
 */
async function takeSeat(signal) {
  let isTaken = !navigator.locks;
  for (let seat = 0; !isTaken && seat < SEATS; seat += 1)
    isTaken = await new Promise((resolve) => {
      void navigator.locks.request(`holdfast live ${seat}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock && !signal.aborted && new Promise((leave) => signal.addEventListener("abort", leave));
      });
    });
  return isTaken;
}
