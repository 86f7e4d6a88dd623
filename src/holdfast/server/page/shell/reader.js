// Reads something when asked, at most once in a while: asked meanwhile, it reads once more afterwards.

/**
 * @param {() => number} pause  in ms
 * @param {() => Promise<void>} read
 */
export function createReader(pause, read) {
  let [busy, again, atOnce, readAt] = [false, false, false, -Infinity];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  async function go() {
    timer = undefined;
    [busy, again, atOnce, readAt] = [true, false, false, performance.now()];
    await read();
    busy = false;
    if (again) ask(atOnce);
  }
  /** @param {boolean} [now]  without a pause, because the reader of the page waits */
  function ask(now = false) {
    atOnce ||= now;
    again = busy;
    if (busy) return;
    if (now) clearTimeout(timer);
    else if (timer !== undefined) return;
    timer = setTimeout(() => void go(), now ? 0 : Math.max(0, readAt + pause() - performance.now()));
  }
  return { ask, stop: () => clearTimeout(timer) };
}
