// Run: one run, as it is now or as it was at a checkpoint. Everything on the screen shows the same place in time.

import { VERBS, mayOperate, runOf } from "../pure/actions.js";
import { formatFragment, withQuery } from "../pure/fragments.js";
import { actionsOf, askFor } from "../pure/run_actions.js";
import { waitingVerbs } from "../pure/requests.js";
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
import { createBanner, problemBanner } from "../parts/banner.js";
import { createCheckpointBar } from "../parts/checkpoint_bar.js";
import { createFamilyView } from "../parts/family_view.js";
import { createFilesView } from "../parts/files_view.js";
import { createLedgerView } from "../parts/ledger_view.js";
import { createLogView } from "../parts/log_view.js";
import { createPanel } from "../parts/panel.js";
import { openPreview } from "../parts/preview.js";
import { createRequests } from "../parts/requests.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createStanding } from "../parts/standing.js";
import { createStateView } from "../parts/state_view.js";
import { createTabs, tabTo } from "../parts/tabs.js";
import { element, setAttribute, setText } from "../shell/elements.js";
import { createRunData } from "./run_data.js";
import { createRunDrawings, isNarrow, isPhone } from "./run_drawings.js";

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
  let [stopTicks, stopWaiting] = [() => {}, () => {}];
  /** The node of the panel, and the one that was scrolled to. */
  let [chosen, scrolledTo] = /** @type {(string | null)[]} */ ([null, null]);
  let [shownRun, shownAt] = ["", ""];

  const go = (/** @type {Place} */ next) => app.router.go(next);
  const again = () => data?.readAll();
  const problem = createBanner();
  const [standing, requests, tabs] = [createStanding(act), createRequests(), createTabs("Views")];
  standing.element.append(requests.element);
  standing.acts.prepend(requests.asked);
  const bar = createCheckpointBar({
    go: (seq) => go(placeAt(place, seq)),
    fork: () => act("fork", null),
    resume: () => act("resume", null),
  });
  const drawings = createRunDrawings({
    go,
    choose: (node) => go(withQuery(placeOfNode(place, node), choiceIn(place).view === "log" ? {} : { view: undefined })),
    chooseVisit: (node, visit, item) => go(withQuery(placeOfNode(place, node), { visit, item })),
    chooseIteration: (node, iteration) => go(placeOfVisit(place, node, [iteration, 1])),
    reshape: (shape) => data?.setOpened(shape),
  });
  const [panel, log] = [createPanel(app), createLogView(app)];
  /** @type {Record<string, import("../shell/elements.js").Part<any>>} */
  const views = {
    state: createStateView(app),
    log,
    ledger: createLedgerView(app),
    files: createFilesView(app),
    family: createFamilyView(app),
  };
  const [title, content] = [element("h2", { class: "unseen" }), element("div", { class: "run-view" })];
  const head = element("div", { class: "view-head" }, title, tabs.element, drawings.tools);
  const main = element("div", { class: "run-main" }, head, content, panel.element);
  const body = element("div", { class: "run-body" }, drawings.graph, main);
  const loading = createSkeleton(8, ["c-status", "c-reason"]);
  const parts = [problem.element, standing.element, bar.element, body, loading];
  const host = element("main", { class: "screen run", tabindex: "-1" }, ...parts);
  loading.hidden = true;

  /** @param {Place} next */
  function show(next) {
    stopTicks();
    stopTicks = app.clock.onTick(draw);
    if (next.run !== place.run || !data) {
      data?.stop();
      data = createRunData(app, next.run ?? "", { changed: draw, event: hear, chunk: panel.chunk });
      data.readAll();
    }
    place = next;
    data.setPlace(place.at);
    draw();
  }

  /** @param {import("../shapes.js").RunEvent} event */
  function hear(event) {
    panel.event(event);
    log.event(event);
  }

  function draw() {
    if (!data) return;
    const { known } = data;
    const { run, row, checkpoints } = known;
    const about = run ?? (row && { ...row, remedies: row.remedy ? [row.remedy] : [], questions: [] });
    drawBanners(data, !about);
    if (!about) return;
    shownRun = about.id;
    const [now, isLive, operates] = [app.clock.now(), data.connection().state === "live", mayOperate(app.meta().role)];
    standing.update({
      ...standingOf(known, { now, isLive, isPast: place.at !== undefined, readOnly: operates ? "" : app.meta().name }),
      // Of a run that cannot be read, nothing is known that could be done.
      actions: operates && run ? actionsOf(run, place.at !== undefined, waitingVerbs(known.requests)) : { shown: [], more: [] },
    });
    requests.update({ requests: known.requests, run: about, now });
    const { seq, updated_at: at } = row ?? about;
    bar.element.hidden ||= !checkpoints.length;
    const [acts, final] = [known.timeline?.acts ?? [], ["completed", "cancelled"].includes(about.status)];
    const live = isLive && !final && about.status !== "failed";
    bar.update({ checkpoints, acts, end: { seq, at }, at: place.at ?? null, live, operates, final });
    const [nodes, choice] = [data.nodes(), choiceIn(place)];
    choose(nodes, checkpoints, choice.node);
    drawings.update({ known, nodes, place, chosen, now, again });
    drawView(choice, known, seq);
    panel.element.hidden = Boolean(known.problems.run);
    if (!known.problems.run) panel.update({ place, node: chosen, signs: data.signsOf(chosen ?? ""), checkpoints, end: seq });
    openAsked(choice.node);
  }

  /** @param {RunData} data @param {boolean} isUnknown  nothing is known of the run yet */
  function drawBanners({ known }, isUnknown) {
    const failed = known.problems.run ?? known.problems.row ?? null;
    problem.update(failed && runBanner(failed, again, go));
    // While the same run is read again, it stays as it was.
    if (isUnknown && !failed && shownRun === place.run) return;
    standing.element.hidden = isUnknown;
    bar.element.hidden = body.hidden = isUnknown || Boolean(failed && !known.picture); // what cannot be read is said once
    stopWaiting();
    if (isUnknown && !failed) stopWaiting = afterWait(() => (loading.hidden = false));
    loading.hidden = true;
  }

  /**
   * Choose the node of the panel: the one in the fragment, the one that made the checkpoint, or what wants to be looked at.
   * @param {Record<string, import("../shapes.js").NodeMark>} nodes
   * @param {import("../shapes.js").Checkpoint[]} checkpoints
   * @param {string | null} node
   */
  function choose(nodes, checkpoints, node) {
    // Without a choice, the panel follows the run, but not under the pointer.
    const where = formatFragment({ ...place, query: {} });
    const isLookedAt = where === shownAt && chosen !== null && panel.element.matches(":hover, :focus-within");
    shownAt = where;
    chosen = node ?? checkpointAt(checkpoints)?.node ?? (isLookedAt ? chosen : nodeOfInterest(nodes));
    // A phone has no room for both: what was chosen comes into view.
    if (node && node !== scrolledTo && isPhone()) requestAnimationFrame(() => panel.element.scrollIntoView());
    scrolledTo = node;
  }

  /**
   * The checkpoint that is shown: the place may be any event after it.
   * @param {import("../shapes.js").Checkpoint[]} checkpoints
   */
  const checkpointAt = (checkpoints) => checkpoints.findLast((one) => one.seq <= (place.at ?? 0));

  /**
   * @param {import("../pure/run_choices.js").Choice} choice
   * @param {RunData["known"]} known
   * @param {number} end
   */
  function drawView({ view, node }, { files, geometry, run }, end) {
    const counts = /** @type {Record<string, number>} */ ({
      log: end,
      files: Object.values(files?.artifacts ?? {}).flat().length,
    });
    // Where there is room, the graph is beside all views.
    const shownView = view === "graph" && !isNarrow() ? VIEWS[0] : view;
    tabs.update(
      VIEWS.filter((key) => key !== "family" || key === view || run?.origin || run?.children.length).map((key, number) => ({
        ...tabTo(
          place,
          !number && isPhone() ? "Story" : titled(key),
          { view: number ? key : undefined, from: undefined },
          key === shownView,
        ),
        key,
        count: counts[key],
      })),
    );
    setAttribute(host, "data-view", view);
    setText(title, titled(view));
    const shown = views[view]?.element ?? drawings.timeline;
    if (content.firstElementChild !== shown) content.replaceChildren(shown);
    views[view]?.update({ place, end, go, files, nodes: Object.keys(geometry?.nodes ?? {}), node: node ?? "" });
  }

  /** A link with `do=VERB` opens the dialog of the verb once, and is then a plain link to the run. @param {string | null} node */
  function openAsked(node) {
    const [verb] = place.query.do ?? [];
    if (!verb || !data?.known.run) return;
    app.router.replace(withQuery(place, { do: undefined }));
    act(verb, node);
  }

  /**
   * Ask for a verb: by a preview, or on the screen of questions. A key may come before the run was read; then it waits for that.
   * @param {string} verb
   * @param {string | null} node
   */
  function act(verb, node) {
    if (!data || !mayOperate(app.meta().role) || !Object.hasOwn(VERBS, verb)) return;
    const { run, checkpoints, problems } = data.known;
    if (!run) return problems.run ? undefined : app.router.replace(withQuery(place, { do: verb, node: node ?? undefined }));
    const [answer] = run.remedies.filter((one) => one.verb === "answer"); // its own, or that of a child that it waits for
    if (verb === "answer") return go({ screen: "questions", query: { run: [answer ? runOf(answer) : run.id] } });
    const at = place.at && (checkpointAt(checkpoints)?.seq ?? place.at);
    openPreview(app, { run: run.id, verb, ...askFor(run, { verb, node, at }), done });
  }

  /** @param {any} answer */
  function done(answer) {
    const made = answer.id ?? answer.run?.id; // a fork is another run
    if (typeof made === "string" && made !== place.run) return go({ screen: "run", run: made, query: {} });
    again();
    if (place.at !== undefined) go(placeAt(place, null));
  }

  function goToProblem() {
    const node = nextProblem(data?.nodes() ?? {}, chosen);
    if (node) go(withQuery(placeOfNode(place, node), { view: undefined }));
  }

  /** @param {string} words @param {string[]} keys @param {(key: string) => void} doIt */
  const key = (words, keys, doIt) => ({ keys, words, hint: true, act: doIt });
  const verbKeys = Object.entries(VERB_KEYS).map(([letter, verb]) => key(verb, [letter], () => act(verb, chosen)));
  const digits = TABS.map((_, number) => String(number + 1));
  return {
    element: host,
    title: () => place.run ?? "Run",
    keys: [
      key("checkpoint", ["left", "right"], (pressed) => bar.step(pressed === "left" ? -1 : 1)),
      key("now", ["esc"], () => place.at !== undefined && go(placeAt(place, null))),
      key("next problem", ["n"], goToProblem),
      {
        keys: digits,
        words: "tab of the node",
        act: (digit) => go(withQuery(place, { node: chosen ?? undefined, tab: TABS[Number(digit) - 1], view: undefined })),
      },
      ...verbKeys,
    ],
    show,
    hide() {
      stopTicks();
      data?.stop();
      data = null;
    },
    changed: draw,
    stream: () => data,
  };
}

/**
 * A run that is not there leads to all others; one that is damaged, or of a newer version, can be read again. The detail says
 * what to do about this run.
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
