// What the server says about itself and about the token: asked at the start, again when a connection was lost (a newer version
// may have taken over) and again when the reader has given another token (which may have another role).

/**
 * @typedef {import("../shapes.js").Meta} Meta
 *
 * @typedef {object} Server
 * @property {() => Meta | null} meta  null until the server has answered
 * @property {() => boolean} isNewer  another version answers than the one that sent this page
 * @property {() => Promise<import("../shapes.js").Problem | null>} ask
 */

/**
 * @param {import("./api.js").Api} api
 * @param {import("./clock.js").Clock} clock
 * @param {() => void} onChange
 * @returns {Server}
 */
export function createServer(api, clock, onChange) {
  /** @type {Meta | null} */
  let meta = null;
  let version = "";
  return {
    meta: () => meta,
    isNewer: () => meta !== null && meta.version !== version,
    async ask() {
      const askedAt = Date.now() / 1000;
      const answer = await api.get("meta");
      if (!answer.ok) return answer.problem;
      const before = meta;
      meta = /** @type {Meta} */ (answer.value);
      version ||= meta.version;
      clock.sync(meta.now, askedAt);
      if (before) onChange();
      return null;
    },
  };
}
