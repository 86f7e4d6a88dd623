// What an attempt streams. It follows the end until one scrolls up, and again when one is back at the end.

import { addChunk, addRecorded, beginText, isSame } from "../pure/streams.js";
import { plural } from "../pure/words.js";
import { button, element, setText } from "../shell/elements.js";

/**
 * @typedef {import("../pure/streams.js").Streamer} Streamer
 * @typedef {{ run: string, streamer: Streamer, isLive: boolean }} StreamView
 */

/** At most so many pages of the log are read for one text. */
const PAGES = 50;
const AT_END_PX = 24;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<StreamView> & { chunk: (chunk: any) => void,
 *   event: (event: import("../shapes.js").RunEvent) => void }}
 */
export function createStream(app) {
  const [badge, cut] = [
    element("span", { class: "stream-badge" }),
    element("p", { class: "hint" }, "The beginning is in the log."),
  ];
  const text = element("pre", { class: "stream-text", dir: "auto", tabindex: "0", "aria-label": "Stream" });
  const down = button("new-pill", () => follow(true), "Follow");
  let following = true;
  let [shown, reached] = ["", 0];
  let all = beginText();
  /** What came while the log was read. @type {(() => void)[] | null} */
  let held = null;
  /** @type {StreamView} */
  let view = { run: "", streamer: {}, isLive: false };

  /** @param {boolean} next */
  function follow(next) {
    following = next;
    down.hidden = next || !view.isLive;
    if (next) text.scrollTop = text.scrollHeight;
  }
  text.addEventListener("scroll", () => {
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < AT_END_PX;
    if (atEnd !== following) follow(atEnd);
  });

  function draw() {
    const words = all.count ? plural(all.count, "chunk") : view.isLive ? "nothing yet" : "nothing was streamed";
    setText(badge, view.isLive ? `live · ${words}` : words);
    badge.classList.toggle("live-now", view.isLive);
    cut.hidden = !all.isCut;
    text.hidden = !all.text;
    const [node] = text.childNodes;
    // Text is added at its end, so that a selection in it stays.
    if (node instanceof Text && all.text.startsWith(node.data)) node.appendData(all.text.slice(node.data.length));
    else text.replaceChildren(all.text);
    follow(following);
  }

  async function read() {
    const key = shown;
    [all, held, following, reached] = [beginText(), [], true, 0];
    let after = "0";
    for (let page = 0; page < PAGES; page += 1) {
      const query = { node: [view.streamer.node ?? ""], kind: ["NodeStreamed"], limit: ["200"], after: [after] };
      const answer = await app.api.get(`runs/${view.run}/events`, query);
      if (key !== shown) return;
      if (!answer.ok) break;
      for (const event of answer.value.events) record(event);
      if (answer.value.newer === null) break;
      after = String(answer.value.newer);
    }
    const late = held ?? [];
    held = null;
    for (const take of late) take();
    draw();
  }

  /** @param {import("../shapes.js").RunEvent} event */
  function record(event) {
    const { chunks, item } = event.body ?? {};
    if (event.seq <= reached) return; // it was read, and came live too
    reached = event.seq;
    if (Array.isArray(chunks) && isSame({ ...event, item: /** @type {number | null} */ (item ?? null) }, view.streamer))
      all = addRecorded(all, chunks);
  }

  /** @param {() => void} take */
  function hold(take) {
    if (held) held.push(take);
    else {
      take();
      draw();
    }
  }

  return {
    element: element("section", { class: "stream" }, element("h3", {}, "Stream ", badge), cut, text, down),
    update(next) {
      view = next;
      const key = JSON.stringify([next.run, next.streamer]);
      if (key !== shown) {
        shown = key;
        void read();
      }
      draw();
    },
    chunk(chunk) {
      if (isSame(chunk, view.streamer)) hold(() => (all = addChunk(all, chunk)));
    },
    event(event) {
      if (event.kind === "NodeStreamed" && event.node === view.streamer.node) hold(() => record(event));
    },
  };
}
