// The connection to the server as a value: connecting, live, lost (with the next try), or closed because the tab is hidden. The
// shell carries out what a state says; this module only decides, so that backoff and banners can be tested without a network.

/** No heartbeat for this long means that the connection is lost. */
export const SILENCE_S = 20;

/**
 * @typedef {object} Connection
 * @property {"connecting" | "live" | "lost" | "hidden"} state
 * @property {number} failures  tries that failed since it was live
 * @property {number} heardAt  when the server last sent anything
 * @property {number} retryAt  when to try again, if lost
 *
 * @typedef {{ kind: "opened" | "heard" | "hidden" | "shown" | "retry", at: number }
 *   | { kind: "failed", at: number, wait?: number }} Happening  `wait`: seconds that the server asked for (Retry-After)
 */

/**
 * @param {number} at
 * @returns {Connection}
 */
export const beginConnection = (at) => ({ state: "connecting", failures: 0, heardAt: at, retryAt: 0 });

/**
 * Seconds until the next try: 1, 2, 4, 8, 16, then 30.
 * @param {number} failures
 */
export const backoff = (failures) => Math.min(30, 2 ** Math.max(0, failures - 1));

/**
 * @param {Connection} was
 * @param {Happening} what
 * @returns {Connection}
 */
export function connect(was, what) {
  switch (what.kind) {
    case "opened":
    case "heard":
      return { state: "live", failures: 0, heardAt: what.at, retryAt: 0 };
    case "hidden":
      return { ...was, state: "hidden" };
    case "shown":
    case "retry":
      return { ...was, state: "connecting" };
    case "failed": {
      if (was.state === "hidden") return was; // we closed it ourselves
      const failures = was.failures + 1;
      return { ...was, state: "lost", failures, retryAt: what.at + Math.max(backoff(failures), what.wait ?? 0) };
    }
  }
}
