// The checkpoint bar: a slider over the places in the history of a run. In the past it is tinted, and has the ways out of there.

import { STOPS_MAX, stopAt, stopByKey, stopsInView, stopsOf, tellStop } from "../pure/checkpoints.js";
import { markNames } from "../pure/words.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";

/**
 * @typedef {import("../pure/checkpoints.js").Stop} Stop
 *
 * @typedef {object} BarValue
 * @property {import("../shapes.js").Checkpoint[]} checkpoints  oldest first
 * @property {{ seq: number, at: number }} end  the last event of the run
 * @property {number | null} at  the event that is shown; null: now
 * @property {boolean} live  events arrive as they happen
 * @property {boolean} operates  the token may fork and resume
 *
 * @typedef {object} BarOptions
 * @property {(seq: number | null) => void} go  null: now
 * @property {(seq: number) => void} fork
 * @property {(seq: number) => void} resume
 *
 * @typedef {import("../shell/elements.js").Part<BarValue> & { step: (by: number) => void }} CheckpointBar
 */

/**
 * @param {BarOptions} options
 * @returns {CheckpointBar}
 */
export function createCheckpointBar({ go, fork, resume }) {
  const [done, dots] = [element("span", { class: "track-done" }), element("span", {})];
  const track = element("div", { class: "track", role: "slider", tabindex: "0", "aria-label": "Checkpoint" }, done, dots);
  const [before, after] = [createStep("left", "Checkpoint before", -1), createStep("right", "Next checkpoint", 1)];
  const [seq, words, hint] = [element("strong", {}), element("span", {}), element("span", { class: "hint" })];
  const jump = element("input", {
    class: "field jump",
    inputmode: "numeric",
    "aria-label": "Go to event",
    placeholder: "@ event",
  });
  const jumpForm = element("form", { onsubmit: leap }, jump);
  const acts = element(
    "div",
    { class: "bar-acts" },
    button("button", () => go(null), "Back to now", element("kbd", {}, "esc")),
    button("button verb", () => fork(stops[place].seq), glyph("fork"), "Fork from here…"),
    button("button filled verb", () => resume(stops[place].seq), glyph("play"), "Resume from here…"),
  );
  const host = element(
    "section",
    { class: "checkpoint-bar", "aria-label": "Checkpoints" },
    element("span", { class: "bar-label", "aria-hidden": "true" }, "Checkpoint"),
    before,
    track,
    after,
    jumpForm,
    element("p", { class: "bar-words" }, seq, " ", words, " ", hint),
    acts,
  );
  /** @type {Stop[]} */
  let stops = [];
  let place = 0;
  /** @type {import("../pure/checkpoints.js").Range | null} */
  let range = null;
  const draw = keepChildren(dots, (/** @type {DotView} */ dot) => String(dot.stop.seq), createDot);

  /** @param {import("../pure/glyphs.js").GlyphName} sign @param {string} label @param {number} by */
  function createStep(sign, label, by) {
    const step = button("icon-button", () => choose(place + by), glyph(sign));
    step.setAttribute("aria-label", label);
    return step;
  }

  /** @param {number} to */
  function choose(to) {
    const next = Math.min(stops.length - 1, Math.max(0, to));
    if (next !== place) go(next === stops.length - 1 ? null : stops[next].seq);
  }

  /** @param {Event} event */
  function leap(event) {
    event.preventDefault();
    const wanted = Number(jump.value.replace(/^\s*@/, ""));
    if (jump.value.trim() && Number.isFinite(wanted)) choose(stopAt(stops, wanted));
    jump.value = "";
  }

  track.addEventListener("keydown", (event) => {
    const next = event.ctrlKey || event.altKey || event.metaKey ? null : stopByKey(event.key, place, stops.length);
    if (next === null) return;
    event.preventDefault();
    choose(next);
  });
  /** @param {PointerEvent} event */
  const point = (event) => {
    if (!event.buttons || !range) return;
    const { left, width } = track.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - left) / width));
    choose(range.from + Math.round(part * (range.to - range.from - 1)));
  };
  track.addEventListener("pointerdown", (event) => {
    track.setPointerCapture(event.pointerId);
    point(event);
  });
  track.addEventListener("pointermove", point);

  return {
    element: host,
    step: (by) => choose(place + by),
    update({ checkpoints, end, at, live, operates }) {
      stops = stopsOf(checkpoints, end);
      place = stopAt(stops, at);
      const shown = (range = stopsInView(stops.length, place, range));
      const last = Math.max(1, shown.to - shown.from - 1);
      draw(
        stops
          .slice(shown.from, shown.to)
          .map((stop, number) => ({ stop, left: (100 * number) / last, offset: number + shown.from - place })),
      );
      done.style.width = `${(100 * (place - shown.from)) / last}%`;
      const told = tellStop(stops, place, live);
      setText(seq, told.seq);
      setSentence(words, markNames(told.words, told.node ? [told.node] : []));
      setText(hint, told.hint);
      const isPast = stops[place].kind !== "now";
      setAttribute(host, "data-past", isPast);
      acts.hidden = !isPast;
      for (const verb of acts.querySelectorAll(".verb")) setAttribute(verb, "hidden", !operates);
      jumpForm.hidden = stops.length <= STOPS_MAX;
      before.disabled = place === 0;
      after.disabled = !isPast;
      setAttribute(track, "aria-valuemin", 0);
      setAttribute(track, "aria-valuemax", stops.length - 1);
      setAttribute(track, "aria-valuenow", place);
      setAttribute(track, "aria-valuetext", [told.seq, told.words, told.hint].filter(Boolean).join(" "));
    },
  };
}

/** @typedef {{ stop: Stop, left: number, offset: number }} DotView  `offset`: how many stops after the place */

/** @returns {import("../shell/elements.js").Part<DotView>} */
function createDot() {
  const host = element("span", {});
  return {
    element: host,
    update({ stop, left, offset }) {
      const when = offset < 0 ? "past" : offset ? "later" : "here";
      setAttribute(host, "class", ["dot", stop.kind, when, stop.left && "left"].filter(Boolean).join(" "));
      setAttribute(host, "title", `@${stop.seq} ${stop.words}`);
      host.style.left = `${left}%`;
    },
  };
}
