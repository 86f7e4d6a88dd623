// The checkpoint bar: a slider over the places in the history of a run. In the past it is tinted, and has the ways out of there.

import { SLIDER_STEPS, STOPS_MAX, firstInView, stopAt, stopsOf, tellStop } from "../pure/checkpoints.js";
import { nameOfKey } from "../pure/keys.js";
import { markNames } from "../pure/words.js";
import { button, element, glyph, iconButton, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";

/**
 * @typedef {import("../pure/checkpoints.js").Stop} Stop
 *
 * @typedef {object} BarValue
 * @property {import("../shapes.js").Checkpoint[]} checkpoints  oldest first
 * @property {import("../shapes.js").Act[]} acts  what people did
 * @property {{ seq: number, at: number }} end  the last event of the run
 * @property {number | null} at  the event that is shown; null: now
 * @property {boolean} live  events arrive as they happen, and the run is not over
 * @property {boolean} operates  the token may fork and resume
 * @property {boolean} final  the run has completed or was cancelled: it can be forked, and not resumed
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
  const track = element(
    "div",
    { class: "track", role: "slider", tabindex: "0", "aria-label": "Checkpoint", "aria-valuemin": 0 },
    done,
    dots,
  );
  const before = iconButton("left", "Checkpoint before", () => choose(place - 1));
  const after = iconButton("right", "Next checkpoint", () => choose(place + 1));
  const [seq, words, hint] = [element("strong", {}), element("span", {}), element("span", { class: "hint" })];
  const jump = element("input", {
    class: "field jump",
    inputmode: "numeric",
    "aria-label": "Go to event",
    placeholder: "@ event",
    onchange: leap,
  });
  const forkButton = button("button", () => fork(stops[place].seq), glyph("fork"), "Fork from here…");
  const resumeButton = button("button filled", () => resume(stops[place].seq), glyph("play"), "Resume from here…");
  const back = button("button", () => go(null), "Back to now", element("kbd", {}, "esc"));
  const ways = element("div", { class: "bar-acts" }, back, forkButton, resumeButton);
  const host = element(
    "section",
    { class: "checkpoint-bar", "aria-label": "Checkpoints" },
    element("span", { class: "bar-label", "aria-hidden": "true" }, "Checkpoint"),
    before,
    track,
    after,
    jump,
    element("p", { class: "bar-words" }, seq, " ", words, " ", hint),
    ways,
  );
  /** @type {Stop[]} */
  let stops = [];
  let [place, from] = [0, 0];
  /** How many dots are drawn after the first one. */
  const lastDrawn = () => Math.max(1, Math.min(STOPS_MAX, stops.length) - 1);
  const draw = keepChildren(dots, (/** @type {DotView} */ dot) => String(dot.stop.seq), createDot);

  /** @param {number} to */
  function choose(to) {
    const last = stops.length - 1;
    const next = Math.min(last, Math.max(0, to));
    if (next !== place) go(next === last ? null : stops[next].seq);
  }

  function leap() {
    const wanted = parseInt(jump.value.replace("@", ""), 10);
    if (wanted >= 0) choose(stopAt(stops, wanted));
    jump.value = "";
  }

  track.addEventListener("keydown", (event) => {
    const by = SLIDER_STEPS[nameOfKey(event)];
    if (!by) return;
    event.preventDefault();
    choose(place + by);
  });
  /** @param {PointerEvent} event */
  const point = ({ buttons, pointerId, clientX }) => {
    if (!buttons) return;
    track.setPointerCapture(pointerId);
    const { left, width } = track.getBoundingClientRect();
    choose(from + Math.round(Math.min(1, Math.max(0, (clientX - left) / width)) * lastDrawn()));
  };
  track.addEventListener("pointerdown", point);
  track.addEventListener("pointermove", point);

  return {
    element: host,
    step: (by) => choose(place + by),
    update({ checkpoints, acts, end, at, live, operates, final }) {
      stops = stopsOf(checkpoints, end, acts);
      place = stopAt(stops, at);
      from = firstInView(stops.length, place);
      /** @param {number} number */
      const left = (number) => `${(100 * (number - from)) / lastDrawn()}%`;
      const drawn = stops.slice(from, from + STOPS_MAX);
      draw(drawn.map((stop, number) => ({ stop, left: left(from + number), offset: from + number - place })));
      done.style.width = left(place);
      const told = tellStop(stops, place, live, at);
      setText(seq, told.seq);
      setSentence(words, markNames(told.words, [stops[place].node].filter(Boolean)));
      setText(hint, told.hint);
      const isPast = stops[place].kind !== "now";
      setAttribute(host, "data-past", isPast);
      ways.hidden = !isPast;
      forkButton.hidden = !operates;
      forkButton.classList.toggle("filled", final);
      resumeButton.hidden = !operates || final;
      jump.hidden = stops.length <= STOPS_MAX;
      before.disabled = !place;
      after.disabled = !isPast;
      setAttribute(track, "aria-valuemax", stops.length - 1);
      setAttribute(track, "aria-valuenow", place);
      setAttribute(track, "aria-valuetext", Object.values(told).filter(Boolean).join(" "));
    },
  };
}

/** @typedef {{ stop: Stop, left: string, offset: number }} DotView  `offset`: how many stops after the place */

/** @returns {import("../shell/elements.js").Part<DotView>} */
function createDot() {
  const host = element("span", {});
  return {
    element: host,
    update({ stop, left, offset }) {
      const when = offset < 0 ? "past" : offset ? "later" : "here";
      setAttribute(host, "class", `dot ${stop.kind} ${when}`);
      setAttribute(host, "title", `@${stop.seq} ${stop.words}`);
      host.style.left = left;
    },
  };
}
