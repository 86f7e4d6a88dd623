// Run: one run, as it is now or as it was at a checkpoint. Everything on the screen shows the same place in time.

import { VERBS, mayOperate } from "../pure/actions.js";
import { formatFragment, withQuery } from "../pure/fragments.js";
import { actionsOf, askFor } from "../pure/run_actions.js";
import {
  TABS,
  VIEWS,
  choiceIn,
  nextProblem,
  nodeOfInterest,
  placeAt,
  placeOfNode,
  placeOfVisit,
  titled,
} from "../pure/run_choices.js";
import { standingOf } from "../pure/run_facts.js";
import { timeOfDay } from "../pure/words.js";
import { connectionBanner, createBanner, problemBanner } from "../parts/banner.js";
import { createCheckpointBar } from "../parts/checkpoint_bar.js";
import { createFilesView } from "../parts/files_view.js";
import { createLogView } from "../parts/log_view.js";
import { createPanel } from "../parts/panel.js";
import { openPreview } from "../parts/preview.js";
import { createRequests } from "../parts/requests.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createStanding } from "../parts/standing.js";
import { createStateView } from "../parts/state_view.js";
import { createTabs } from "../parts/tabs.js";
import { element, setAttribute, setText } from "../shell/elements.js";
import { createRunData } from "./run_data.js";
import { createRunDrawings } from "./run_drawings.js";

/**
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {import("../shell/app.js").App} App
 * @typedef {import("./run_data.js").RunData} RunData
 */

const VERB_KEYS = { r: "resume", t: "retry", s: "skip", o: "fork" };

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createRunScreen(app) {
  /** @type {Place} */
  let place = { screen: "run", run: "", query: {} };
  /** @type {RunData | null} */
  let data = null;
  let stopTicks = () => {};
  const view = createRunView(app, {
    go: (next) => app.router.go(next),
    act,
    place: () => place,
    reshape: (shape) => data?.setOpened(shape),
    retry: () => data?.retry(),
    again: () => data?.readAll(),
  });

  /** @param {Place} next */
  function show(next) {
    stopTicks();
    stopTicks = app.clock.onTick(draw);
    if (next.run !== place.run || !data) {
      data?.stop();
      data = createRunData(app, next.run ?? "", { changed: draw, event: view.event, chunk: view.chunk });
      data.readAll();
    }
    place = next;
    data.setPlace(place.at);
    draw();
  }

  function draw() {
    if (!data) return;
    view.update(place, data);
    openAsked();
  }

  /** A link with `do=VERB` opens the dialog of the verb once, and is then a plain link to the run. */
  function openAsked() {
    const [verb] = place.query.do ?? [];
    if (!verb || !data?.known.run) return;
    const node = choiceIn(place).node;
    app.router.replace(withQuery(place, { do: undefined }));
    act(verb, node);
  }

  /**
   * Ask for a verb: by a preview, or on the screen of questions.
   * @param {string} verb
   * @param {string | null} node
   */
  function act(verb, node) {
    const known = data?.known;
    if (!known?.run || !mayOperate(app.meta().role) || !(verb in VERBS)) return;
    const { run } = known;
    // A run is resumed and forked from a checkpoint; the place that is shown may be any event after it.
    const at = place.at && (known.checkpoints.findLast((one) => one.seq <= Number(place.at))?.seq ?? place.at);
    if (verb === "answer") return app.router.go({ screen: "questions", query: { run: [run.id] } });
    const asked = askFor({ ...run, asks: run.questions.length, failed: run.failed_node }, { verb, node, at });
    openPreview(app, { run: run.id, verb, ...asked, done });
  }

  /** @param {any} answer */
  function done(answer) {
    const made = answer.id ?? answer.run?.id; // a fork is another run
    if (typeof made === "string" && made !== place.run) return app.router.go({ screen: "run", run: made, query: {} });
    data?.readAll();
    if (place.at !== undefined) app.router.go(placeAt(place, null));
  }

  function goToProblem() {
    const node = nextProblem(data?.nodes() ?? {}, view.node());
    if (node) app.router.go(withQuery(placeOfNode(place, node), { view: undefined }));
  }

  /** @param {string} tab */
  const goToTab = (tab) => app.router.go(withQuery(place, { node: view.node() ?? undefined, tab, view: undefined }));
  return {
    element: view.element,
    title: () => place.run ?? "Run",
    keys: [
      { keys: ["left", "right"], words: "checkpoint", hint: true, act: (key) => view.step(key === "left" ? -1 : 1) },
      { keys: ["esc"], words: "now", hint: true, act: () => place.at !== undefined && app.router.go(placeAt(place, null)) },
      { keys: ["n"], words: "next problem", hint: true, act: goToProblem },
      { keys: TABS.map((_, at) => String(at + 1)), words: "tab of the node", act: (key) => goToTab(TABS[Number(key) - 1]) },
      ...Object.entries(VERB_KEYS).map(([key, verb]) => ({
        keys: [key],
        words: verb,
        hint: true,
        act: () => act(verb, view.node()),
      })),
    ],
    show,
    hide() {
      stopTicks();
      data?.stop();
      data = null;
    },
    changed: draw,
  };
}

