// Workers and queues: which processes are alive, and what they leave.

import { number, plural } from "./words.js";

/**
 * @typedef {import("../shapes.js").Worker} Worker
 * @typedef {import("../shapes.js").Queue} Queue
 */

/**
 * One row for each process. A server has two engines: one that takes runs, and one that handles the requests of the page.
 * @param {Worker[]} engines
 * @returns {Worker[]}
 */
export function processesOf(engines) {
  /** @type {Map<string, Worker>} */
  const found = new Map();
  for (const one of engines) {
    const key = `${one.name} ${one.gone}`;
    const known = found.get(key);
    const [first, other] = known && !one.is_worker ? [known, one] : [one, known];
    const flows = [...new Set([...first.flows, ...(other?.is_worker ? other.flows : [])])];
    found.set(key, { ...first, flows, held: first.held + (other?.held ?? 0) });
  }
  return [...found.values()];
}

/** @param {Worker} worker @returns {import("./statuses.js").Look} */
export function lookOfWorker({ gone, held, is_worker }) {
  if (gone) return { word: held ? `gone; ${plural(held, "run")} on offer` : "gone", glyph: "crashed", tone: "ask" };
  if (is_worker) return { word: "takes runs", glyph: "pulse", tone: "accent" };
  return { word: "takes no new runs", glyph: "interrupted", tone: "rest" };
}

/** How much of a queue is executed. With the limit 0, it is stopped: no run of it begins. @param {Queue} queue */
export function queueWords({ held, limit }) {
  if (limit === 0) return held ? `stopped, ${number(held)} still executed` : "stopped";
  return limit === null ? `${number(held)}, no limit` : `${number(held)} of ${number(limit)}`;
}

/**
 * @param {Worker[]} processes
 * @param {Queue[]} queues
 */
export function workersInWords(processes, queues) {
  const alive = processes.filter((one) => !one.gone);
  const held = alive.reduce((sum, one) => sum + one.held, 0);
  const offered = queues.reduce((sum, one) => sum + one.offered, 0);
  const count = alive.length;
  const words = count
    ? `${plural(count, "process is", "processes are")} alive and ${count > 1 ? "execute" : "executes"} ${plural(held, "run")}`
    : "No process is alive";
  return `${words}. ${plural(offered, "run waits", "runs wait")} for a worker.`;
}
