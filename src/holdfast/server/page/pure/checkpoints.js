// The checkpoint bar: the places in the history of a run, which of them are drawn, and what is said about each.

import { plural, timeOfDay } from "./words.js";

/**
 * @typedef {import("../shapes.js").Checkpoint} Checkpoint
 *
 * @typedef {object} Stop
 * @property {number} seq
 * @property {number} at
 * @property {"dot" | "person" | "now"} kind  a diamond is what a person did
 * @property {string} node  the node that made it, or ""
 * @property {string} words  what happened there, after "@24 ", the node as its first word: "outline completed"
 * @property {boolean} left  the run went back to before it
 *
 * @typedef {{ from: number, to: number }} Range  the stops [from, to)
 */

/** As many are drawn at a time. */
export const STOPS_MAX = 60;

/** Kind of checkpoint -> what happened. @type {Record<string, string>} */
const WORDS = {
  RunCreated: "the run began",
  RunForked: "the run was forked",
  StateEdited: "the state was edited",
  NodeCompleted: "completed",
  NodeSkipped: "was skipped",
  NodeRouted: "was routed",
  LayerCompleted: "a layer completed",
  QuestionAnswered: "was answered",
};
const OF_PEOPLE = new Set(["RunForked", "StateEdited", "NodeSkipped", "QuestionAnswered"]);

/**
 * All places, oldest first; the last is now.
 * @param {Checkpoint[]} checkpoints
 * @param {{ seq: number, at: number }} end  the last event of the run
 * @returns {Stop[]}
 */
export function stopsOf(checkpoints, end) {
  const stops = checkpoints
    .filter((one) => one.seq < end.seq)
    .map((one) => ({
      seq: one.seq,
      at: one.at,
      kind: /** @type {Stop["kind"]} */ (OF_PEOPLE.has(one.kind) ? "person" : "dot"),
      node: one.node ?? "",
      words: [one.node, WORDS[one.kind] ?? one.kind].filter(Boolean).join(" "),
      left: !one.current,
    }));
  return [...stops, { seq: end.seq, at: end.at, kind: "now", node: "", words: "now", left: false }];
}

/**
 * The number of the stop that shows the run at an event: the last one up to it.
 * @param {Stop[]} stops
 * @param {number | null} at  null: now
 */
export function stopAt(stops, at) {
  if (at === null) return stops.length - 1;
  const later = stops.findIndex((stop) => stop.seq > at);
  return later < 0 ? stops.length - 1 : Math.max(0, later - 1);
}

/**
 * Which stops are drawn: all, or those around the place. What was drawn stays while the place is well inside, so that dots do not
 * move under the pointer.
 * @param {number} count
 * @param {number} place
 * @param {Range | null} before
 * @returns {Range}
 */
export function stopsInView(count, place, before) {
  if (count <= STOPS_MAX) return { from: 0, to: count };
  const isWhole = before && before.to - before.from === STOPS_MAX && before.to <= count;
  // One dot more on each side, so that there is always one to go on to.
  const isInside = isWhole && before.from <= Math.max(0, place - 1) && Math.min(count - 1, place + 1) < before.to;
  if (isInside) return before;
  const from = Math.min(Math.max(0, place - STOPS_MAX / 2), count - STOPS_MAX);
  return { from, to: from + STOPS_MAX };
}

/**
 * What the bar says beside the track.
 * @param {Stop[]} stops
 * @param {number} place
 * @param {boolean} isLive
 * @returns {{ seq: string, words: string, node: string, hint: string }}
 */
export function tellStop(stops, place, isLive) {
  const stop = stops[place];
  if (stop.kind === "now")
    return { seq: "Now", words: "", node: "", hint: `@${stop.seq} · ${isLive ? "live" : timeOfDay(stop.at)}` };
  const later = stops[stops.length - 1].seq - stop.seq;
  return {
    seq: `@${stop.seq}`,
    words: `after ${stop.words}`,
    node: stop.node,
    hint: `${timeOfDay(stop.at)} · ${plural(later, "event")} ago`,
  };
}

/**
 * The stop that a key of the slider leads to; null if the key is none of its keys.
 * @param {string} key  as in KeyboardEvent
 * @param {number} place
 * @param {number} count
 */
export function stopByKey(key, place, count) {
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -count, End: count };
  const by = steps[/** @type {keyof typeof steps} */ (key)];
  return by === undefined ? null : Math.min(count - 1, Math.max(0, place + by));
}
