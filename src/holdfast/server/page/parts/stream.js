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
/** At least so many chunks that came live are kept. */
const HEARD = 5000;

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
  const text = element("pre", { class: "stream-text", role: "region", dir: "auto", tabindex: "0", "aria-label": "Stream" });
  const down = button("new-pill", () => follow(true), "Follow");
  let following = true;
  let [shown, reached] = ["", 0];
  let all = beginText();
  let reading = false;
  /** Chunks that came live, of all attempts. @type {any[]} */
  const heard = [];
  /** Events that came while the log was read. @type {import("../shapes.js").RunEvent[]} */
  const late = [];
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

  let waits = false;
  /** Draw once a frame, however many chunks come. */
  function drawSoon() {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      draw();
    });
  }

  async function read() {
    const key = shown;
    [all, reading, following, reached] = [beginText(), true, true, 0];
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
    reading = false;
    for (const event of late.splice(0)) record(event);
    for (const chunk of heard) if (isSame(chunk, view.streamer)) all = addChunk(all, chunk);
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

  return {
    element: element("section", { class: "stream" }, element("h3", {}, "Stream ", badge), cut, text, down),
    update(next) {
      view = next;
      const key = JSON.stringify([next.run, next.streamer]);
      if (key !== shown) {
        shown = key;
        void read();
      }
      drawSoon();
    },
    chunk(chunk) {
      // It may come before the page knows its attempt, or while another tab is open.
      heard.push(chunk);
      if (heard.length > 2 * HEARD) heard.splice(0, HEARD);
      if (reading || !isSame(chunk, view.streamer)) return;
      all = addChunk(all, chunk);
      drawSoon();
    },
    event(event) {
      if (event.kind !== "NodeStreamed" || event.node !== view.streamer.node) return;
      if ("omitted" in event) return void read(); // too large for a stream: it is in the log
      if (reading) late.push(event);
      else record(event);
      drawSoon();
    },
  };
}
