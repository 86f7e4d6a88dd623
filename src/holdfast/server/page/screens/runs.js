// Runs: every run of the store, newest first, with the reason why it is where it is.

import { actionOfRow, mayOperate } from "../pure/actions.js";
import { filterParameters, meetsFilters } from "../pure/filters.js";
import { formatQuery } from "../pure/fragments.js";
import { beginList, deletedRow, extendList, receiveRow, releaseFresh } from "../pure/rows.js";
import { countAll, lookOfRun } from "../pure/statuses.js";
import { shownWords, timeOfDay } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createCountTabs, tabsFor } from "../parts/count_tabs.js";
import { createFilters } from "../parts/filters.js";
import { createFirstStart } from "../parts/first_start.js";
import { createNewPill } from "../parts/new_pill.js";
import { createNoMatch } from "../parts/no_match.js";
import { columnsFor, labelsOf } from "../parts/run_columns.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createSpark } from "../parts/spark.js";
import { createTable } from "../parts/table.js";
import { button, element, setAttribute, setText } from "../shell/elements.js";
import { keyHints } from "../shell/keyboard.js";

/**
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {import("../pure/rows.js").RunList} RunList
 * @typedef {import("../shell/app.js").App} App
 */

const PAGE = 50;
/** How many rows are asked for by their ids. */
const ASKED_MAX = 200;
/** How often rows that the stream does not cover, such as those of later pages, are asked for again. */
const REFRESH_S = 5;

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createRunsScreen(app) {
  const view = createView(app, { more: loadMore, showFresh });
  /** @type {Place} */
  let place = { screen: "runs", query: {} };
  /** @type {RunList | null} */
  let list = null;
  /** The runs that the stream keeps up to date. */
  let covered = new Set();
  let asked = "never";
  let loading = new AbortController();
  let refreshedAt = 0;

  /** @param {Place} next */
  function show(next) {
    place = next;
    view.setPlace(place);
    const parameters = parametersOf(place);
    if (formatQuery(parameters) !== asked) void load(parameters);
    else if (list) watch(parameters);
  }

  /** @param {Place} of */
  const parametersOf = (of) => ({ ...filterParameters(of.query, app.clock.now()), limit: [String(PAGE)] });

  /** @param {import("../pure/fragments.js").Query} parameters */
  async function load(parameters) {
    asked = formatQuery(parameters);
    loading.abort();
    const own = (loading = new AbortController());
    const stopWaiting = afterWait(() => view.showLoading());
    const answer = await app.api.get("runs", parameters, own.signal).catch(() => null);
    stopWaiting();
    if (own.signal.aborted || !answer) return;
    if (!answer.ok) {
      list = null;
      asked = "failed";
      return view.showProblem(answer.problem, () => void load(parameters));
    }
    list = beginList(answer.value);
    covered = new Set();
    draw();
    watch(parameters);
  }

  /** @param {import("../pure/fragments.js").Query} parameters */
  function watch(parameters) {
    app.feed.watch(parameters, {
      onRow: receive,
      onIds: (ids) => void (covered = new Set(ids)),
      onOpen: (again) => void (again && refresh()),
    });
  }

  /** @param {Row} row */
  function receive(row) {
    if (!list) return;
    const before = list.rows.find((one) => one.id === row.id);
    const isEmpty = !list.rows.length;
    list = receiveRow(list, row, (one) => meetsFilters(one, place.query, app.clock.now()));
    if (isEmpty) list = releaseFresh(list); // nothing is there that could move
    if (before && before.status !== row.status) app.announce(row.id, `${row.id} is ${lookOfRun(row).word}`);
    draw();
  }

  async function loadMore() {
    if (!list?.next) return;
    const { next } = list;
    const answer = await app.api.get("runs", { ...parametersOf(place), cursor: [next] });
    if (list?.next !== next) return; // meanwhile the list is another one
    if (!answer.ok) return view.showProblem(answer.problem, loadMore);
    list = extendList(list, answer.value);
    draw();
  }

  function showFresh() {
    if (list) list = releaseFresh(list);
    draw();
  }

  /** Ask for the rows in view that the stream does not cover. */
  async function refresh() {
    const rows = view
      .inView()
      .filter((row) => !covered.has(row.id))
      .slice(0, ASKED_MAX);
    refreshedAt = app.clock.now();
    if (!rows.length) return;
    const answer = await app.api.get("runs", { id: rows.map((row) => row.id), limit: [String(ASKED_MAX)] });
    if (!answer.ok) return;
    const found = new Map(answer.value.runs.map((/** @type {Row} */ row) => [row.id, row]));
    for (const row of rows) receive(found.get(row.id) ?? deletedRow(row));
  }

  function tick() {
    if (app.feed.isLive() && app.clock.now() - refreshedAt >= REFRESH_S) void refresh();
    draw();
  }

  function draw() {
    if (list) view.showList(list);
  }

  return {
    element: view.element,
    title: () => "Runs",
    keys: view.keys,
    show,
    tick,
    changed() {
      view.showBoard();
      draw();
    },
  };
}

/** A key of the whole page, which is a hint here. */
const FIND = { keys: ["/"], words: "find", hint: true, act() {} };

