// The checkpoint bar: the places in the history of a run, which of them are drawn, and what is said about each.

import { actWords } from "./timelines.js";
import { plural, timeOfDay } from "./words.js";

/**
 * @typedef {import("../shapes.js").Checkpoint} Checkpoint
 *
 * @typedef {object} Stop
 * @property {number} seq
 * @property {number} at
 * @property {"dot" | "person" | "now"} kind  a diamond is what a person did
 * @property {string} node  the node that made it, or ""
 * @property {string} words  what happened there, after "@24 after": "outline completed", "ada resumed"
 */

/** As many are drawn at a time. */
export const STOPS_MAX = 60;

/** Kind of checkpoint -> what happened. @type {Record<string, string>} */
const CHECKPOINT_WORDS = {
  RunCreated: "the run began",
  NodeCompleted: "completed",
  NodeSkipped: "was skipped",
  NodeRouted: "was routed",
  LayerCompleted: "a layer completed",
};

/**
 * All places, oldest first: the checkpoints and what people did; the last is now.
 * @param {Checkpoint[]} checkpoints
 * @param {{ seq: number, at: number }} end  the last event of the run
 * @param {import("../shapes.js").Act[]} acts
 * @returns {Stop[]}
 */
export function stopsOf(checkpoints, end, acts) {
  /** @type {Map<number, Stop>} */
  const stops = new Map();
  for (const { seq, at, kind, node } of checkpoints)
    stops.set(seq, { seq, at, kind: "dot", node: node ?? "", words: `${node ?? ""} ${CHECKPOINT_WORDS[kind] ?? kind}`.trim() });
  for (const act of acts)
    if (act.verb !== "start") stops.set(act.seq, { ...act, kind: "person", node: act.node ?? "", words: actWords(act) });
  const before = [...stops.values()].filter((one) => one.seq < end.seq).sort((a, b) => a.seq - b.seq);
  return [...before, { ...end, kind: "now", node: "", words: "now" }];
}

/**
 * The number of the stop that shows the run at an event: the last one up to it.
 * @param {Stop[]} stops
 * @param {number | null} at  null: now
 */
export const stopAt = (stops, at) =>
  Math.max(
    0,
    stops.findLastIndex((stop) => at === null || stop.seq <= at),
  );

/**
 * The first of the stops that are drawn: all, or those around the place. The part that is drawn moves on by half its length, so
 * that dots do not move under the pointer with each step.
 * @param {number} count
 * @param {number} place
 */
export function firstInView(count, place) {
  const half = STOPS_MAX / 2;
  return Math.max(0, Math.min(half * Math.floor(place / half - 0.5), count - STOPS_MAX));
}

/**
 * What the bar says beside the track.
 * @param {Stop[]} stops
 * @param {number} place
 * @param {boolean} isLive
 * @param {number | null} [shown]  the event that is shown, which may be one after the stop
 * @returns {{ seq: string, words: string, hint: string }}
 */
export function tellStop(stops, place, isLive, shown = null) {
  const { kind, seq, at, words } = stops[place];
  if (kind === "now") return { seq: "Now", words: "", hint: `@${seq} · ${isLive ? "live" : timeOfDay(at)}` };
  const event = shown ?? seq;
  const later = stops[stops.length - 1].seq - event;
  return {
    seq: `@${event}`,
    words: `after ${words}${event > seq ? ` @${seq}` : ""}`,
    hint: `${timeOfDay(at)} · ${plural(later, "event")} ago`,
  };
}

/** Key of a slider -> by how many stops it moves. @type {Record<string, number>} */
export const SLIDER_STEPS = {
  left: -1,
  down: -1,
  right: 1,
  up: 1,
  pagedown: -10,
  pageup: 10,
  home: -Infinity,
  end: Infinity,
};
