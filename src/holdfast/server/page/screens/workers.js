// Workers: which processes are alive, what they hold, and what waits for them in the queues.

import { agoWords, number } from "../pure/words.js";
import { lookOfWorker, processesOf, workersInWords } from "../pure/workers.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createGauge } from "../parts/gauge.js";
import { openLimit } from "../parts/queue_limit.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { agesColumn, createTable, textColumn } from "../parts/table.js";
import { createStatus } from "../parts/status.js";
import { button, element, setAttribute, setText } from "../shell/elements.js";

/**
 * @typedef {import("../shapes.js").Worker} Worker
 * @typedef {import("../shapes.js").Queue} Queue
 * @typedef {import("../shell/app.js").App} App
 */

const WORKERS_REFRESH_S = 3;

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createWorkersScreen(app) {
  const summary = element("p", { class: "lead" });
  const problem = createBanner();
  const workers = createTable({ caption: "Workers", columns: workerColumns(app), keyOf: (one) => one.id });
  const queues = createTable({ caption: "Queues", columns: queueColumns(app, load), keyOf: (one) => one.name });
  const content = element("div", { class: "sections" });
  /** @type {{ workers: Worker[], queues: Queue[] } | null} */
  let shown = null;
  let readAt = 0;

  async function load() {
    readAt = app.clock.now();
    const stopWaiting = afterWait(() => !shown && content.replaceChildren(createSkeleton(4, ["c-status", "c-run", "c-reason"])));
    const answers = await Promise.all([app.api.get("workers"), app.api.get("queues")]);
    stopWaiting();
    const refused = answers.find((answer) => !answer.ok);
    problem.update(refused?.ok === false ? problemBanner(refused.problem, load) : null);
    if (refused) return;
    if (!shown) content.replaceChildren(workers.element, element("h2", {}, "Queues"), queues.element);
    shown = Object.assign({}, ...answers.map((answer) => answer.ok && answer.value));
    draw();
  }

  function draw() {
    if (!shown) return;
    const processes = processesOf(shown.workers);
    setText(summary, workersInWords(processes, shown.queues));
    workers.update(processes);
    queues.update(shown.queues);
    workers.element.hidden = !processes.length;
  }

  return {
    element: element(
      "main",
      { class: "screen", tabindex: "-1" },
      element("h1", {}, "Workers"),
      summary,
      problem.element,
      content,
    ),
    title: () => "Workers",
    keys: [],
    show: load,
    changed: draw,
    tick() {
      if (app.feed.isLive() && app.clock.now() - readAt >= WORKERS_REFRESH_S) void load();
      else draw();
    },
  };
}

/**
 * @param {App} app
 * @returns {import("../parts/table.js").Column<Worker>[]}
 */
const workerColumns = (app) => [
  { name: "w-status", label: "Status", make: createWorkerStatus },
  textColumn("w-worker", "Process", (one) => one.name, "code"),
  textColumn("w-held end", "Runs held", (one) => (one.gone ? "–" : number(one.held))),
  textColumn("c-reason", "Flows", (one) => one.flows.join(", ") || "–"),
  textColumn("w-queues", "Queues", (one) => (one.is_worker ? one.queues.join(", ") || "all" : "–")),
  textColumn("w-version end", "Version", (one) => one.version || "–"),
  agesColumn(app, "w-renewed end", "Lease renewed", (one) => one.seen_at, agoWords),
];

/** @returns {import("../shell/elements.js").Part<Worker>} */
function createWorkerStatus() {
  const status = createStatus();
  return { element: status.element, update: (one) => status.update(lookOfWorker(one)) };
}

/**
 * @param {App} app
 * @param {() => void} changed
 * @returns {import("../parts/table.js").Column<Queue>[]}
 */
const queueColumns = (app, changed) => [
  textColumn("q-name", "Queue", (one) => one.name, "code"),
  textColumn("q-offered end", "On offer", (one) => number(one.offered)),
  { name: "c-reason", label: "Executed", make: createGauge },
  { name: "q-act end", label: "What to do", unseen: true, make: () => createLimitButton(app, changed) },
];

/** @param {App} app @param {() => void} changed @returns {import("../shell/elements.js").Part<Queue>} */
function createLimitButton(app, changed) {
  /** @type {Queue} */
  let queue;
  const set = button("button small", () => openLimit(app, queue, changed), "Set limit…");
  return {
    element: set,
    update(one) {
      queue = one;
      set.hidden = app.meta().role !== "admin";
      setAttribute(set, "aria-label", `Set limit… of queue ${one.name}`);
    },
  };
}
