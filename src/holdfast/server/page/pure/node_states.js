// The states of a run's nodes, kept up to date by the events that follow the picture. The server folds the log; this reducer only
// carries the few facts that the graph shows over the next events. Whatever it cannot tell makes the picture `stale`, and the
// screen then asks the server again.

/**
 * @typedef {import("../shapes.js").NodeMark} NodeMark
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {{ seq: number, nodes: Record<string, NodeMark>, stale: boolean }} NodeStates
 */

/** Kind of event -> what its node is after it. @type {Record<string, Partial<NodeMark>>} */
const AFTER = {
  NodeScheduled: { status: "pending" },
  NodeStarted: { status: "running" },
  NodeCompleted: { status: "completed" },
  NodeFailed: { status: "failed" },
  NodeInterrupted: { status: "interrupted" },
  NodeSkipped: { status: "skipped" },
  NodeWaiting: { status: "waiting" },
  QuestionAsked: { status: "waiting", waits_for: "question" },
  SignalAwaited: { status: "waiting", waits_for: "signal" },
  TimerSet: { status: "waiting", waits_for: "timer" },
};

/** Kinds that change no node. Any other kind changes several, or counts that the picture shows: it is then read anew. */
const QUIET = new Set(["NodeStreamed", "NodeCheckpointed", "StepCompleted", "CostIncurred", "RequestRefused", "StateEdited"]);

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
  const after = AFTER[event.kind];
  if (!event.node || !after) return { ...next, stale: true };
  const was = states.nodes[event.node];
  const retry = event.kind === "NodeFailed" ? event.body?.retry_at : null;
  /** @type {NodeMark} */
  const mark = {
    ...was,
    status: "pending",
    crashed: false,
    iteration: event.iteration ?? was?.iteration ?? 1,
    execution: event.execution ?? was?.execution ?? 1,
    attempt: event.attempt ?? was?.attempt ?? 1,
    waits_for: null,
    until: null,
    ...after,
    ...(typeof retry === "number" ? { status: "waiting", waits_for: "retry", until: retry } : {}),
    ...(event.kind === "NodeStarted" ? { started_at: event.at, ended_at: null } : {}),
  };
  return { ...next, nodes: { ...states.nodes, [event.node]: mark } };
}