/**
 * The elements of the screen, and how they show what the screen knows.
 * @param {App} app
 * @param {{ more: () => void, showFresh: () => void }} acts
 */
function createView(app, { more, showFresh }) {
  /** @type {Place} */
  let place = { screen: "runs", query: {} };
  /** @type {Row[]} */
  let rows = [];
  const tabs = createCountTabs();
  const spark = createSpark();
  const filters = createFilters(
    choicesFrom(app, () => rows),
    app.router.go,
  );
  /** @type {Set<string>} */
  const tabsShown = new Set();
  const columns = columnsFor(app);
  const pill = createNewPill(showFresh);
  const [shown, updated] = [element("p", { class: "shown" }), element("p", { class: "updated" })];
  const problem = createBanner();
  const table = createTable({ caption: "Runs, newest first", columns, keyOf: (row) => row.id, open });
  const moreButton = button("button more", more, `Show ${PAGE} more`);
  const content = element("div", { class: "runs-content" });
  /** @type {import("../pure/keys.js").KeyCommand[]} */
  const keys = [
    { keys: ["j", "k"], words: "move", hint: true, act: move },
    { keys: ["down", "up"], words: "move", act: move },
    { keys: ["enter"], words: "open", hint: true, act: () => withCurrent(open) },
    { keys: ["a"], words: "act", hint: true, act: () => withCurrent(act) },
  ];
  const head = element("div", { class: "runs-head" }, tabs.element, spark.element);
  const tools = element("div", { class: "runs-tools" }, filters.element, pill.element, shown);
  const foot = element("footer", { class: "runs-foot" }, keyHints([...keys, FIND]), updated);
  const host = element(
    "main",
    { class: "screen runs", tabindex: "-1" },
    element("h1", { class: "unseen" }, "Runs"),
    head,
    tools,
    problem.element,
    content,
    foot,
  );

  /** @param {string} key */
  function move(key) {
    table.move(key === "j" || key === "down" ? 1 : -1);
  }

  /** @param {Row} row */
  function open(row) {
    app.router.go({ screen: "run", run: row.id, query: {} });
  }

  /** @param {Row} row */
  function act(row) {
    const action = mayOperate(app.meta().role) ? actionOfRow(row) : null;
    if (action) app.router.go(action.place);
  }

  /** @param {(row: Row) => void} use */
  function withCurrent(use) {
    const row = table.current();
    if (row) use(row);
  }

  /**
   * Show one thing below the filters, and leave it alone if it is there already.
   * @param {string} kind
   * @param {() => Node[]} make
   */
  function fill(kind, make) {
    if (content.dataset.kind !== kind) content.replaceChildren(...make());
    content.dataset.kind = kind;
    setAttribute(host, "data-first-start", kind === "first-start");
  }

  function showBoard() {
    const board = app.feed.board();
    tabs.update(tabsFor(board, place.query, tabsShown));
    spark.element.hidden = !board;
    if (board) spark.update(board.minutes);
  }

  return {
    element: host,
    keys,
    inView: table.inView,
    showBoard,
    /** @param {Place} next */
    setPlace(next) {
      place = next;
      filters.update(place);
      showBoard();
    },
    showLoading() {
      problem.update(null);
      pill.update(0);
      fill("loading", () => [
        createSkeleton(
          15,
          columns.map((column) => column.name),
        ),
      ]);
    },
    /** @param {import("../shapes.js").Problem} found @param {() => void} again */
    showProblem(found, again) {
      problem.update(problemBanner(found, again));
      if (content.dataset.kind === "loading") fill("", () => []);
    },
    /** @param {RunList} list */
    showList(list) {
      rows = list.rows;
      problem.update(null);
      const filtered = Object.keys(place.query).length > 0;
      if (rows.length) fill("table", () => [table.element, moreButton]);
      else if (filtered) fill(`no-match ${formatQuery(place.query)}`, () => [createNoMatch(place)]);
      else fill("first-start", () => [createFirstStart(app.meta())]);
      table.update(rows);
      pill.update(list.fresh.length);
      moreButton.hidden = !list.next;
      const total = filtered ? null : countAll(app.feed.board());
      setText(shown, shownWords(rows.length, total));
      setText(updated, `Updated ${timeOfDay(app.feed.isLive() ? app.clock.now() : app.feed.connection().heardAt)}`);
    },
  };
}

/**
 * What the menus of the filters offer.
 * @param {App} app
 * @param {() => Row[]} rows
 * @returns {import("../parts/filters.js").Known}
 */
function choicesFrom(app, rows) {
  /** @param {string[]} values */
  const choices = (values) =>
    [...new Set(values)]
      .sort()
      .slice(0, 12)
      .map((value) => ({ value, words: value }));
  return {
    flows: () => choices([...app.meta().flows, ...rows().map((row) => row.flow)]),
    labels: () => choices(rows().flatMap(labelsOf)),
    async queues() {
      const answer = await app.api.get("queues");
      return choices(answer.ok ? answer.value.queues.map((/** @type {{ name: string }} */ queue) => queue.name) : []);
    },
  };
}
