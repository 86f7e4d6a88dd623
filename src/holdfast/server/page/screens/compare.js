// Compare: two runs side by side, most often a fork and the run that it was forked from.

import { changesFor, dollars, factsOf, forkWords, sideTime, sideWords, timeApart } from "../pure/comparisons.js";
import { formatFragment, hrefOfRun, withQuery } from "../pure/fragments.js";
import { lookOfRun } from "../pure/statuses.js";
import { markNames, markReason, plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createDifference } from "../parts/difference.js";
import { createMenu } from "../parts/menu.js";
import { createPartingLines } from "../parts/parting_lines.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createSlot } from "../parts/slot.js";
import { createStatus } from "../parts/status.js";
import { createTable, textColumn } from "../parts/table.js";
import { createTabs } from "../parts/tabs.js";
import { element, glyph, setAttribute, setSentence, setText } from "../shell/elements.js";

/**
 * @typedef {import("../shapes.js").Comparison} Comparison
 * @typedef {import("../shapes.js").ComparedNode} ComparedNode
 * @typedef {import("../shapes.js").Row} Row
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {import("../shell/app.js").App} App
 */

const COMPARE_REFRESH_S = 3;
const OVER = new Set(["completed", "cancelled"]);

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createCompareScreen(app) {
  /** @type {Place} */
  let place = { screen: "compare", query: {} };
  /** @type {{ found: Comparison, rows: Row[] } | null} */
  let shown = null;
  let asked = "";
  let readAt = 0;

  const problem = createBanner();
  const swap = element("a", { class: "button" }, glyph("swap"), "Swap");
  const other = createMenu({ fill: (panel, close) => fillChooser(app, place, panel, close) });
  other.update({ label: "Choose another run…" });
  const sides = { a: createRunSide("A"), b: createRunSide("B") };
  const lines = createPartingLines();
  const nodes = createTable({
    caption: "Nodes of both runs",
    columns: nodeColumns(() => place),
    keyOf: (node) => node.node,
    open: (node) => app.router.replace(withQuery(place, { node: node.node })),
  });
  const state = createStateDifference(() => place);
  const content = element("div", {});
  const head = element("div", { class: "screen-head" }, element("h1", {}, "Compare"), swap, other.element);
  const host = element("main", { class: "screen compare", tabindex: "-1" }, head, problem.element, content);
  const body = [
    element("div", { class: "compare-sides" }, sides.a.element, sides.b.element),
    lines.element,
    element("div", { class: "compare-panes" }, nodes.element, state.element),
  ];

  const queryOf = ({ a: one, b: two } = place.query) => ({ a: one ?? [], b: two ?? [] });

  async function load() {
    const query = queryOf();
    const wanted = JSON.stringify(query);
    readAt = app.clock.now();
    const stopWaiting = afterWait(() => wanted !== asked && content.replaceChildren(createSkeleton(8, ["c-status", "c-reason"])));
    const [answer, listed] = await Promise.all([
      app.api.get("compare", query),
      app.api.get("runs", { id: [...new Set([...query.a, ...query.b])] }),
    ]);
    stopWaiting();
    if (JSON.stringify(queryOf()) !== wanted) return; // meanwhile others are compared
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => void load()));
    if (!answer.ok) return wanted !== asked && content.replaceChildren();
    if (wanted !== asked) content.replaceChildren(...body);
    asked = wanted;
    shown = { found: answer.value, rows: listed.ok ? listed.value.runs : [] };
    draw();
  }

  function draw() {
    if (!shown) return;
    const { found, rows } = shown;
    for (const side of /** @type {const} */ (["a", "b"])) {
      sides[side].update({ found, side, row: rows.find(({ id }) => id === found[side].id) });
    }
    lines.update(found);
    nodes.update(found.nodes);
    state.update(found);
  }

  function tick() {
    const isOver = !shown || (OVER.has(shown.found.a.status) && OVER.has(shown.found.b.status));
    if (!isOver && app.feed.isLive() && app.clock.now() - readAt >= COMPARE_REFRESH_S) void load();
  }

  return {
    element: host,
    title: () => "Compare",
    keys: [],
    show(next) {
      place = next;
      const query = queryOf();
      setAttribute(swap, "href", formatFragment({ ...place, query: { ...place.query, a: query.b, b: query.a } }));
      if (JSON.stringify(query) === asked) draw();
      else void load();
    },
    tick,
  };
}

/**
 * The menu that chooses the second run by its id.
 * @param {App} app
 * @param {Place} place
 * @param {HTMLElement} panel
 * @param {() => void} close
 */
function fillChooser(app, place, panel, close) {
  const placeWith = (/** @type {string} */ id) => withQuery(place, { b: id, node: undefined });
  const field = element("input", { class: "field", "aria-label": "Id of a run", placeholder: "Id of a run" });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!field.value) return;
    close();
    app.router.go(placeWith(field.value.trim()));
  };
  panel.append(element("form", { class: "menu-form", onsubmit: submit }, field));
}