const isPhone = () => matchMedia("(max-width: 640px)").matches;

/**
 * The elements of the screen, and how they show what is known of the run.
 * @param {App} app
 * @param {object} acts
 * @param {(place: Place) => void} acts.go
 * @param {(verb: string, node: string | null) => void} acts.act
 * @param {() => Place} acts.place
 * @param {(shape: import("../parts/graph.js").Shape) => void} acts.reshape
 * @param {() => void} acts.retry
 * @param {() => void} acts.again
 */
function createRunView(app, { go, act, place: placeOf, reshape, retry, again }) {
  const [banner, problem] = [createBanner(), createBanner()];
  const [standing, requests, tabs] = [createStanding(act), createRequests(), createTabs("Views")];
  standing.element.append(requests.element);
  standing.acts.prepend(requests.asked);
  const bar = createCheckpointBar({
    go: (seq) => go(placeAt(placeOf(), seq)),
    fork: () => act("fork", null),
    resume: () => act("resume", null),
  });
  const drawings = createRunDrawings({
    go,
    choose(node) {
      const to = placeOfNode(placeOf(), node);
      go(choiceIn(to).view === "log" ? to : withQuery(to, { view: undefined }));
    },
    chooseVisit: (node, visit, item) => go(withQuery(placeOfNode(placeOf(), node), { visit, item })),
    chooseIteration: (node, iteration) => go(placeOfVisit(placeOf(), node, [iteration, 1])),
    reshape,
  });
  const [panel, log] = [createPanel(app), createLogView(app)];
  /** @type {Record<string, import("../shell/elements.js").Part<any>>} */
  const views = { state: createStateView(app), log, files: createFilesView(app) };
  const [content, loading] = [element("div", { class: "run-view" }), createSkeleton(8, ["c-status", "c-reason"])];
  const title = element("h2", { class: "unseen" });
  const head = element("div", { class: "view-head" }, title, tabs.element, drawings.tools);
  const main = element("div", { class: "run-main" }, head, content, panel.element);
  const body = element("div", { class: "run-body" }, drawings.graph, main);
  const parts = [banner.element, problem.element, standing.element, bar.element, body, loading];
  const host = element("main", { class: "screen run", tabindex: "-1" }, ...parts);
  loading.hidden = true;
  let [chosen, scrolledTo] = /** @type {(string | null)[]} */ ([null, null]);
  let [shownRun, shownAt, stopWaiting] = ["", "", () => {}];

  /**
   * Show what is known of the run; false if that is nothing yet.
   * @param {Place} place
   * @param {RunData} data
   * @param {unknown} about
   */
  function showBanners(place, { known, connection: connected }, about) {
    const connection = connected();
    const since = timeOfDay(connection.heardAt);
    banner.update(connectionBanner(connection, { now: Date.now() / 1000, since, retry }));
    const failed = known.problems.run ?? known.problems.row ?? null;
    problem.update(failed && runBanner(failed, again, go));
    // While the same run is read again, it stays as it was.
    if (!about && !failed && shownRun === place.run) return;
    standing.element.hidden = !about;
    bar.element.hidden = body.hidden = !about || Boolean(failed && !known.picture); // what cannot be read is said once
    stopWaiting();
    if (!about && !failed) stopWaiting = afterWait(() => (loading.hidden = false));
    loading.hidden = true;
  }

  /** @param {Place} place @param {RunData} data */
  function update(place, data) {
    const { known } = data;
    const { row } = known;
    const about = known.run ?? (row && { ...row, remedies: row.remedy ? [row.remedy] : [], questions: [] });
    showBanners(place, data, about);
    if (!about) return;
    shownRun = place.run ?? "";
    const [now, isPast, isLive] = [app.clock.now(), place.at !== undefined, data.connection().state === "live"];
    const operates = mayOperate(app.meta().role);
    const acts = { ...about, asks: about.questions.length, failed: known.run?.failed_node ?? null };
    standing.update({
      ...standingOf(known, { now, isLive, readOnly: operates ? "" : app.meta().name }),
      // Of a run that cannot be read, nothing is known that could be done.
      actions: operates && known.run ? actionsOf(acts, isPast) : { shown: [], more: [] },
    });
    requests.update({ requests: known.requests, run: about, now });
    const end = { seq: row?.seq ?? about.seq, at: row?.updated_at ?? about.updated_at };
    bar.element.hidden ||= !known.checkpoints.length;
    bar.update({ checkpoints: known.checkpoints, end, at: place.at ?? null, live: isLive, operates });
    const [nodes, choice] = [data.nodes(), choiceIn(place)];
    choose(place, data, choice.node);
    drawings.update({ known, nodes, place, chosen, now, again });
    showView(place, choice, data, end.seq);
    const mark = nodes[chosen ?? ""];
    if (!known.problems.run) panel.update({ place, node: chosen, mark, checkpoints: known.checkpoints, end: end.seq });
    panel.element.hidden = Boolean(known.problems.run);
  }

  /**
   * Choose the node of the panel: the one in the fragment, the one that made the checkpoint, or what wants to be looked at.
   * @param {Place} place
   * @param {RunData} data
   * @param {string | null} node
   */
  function choose(place, data, node) {
    const { at } = place;
    const maker = at === undefined ? null : data.known.checkpoints.findLast((one) => one.seq <= at)?.node;
    // Without a choice, the panel follows the run, but not under the pointer.
    const where = formatFragment({ ...place, query: {} });
    const isLookedAt = where === shownAt && chosen !== null && panel.element.matches(":hover, :focus-within");
    shownAt = where;
    chosen = node ?? maker ?? (isLookedAt ? chosen : nodeOfInterest(data.nodes()));
    // A phone has no room for both: what was chosen comes into view.
    if (node && node !== scrolledTo && isPhone()) requestAnimationFrame(() => panel.element.scrollIntoView());
    scrolledTo = node;
  }

  /**
   * @param {Place} place
   * @param {import("../pure/run_choices.js").Choice} choice
   * @param {RunData} data
   * @param {number} end
   */
  function showView(place, { view, node }, { known }, end) {
    const files = Object.values(known.files?.artifacts ?? {}).flat().length;
    const counts = /** @type {Record<string, number>} */ ({ log: end, files });
    tabs.update(
      VIEWS.map((key) => ({
        key,
        words: isPhone() && key === VIEWS[0] ? "Story" : titled(key),
        count: counts[key],
        href: formatFragment(withQuery(place, { view: key === VIEWS[0] ? undefined : key, from: undefined })),
        chosen: key === view,
      })),
    );
    setAttribute(host, "data-view", view);
    setText(title, titled(view));
    const part = views[view];
    const shown = part?.element ?? drawings.timeline;
    if (content.firstElementChild !== shown) content.replaceChildren(shown);
    const nodes = Object.keys(known.geometry?.nodes ?? {});
    part?.update({ place, end, go, run: place.run, at: place.at, files: known.files, nodes, node: node ?? "" });
  }

  return {
    element: host,
    update,
    step: bar.step,
    node: () => chosen,
    /** @param {import("../shapes.js").RunEvent} event */
    event(event) {
      panel.event(event);
      log.event(event);
    },
    chunk: panel.chunk,
  };
}

/**
 * A run that is not there leads to all others; one that is damaged, or of a newer version, can be read again. The detail says what
 * to do about this run.
 * @param {import("../shapes.js").Problem} failed
 * @param {() => void} again
 * @param {(place: Place) => void} go
 */
function runBanner(failed, again, go) {
  const banner = problemBanner(failed, again);
  if (failed.status !== 404 && failed.status !== 409) return banner;
  const action = failed.status === 404 ? { words: "All runs", act: () => go({ screen: "runs", query: {} }) } : banner.action;
  return { ...banner, detail: failed.detail, action };
}
