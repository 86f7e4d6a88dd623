// The states of a run's nodes, kept up to date by the events that follow the picture. The server folds the log; this reducer only
// carries the few facts that the graph shows over the next events. Whatever it cannot tell makes the picture `stale`, and the
// screen then asks the server again.

/**
 * @typedef {object} NodeState
 * @property {string} status  a word of `LOOKS`
 * @property {number} iteration
 * @property {number} execution
 * @property {number} attempt
 * @property {number | null} since  when it got this status
 *
 * @typedef {{ seq: number, nodes: Record<string, NodeState>, stale: boolean }} NodeStates
 * @typedef {{ seq: number, at: number, kind: string, node?: string | null, iteration?: number, execution?: number,
 *   attempt?: number, retry_at?: number | null }} RunEvent
 */

/** Kind of event -> the status of its node after it. @type {Record<string, string>} */
const AFTER = {
  NodeScheduled: "pending",
  NodeStarted: "running",
  NodeCompleted: "completed",
  NodeFailed: "failed",
  NodeInterrupted: "interrupted",
  NodeSkipped: "skipped",
  NodeWaiting: "waiting",
  QuestionAsked: "asks",
  QuestionAnswered: "pending",
};

/** Kinds after which many nodes have another state, so that the picture is read anew. */
const TURNS = new Set([
  "RunForked",
  "RunRewound",
  "RunResumed",
  "RunClaimed",
  "FlowChanged",
  "LayerCompleted",
  "ItemsListed",
  "ItemCompleted",
  "ItemFailed",
]);

/**
 * @param {NodeStates} states
 * @param {RunEvent} event
 * @returns {NodeStates}
 */
export function applyEvent(states, event) {
  if (event.seq <= states.seq) return states; // it is in the picture already
  if (event.seq > states.seq + 1) return { ...states, seq: event.seq, stale: true }; // an event is missing
  const next = { ...states, seq: event.seq };
  if (TURNS.has(event.kind)) return { ...next, stale: true };
  const status = AFTER[event.kind];
  if (!event.node || status === undefined) return next;
  const was = states.nodes[event.node];
  /** @type {NodeState} */
  const node = {
    status: event.kind === "NodeFailed" && event.retry_at ? "waiting" : status,
    iteration: event.iteration ?? was?.iteration ?? 1,
    execution: event.execution ?? was?.execution ?? 1,
    attempt: event.attempt ?? was?.attempt ?? 1,
    since: event.at,
  };
  return { ...next, nodes: { ...states.nodes, [event.node]: node } };
}
