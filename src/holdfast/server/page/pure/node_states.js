// The states of a run's nodes, kept up to date by the events that follow the picture. The server folds the log; this reducer only
// carries the few facts that the graph shows over the next events. Whatever it cannot tell makes the picture `stale`, and the
// screen then asks the server again.

import { byName } from "./groups.js";

/**
 * @typedef {import("../shapes.js").NodeMark} NodeMark
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {{ seq: number, nodes: Record<string, NodeMark>, stale: boolean }} NodeStates
 */

/** Kind of event -> the status of its node after it. @type {Record<string, string>} */
const STATUS_AFTER = {
  NodeScheduled: "pending",
  NodeStarted: "running",
  NodeCompleted: "completed",
  NodeFailed: "failed",
  NodeInterrupted: "interrupted",
  NodeSkipped: "skipped",
  NodeWaiting: "waiting",
};

/** Kind of event -> what its node waits for after it. @type {Record<string, NodeMark["waits_for"]>} */
const WAITS_AFTER = { QuestionAsked: "question", SignalAwaited: "signal", ChildAwaited: "child", TimerSet: "timer" };

/** Kinds that change no node. Any other kind changes several, or counts that the picture shows: it is then read again. */
const QUIET = new Set(
  (
    "NodeStreamed NodeCheckpointed StepCompleted CostIncurred RequestRefused StateEdited " +
    "GuardEvaluated PolicyDecided OutputVerified NodeReturned"
  ).split(" "),
);

/**
 * @param {NodeStates} states
 * @param {RunEvent} event
 * @returns {NodeStates}
 */
export function applyEvent(states, event) {
  if (event.seq <= states.seq) return states; // it is in the picture already
  if (event.seq > states.seq + 1) return { ...states, seq: event.seq, stale: true }; // an event is missing
  const next = { ...states, seq: event.seq };
  if (QUIET.has(event.kind)) return next;
  const waits = WAITS_AFTER[event.kind] ?? null;
  const status = waits ? "waiting" : STATUS_AFTER[event.kind];
  if (!event.node || !status || event.body?.warning) return { ...next, stale: true };
  const was = states.nodes[event.node];
  const retry = event.kind === "NodeFailed" ? event.body?.retry_at : null;
  /** @type {NodeMark} */
  const mark = {
    ...was,
    status,
    crashed: false,
    iteration: event.iteration ?? was?.iteration ?? 1,
    execution: event.execution ?? was?.execution ?? 1,
    attempt: event.attempt ?? was?.attempt ?? 1,
    waits_for: waits,
    until: null,
    ...(typeof retry === "number" && { status: "waiting", waits_for: "retry", until: retry }),
    ...(status === "running" && { started_at: event.at, ended_at: null }),
  };
  return { ...next, nodes: Object.assign(byName(states.nodes), { [event.node]: mark }) };
}
