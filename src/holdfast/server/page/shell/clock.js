// The present, as the server has it: a browser whose clock is an hour off still shows how long ago something was. One timer tells
// everyone who shows a time that a second has passed.

/**
 * @typedef {object} Clock
 * @property {() => number} now  seconds since the epoch, by the clock of the server
 * @property {(serverNow: number, askedAt: number) => void} sync
 * @property {(tick: () => void) => () => void} onTick  returns how to stop
 */

/** @returns {Clock} */
export function createClock() {
  let offset = 0;
  /** @type {Set<() => void>} */
  const listeners = new Set();
  const own = () => Date.now() / 1000;
  setInterval(() => {
    if (!document.hidden) for (const tick of listeners) tick();
  }, 1000);
  return {
    now: () => own() + offset,
    sync(serverNow, askedAt) {
      // The server read its clock about in the middle of the exchange.
      offset = serverNow - (askedAt + own()) / 2;
    },
    onTick(tick) {
      listeners.add(tick);
      return () => listeners.delete(tick);
    },
  };
}
