// Workers: which processes are alive, what they hold, and what waits for them in the queues.

import { plural, age, instant, fullInstant, number } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createGauge } from "../parts/gauge.js";
import { openLimit } from "../parts/queue_limit.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createTable } from "../parts/table.js";
import { button, element, glyph, setAttribute, setText } from "../shell/elements.js";

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
  const workers = createTable({ caption: "Workers", columns: workerColumns(app), keyOf: (one) => one.id, open: () => {} });
  const queues = createTable({ caption: "Queues", columns: queueColumns(app, load), keyOf: (one) => one.name, open: () => {} });
  const content = element("div", { class: "sections" });
  const host = element(
    "main",
    { class: "screen", tabindex: "-1" },
    element("h1", {}, "Workers"),
    summary,
    problem.element,
    content,
  );
  /** @type {{ workers: Worker[], queues: Queue[] } | null} */
  let shown = null;
  let readAt = 0;
  let stopTicks = () => {};

  async function load() {
    readAt = app.clock.now();
    const stopWaiting = afterWait(() => !shown && content.replaceChildren(createSkeleton(4, ["c-status", "c-run", "c-reason"])));
    const [alive, waiting] = await Promise.all([app.api.get("workers"), app.api.get("queues")]);
    stopWaiting();
    if (!alive.ok) return problem.update(problemBanner(alive.problem, load));
    if (!waiting.ok) return problem.update(problemBanner(waiting.problem, load));
    problem.update(null);
    if (!shown) content.replaceChildren(workers.element, element("h2", {}, "Queues"), queues.element);
    shown = { workers: alive.value.workers, queues: waiting.value.queues };
    draw();
  }

  function draw() {
    if (!shown) return;
    const held = shown.workers.reduce((sum, one) => sum + one.held, 0);
    const offered = shown.queues.reduce((sum, one) => sum + one.offered, 0);
    const alive = shown.workers.length
      ? `${number(shown.workers.length)} alive, executing ${plural(held, "run")}`
      : "No process is alive";
    setText(summary, `${alive}. ${plural(offered, "run")} on offer.`);
    workers.update(shown.workers);
    queues.update(shown.queues);
    workers.element.hidden = !shown.workers.length;
  }

  function tick() {
    const isLive = app.feed.connection().state === "live";
    if (isLive && app.clock.now() - readAt >= WORKERS_REFRESH_S) void load();
    else draw();
  }

  return {
    element: host,
    title: () => "Workers",
    keys: [],
    show() {
      stopTicks();
      stopTicks = app.clock.onTick(tick);
      void load();
    },
    hide: () => stopTicks(),
    changed: draw,
  };
}

/**
 * @param {App} app
 * @returns {import("../parts/table.js").Column<Worker>[]}
 */
function workerColumns(app) {
  return [
    { name: "w-status", label: "Status", make: createWorkerStatus },
    { name: "w-worker", label: "Process", make: () => workerText("code", (one) => one.name) },
    { name: "w-held", label: "Runs held", make: () => workerText("span", (one) => number(one.held)) },
    { name: "c-reason", label: "Flows", make: () => workerText("span", (one) => one.flows.join(", ") || "–") },
    {
      name: "w-queues",
      label: "Queues",
      make: () => workerText("span", (one) => (one.is_worker ? one.queues.join(", ") || "all" : "–")),
    },
    { name: "w-version", label: "Version", make: () => workerText("span", (one) => one.version || "–") },
    { name: "w-renewed", label: "Lease renewed", make: () => createRenewed(app) },
  ];
}

/** @returns {import("../shell/elements.js").Part<Worker>} */
function createWorkerStatus() {
  const word = element("span", {});
  const host = element("span", { class: "status" }, glyph("pulse"), word);
  return {
    element: host,
    update(one) {
      setText(word, one.is_worker ? "takes runs" : "executes its own");
      setAttribute(host, "data-tone", one.is_worker ? "accent" : "rest");
    },
  };
}

/** @param {App} app @returns {import("../shell/elements.js").Part<Worker>} */
function createRenewed(app) {
  const host = element("time", {});
  return {
    element: host,
    update(one) {
      const now = app.clock.now();
      const isLive = app.feed.connection().state === "live";
      const ago = age(now - one.seen_at);
      setText(host, isLive ? (ago === "now" ? ago : `${ago} ago`) : instant(one.seen_at, now));
      setAttribute(host, "title", fullInstant(one.seen_at));
    },
  };
}

/**
 * @param {App} app
 * @param {() => void} changed
 * @returns {import("../parts/table.js").Column<Queue>[]}
 */
function queueColumns(app, changed) {
  return [
    { name: "q-name", label: "Queue", make: () => workerText("code", (one) => one.name) },
    { name: "q-offered", label: "On offer", make: () => workerText("span", (one) => number(one.offered)) },
    {
      name: "c-reason",
      label: "Executed",
      make() {
        const gauge = createGauge();
        const words = (/** @type {Queue} */ one) => ({
          used: one.held,
          limit: one.limit,
          words: `${number(one.held)}, no limit`,
        });
        return { element: gauge.element, update: (one) => gauge.update(words(one)) };
      },
    },
    { name: "q-act", label: "What to do", unseen: true, make: () => createLimitButton(app, changed) },
  ];
}

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

/**
 * @template T
 * @param {"span" | "code"} name
 * @param {(one: T) => string} words
 * @returns {import("../shell/elements.js").Part<T>}
 */
function workerText(name, words) {
  const host = element(name, { class: "cut", dir: "auto" });
  return {
    element: host,
    update(one) {
      setText(host, words(one));
      setAttribute(host, "title", words(one).length > 24 && words(one));
    },
  };
}
