// The story of a run on a phone: what happened, newest first.

import { storyOf } from "../pure/stories.js";
import { age, fullInstant, instant } from "../pure/words.js";
import { button, element, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../pure/stories.js").StoryEntry} StoryEntry
 * @typedef {{ timeline: import("../shapes.js").Timeline, now: number }} StoryView
 */

/** How many entries are shown at first, and added each time. */
const SHOWN_STEP = 50;

/**
 * @param {{ choose: (choice: { node: string }) => void }} options
 * @returns {import("../shell/elements.js").Part<StoryView>}
 */
export function createStory({ choose }) {
  const list = element("ol", { class: "story-list", "aria-label": "Story, newest first" });
  const more = button("button", () => {
    shown += SHOWN_STEP;
    draw();
  });
  more.hidden = true; // until a timeline is there, it has no words
  const draws = keepChildren(
    list,
    (/** @type {StoryEntry} */ entry) => entry.key,
    (entry) => createStoryEntry(entry, choose, () => view?.now ?? 0),
  );
  /** @type {StoryView | null} */
  let view = null;
  /** @type {StoryEntry[]} */
  let entries = [];
  let shown = SHOWN_STEP;

  function draw() {
    draws(entries.slice(0, shown));
    more.hidden = entries.length <= shown;
    setText(more, `Show ${Math.min(SHOWN_STEP, entries.length - shown)} older`);
  }

  return {
    element: element("div", { class: "story" }, list, more),
    update(next) {
      if (view?.timeline.run_id !== next.timeline.run_id) shown = SHOWN_STEP;
      if (view?.timeline !== next.timeline) entries = storyOf(next.timeline, next.now);
      view = next;
      draw();
    },
  };
}

/**
 * An entry about a node is a button that chooses it.
 * @param {StoryEntry} first
 * @param {(choice: { node: string }) => void} choose
 * @param {() => number} now
 * @returns {import("../shell/elements.js").Part<StoryEntry>}
 */
function createStoryEntry(first, choose, now) {
  let { node } = first;
  const [status, title, detail] = [createStatus(), element("span", {}), element("span", { class: "hint" })];
  const [time, gap] = [element("time", { class: "hint" }), element("span", { class: "tag" })];
  const body = node
    ? button("story-body", () => node && choose({ node }), title, detail)
    : element("div", { class: "story-body" }, title, detail);
  return {
    element: element("li", {}, status.element, body, time, gap),
    update(entry) {
      ({ node } = entry);
      status.update(entry.look);
      setSentence(title, entry.title);
      setText(detail, entry.detail);
      setText(time, entry.look.turns ? age(now() - entry.at) : instant(entry.at, now()).replace(/^(\d\d:\d\d):\d\d$/, "$1"));
      setAttribute(time, "title", fullInstant(entry.at));
      setText(gap, entry.gap ?? "");
      gap.hidden = !entry.gap;
    },
  };
}