/**
 * One of the runs: its status, why, and its facts.
 * @param {string} letter
 * @returns {import("../shell/elements.js").Part<{ found: Comparison, side: "a" | "b", row: Row | undefined }>}
 */
function createRunSide(letter) {
  const status = createStatus();
  const run = element("a", { class: "run-link" });
  const sentence = element("p", { class: "sentence whole", dir: "auto" });
  const facts = createSlot("compare-facts", (/** @type {import("../pure/comparisons.js").Fact[]} */ all) =>
    all.map(([label, value]) => element("span", {}, `${label} `, element("b", {}, value))),
  );
  return {
    element: element(
      "section",
      { class: "compare-side panel" },
      element("h2", {}, element("span", { class: "tag" }, letter), status.element, run),
      sentence,
      facts.element,
    ),
    update({ found, side, row }) {
      const { id, status: word, error } = found[side];
      status.update(lookOfRun(row ?? { status: word }));
      setText(run, id);
      setAttribute(run, "href", hrefOfRun(id));
      const why = (side === "b" && forkWords(found)) || row?.reason || error || "";
      setSentence(sentence, markReason(why));
      facts.update(factsOf(found, side, row?.active_s ?? null));
    },
  };
}

/**
 * @param {() => Place} place
 * @returns {import("../parts/table.js").Column<ComparedNode>[]}
 */
function nodeColumns(place) {
  /** @param {"a" | "b"} side @returns {(node: ComparedNode) => string} */
  const time = (side) => (node) => (side === "b" && node.shared ? "" : sideTime(node[side]));
  return [
    { name: "n-node", label: "Node", make: () => createNodeName(place) },
    { name: "n-side", label: "A", make: () => createNodeSide("a") },
    textColumn("n-time", "Time", time("a")),
    { name: "n-side", label: "B", make: () => createNodeSide("b") },
    textColumn("n-time", "Time", time("b")),
    textColumn("n-time", "B − A", timeApart),
    textColumn("n-differs", "State differs in", ({ differs }) => differs.join(", ") || "equal"),
  ];
}

/** @param {() => Place} place @returns {import("../shell/elements.js").Part<ComparedNode>} */
function createNodeName(place) {
  const link = element("a", { class: "run-link" });
  return {
    element: link,
    update({ node }) {
      setText(link, node);
      setAttribute(link, "href", formatFragment(withQuery(place(), { node })));
      setAttribute(link, "aria-current", place().query.node?.[0] === node && "true");
    },
  };
}

/** @param {"a" | "b"} side @returns {import("../shell/elements.js").Part<ComparedNode>} */
function createNodeSide(side) {
  const status = createStatus();
  const plain = element("span", { class: "hint" });
  return {
    element: element("span", { class: "cut" }, status.element, plain),
    update(node) {
      const one = side === "b" && node.shared ? null : node[side];
      const { look, words } = sideWords(one);
      status.element.hidden = !one;
      status.update({ ...look, word: one?.cost.usd ? `${words} · ${dollars(one.cost.usd)}` : words });
      setAttribute(status.element, "title", look.word);
      setText(plain, one ? "" : node[side] ? "shared with A" : words);
    },
  };
}

/**
 * The fields of the state that differ: all, or those that a chosen node has set differently.
 * @param {() => Place} place
 * @returns {import("../shell/elements.js").Part<Comparison>}
 */
function createStateDifference(place) {
  const [title, equal] = [element("h2", {}), element("p", { class: "hint" })];
  const tabs = createTabs("Which fields", "segments");
  const difference = createDifference({ was: ["A", "in A"], now: ["B", "in B"] });
  return {
    element: element(
      "section",
      { class: "compare-state panel", "aria-label": "State" },
      element("header", {}, title, tabs.element),
      difference.element,
      equal,
    ),
    update(found) {
      const node = found.nodes.find((one) => one.node === place().query.node?.[0])?.node;
      const changes = changesFor(found, node);
      setSentence(title, markNames(node ? `State, as ${node} set it` : "State", node ? [node] : []));
      const hrefTo = (/** @type {string | undefined} */ to) => formatFragment(withQuery(place(), { node: to }));
      tabs.element.hidden = !node;
      tabs.update([
        { key: "node", words: "Of the node", count: changes.length, href: hrefTo(node), chosen: true },
        { key: "all", words: "All", count: found.changes.length, href: hrefTo(undefined), chosen: false },
      ]);
      difference.update(changes);
      const none = changes.length ? "" : node ? "It set nothing differently. " : "Nothing differs. ";
      setText(equal, `${none}${plural(found.equal, "field is equal", "fields are equal")}`);
    },
  };
}
