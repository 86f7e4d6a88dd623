// What an attempt streams. It follows the end until one scrolls up, and again when one is back at the end.

import { whenChanged } from "../pure/depending.js";
import { addChunk, addRecorded, beginText, isSame, textOf } from "../pure/streams.js";
import { plural } from "../pure/words.js";
import { button, element, setText } from "../shell/elements.js";
import { oncePerFrame } from "../shell/frames.js";
import { createReader } from "../shell/reader.js";

/**
 * @typedef {import("../pure/streams.js").Streamer} Streamer
 * @typedef {import("../pure/streams.js").StreamChunk} StreamChunk
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {{ run: string, streamer: Streamer, isLive: boolean }} StreamView
 */

/** How many pages of the log are read for one text, at most. */
const PAGES = 50;
const AT_END_PX = 24;
/** How many characters of chunks that came live are kept, at most. */
const HEARD_MAX = 1_000_000;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<StreamView> & { chunk: (chunk: any) => void, event: (event: RunEvent) => void }}
 */
export function createStream(app) {
  const badge = element("span", { class: "stream-badge" });
  const cut = element("p", { class: "hint" }, "The beginning is in the log.");
  const text = element("pre", { class: "stream-text", role: "region", dir: "auto", tabindex: "0", "aria-label": "Stream" });
  const down = button("new-pill", () => (text.scrollTop = text.scrollHeight), "Follow");
  let [following, reading] = [true, false];
  let all = beginText();
  /** Chunks that came live, of all attempts: one may come before the page knows its attempt. @type {StreamChunk[]} */
  const heard = [];
  let heardSize = 0;
  /** Events that came while the log was read. @type {RunEvent[]} */
  let late = [];
  /** @type {StreamView} */
  let view = { run: "", streamer: {}, isLive: false };

  const draw = oncePerFrame(() => {
    const words = all.count ? plural(all.count, "chunk") : view.isLive ? "nothing yet" : "nothing was streamed";
    setText(badge, view.isLive ? `live · ${words}` : words);
    badge.classList.toggle("live-now", view.isLive);
    text.hidden = !all.text;
    down.hidden = following || !view.isLive;
    if (!following) return; // what one reads stays as it is
    cut.hidden = !all.isCut;
    const [node] = text.childNodes;
    // Text is added at its end, so that a selection in it stays.
    if (node instanceof Text && all.text.startsWith(node.data)) node.appendData(all.text.slice(node.data.length));
    else text.replaceChildren(all.text);
    text.scrollTop = text.scrollHeight;
  });
  text.addEventListener("scroll", () => {
    following = text.scrollHeight - text.scrollTop - text.clientHeight < AT_END_PX;
    draw();
  });

  // Reads what the log has, and continues with what came live. Until then, the text stays as it is.
  const reader = createReader(
    () => 500,
    async () => {
      const { run, streamer } = view;
      let read = beginText();
      reading = true;
      for (let [page, after] = [0, 0]; page < PAGES && after !== null; page += 1) {
        const query = { node: [streamer.node ?? ""], kind: ["NodeStreamed"], limit: ["200"], after: [String(after)] };
        const answer = await app.api.get(`runs/${run}/events`, query);
        if (run !== view.run || !isSame(streamer, view.streamer)) return;
        if (!answer.ok) break;
        read = answer.value.events.reduce(record, read);
        after = answer.value.newer;
      }
      read = late.reduce(record, read);
      all = heard.filter((chunk) => isSame(chunk, view.streamer)).reduce(addChunk, read);
      [reading, late] = [false, []];
      draw();
    },
  );

  const begin = whenChanged((/** @type {{ run: string, streamer: Streamer }} */ _) => {
    [following, all] = [true, beginText()];
    reader.ask(true);
  });

  /** @param {import("../pure/streams.js").StreamedText} text @param {RunEvent} event */
  const record = (text, event) => {
    const { chunks, item } = /** @type {any} */ (event.body ?? {});
    return isSame({ ...event, item }, view.streamer) ? addRecorded(text, event.seq, chunks) : text;
  };

  return {
    element: element("section", { class: "stream" }, element("h3", {}, "Stream ", badge), cut, text, down),
    update(next) {
      view = next;
      begin({ run: next.run, streamer: next.streamer });
      draw();
    },
    chunk(chunk) {
      heard.push(chunk);
      heardSize += textOf(chunk.value).length;
      while (heardSize > HEARD_MAX) heardSize -= textOf(heard.shift()?.value).length;
      if (reading || !isSame(chunk, view.streamer)) return;
      all = addChunk(all, chunk);
      draw();
    },
    event(event) {
      if (event.kind !== "NodeStreamed" || event.node !== view.streamer.node) return;
      if ("omitted" in event) return reader.ask(); // too large to be sent live
      if (reading) return void late.push(event);
      all = record(all, event);
      draw();
    },
  };
}
