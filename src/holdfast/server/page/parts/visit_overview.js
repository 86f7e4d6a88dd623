// A visit at a glance: the error with its lines, all attempts, what a crashed one left, why it ran, and the steps that are kept.

import { formatFragment, withQuery } from "../pure/fragments.js";
import { placeOfVisit } from "../pure/run_choices.js";
import { LOOKS, lookOfRun } from "../pure/statuses.js";
import { attemptTime, attemptWords, leftWords, visitFacts, whyItRan } from "../pure/visit_words.js";
import { fullInstant, instant, markNames } from "../pure/words.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { valueText } from "./difference.js";
import { createErrorFrames } from "./error_frames.js";
import { createSlot } from "./slot.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").AttemptView} AttemptView
 * @typedef {import("../pure/visit_words.js").Line} Line
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {{ visit: NodeVisit, attempt: AttemptView | null, place: Place, now: number }} OverviewView
 */

const STEP_CHARS = 120;
const EXCERPT_CHARS = 300;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<OverviewView>}
 */
export function createVisitOverview(app) {
  const error = createSlot("", (/** @type {AttemptView["failure"]} */ failure) => (failure ? [createErrorFrames(failure)] : []));
  const rows = element("ul", { class: "attempts" });
  const attempts = element("section", {}, element("h3", {}, "Attempts"), rows);
  const drawAttempts = keepChildren(
    rows,
    (/** @type {{ attempt: AttemptView }} */ row) => String(row.attempt.attempt),
    createAttempt,
  );
  const left = createSlot("", createLeft);
  const none = element("p", { class: "hint" }, "The run has not reached this node.");
  const items = createItems(app);
  const side = createVisitSide();
  return {
    element: element(
      "div",
      { class: "visit" },
      element("div", { class: "visit-main" }, none, error.element, attempts, left.element, items.element),
      side.element,
    ),
    update(view) {
      const { visit, attempt, place } = view;
      error.update(attempt?.failure ?? null);
      attempts.hidden = !visit.attempts.length;
      none.hidden = Boolean(visit.attempts.length || visit.causes.length);
      drawAttempts([...visit.attempts].reverse().map((one) => ({ ...view, attempt: one, isShown: one === attempt })));
      left.update(visit.attempts.findLast((one) => one.left) ?? null);
      items.update({ visit, place });
      side.update(view);
    },
  };
}

/** Why it ran, the steps that are kept, and what else is known: beside every tab that has room for it. */
export function createVisitSide() {
  const why = createSlot("", (/** @type {Line[]} */ lines) =>
    lines.length ? [element("h3", {}, "Why it ran"), ...lines.map(createWordLine)] : [],
  );
  const steps = createSlot("", createSteps);
  const facts = createSlot("", (/** @type {[string, string][]} */ all) =>
    all.length
      ? [
          element("h3", {}, "This visit"),
          element(
            "dl",
            { class: "visit-facts" },
            ...all.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
          ),
        ]
      : [],
  );
  const input = createSlot("", (/** @type {{ text: string, href: string } | null} */ given) =>
    given
      ? [
          element("h3", {}, "Input ", element("a", { href: given.href }, "Open")),
          element("p", { class: "excerpt" }, element("code", { dir: "auto" }, given.text)),
        ]
      : [],
  );
  return {
    element: element(
      "section",
      { class: "visit-side", "aria-label": "About this visit" },
      why.element,
      steps.element,
      facts.element,
      input.element,
    ),
    /** @param {OverviewView} view */
    update({ visit, attempt, place }) {
      const href = formatFragment(withQuery(place, { node: visit.node, tab: "input" }));
      input.update(visit.input && { text: excerptOf(visit.input), href });
      why.update(whyItRan(visit, attempt));
      steps.update(visit.steps);
      facts.update(visitFacts(visit));
    },
  };
}

/** The beginning of an input. @param {Record<string, import("../shapes.js").Value>} input */
function excerptOf(input) {
  const text = Object.entries(input).map(([name, value]) => `"${name}": ${valueText(value).slice(0, STEP_CHARS)}`);
  const line = `{ ${text.join(", ")} }`;
  return line.length > EXCERPT_CHARS ? `${line.slice(0, EXCERPT_CHARS)}…` : line;
}

/** @param {Line} line */
function createWordLine({ glyph: mark, tone, text, names, seq }) {
  const words = element("span", { dir: "auto" });
  setSentence(words, markNames(text, names));
  return element(
    "p",
    { class: "told" },
    element("span", { "data-tone": tone }, glyph(mark)),
    element("span", {}, words, seq === null ? null : element("span", { class: "hint" }, ` @${seq}`)),
  );
}

/** @returns {import("../shell/elements.js").Part<OverviewView & { attempt: AttemptView, isShown?: boolean }>} */
function createAttempt() {
  const status = createStatus();
  const [began, words, note, time] = [
    element("time", {}),
    element("span", {}),
    element("span", { class: "hint" }),
    element("span", { class: "hint" }),
  ];
  const link = element(
    "a",
    { class: "attempt" },
    status.element,
    began,
    element("span", { class: "cut", dir: "auto" }, words, " ", note),
    time,
  );
  return {
    element: element("li", {}, link),
    update({ visit, attempt, place, now, isShown }) {
      status.update({ ...lookOfAttempt(attempt), word: `attempt ${attempt.attempt}` });
      setText(began, attempt.started_at === null ? "–" : instant(attempt.started_at, now));
      setAttribute(began, "title", attempt.started_at !== null && fullInstant(attempt.started_at));
      const said = attemptWords(attempt);
      setText(words, said.text);
      setText(note, said.note);
      setText(time, attemptTime(attempt, now));
      setAttribute(
        link,
        "href",
        formatFragment(placeOfVisit(place, visit.node, [visit.iteration, visit.execution, attempt.attempt])),
      );
      setAttribute(link, "aria-current", isShown && "true");
    },
  };
}

/** @param {AttemptView} attempt */
const lookOfAttempt = (attempt) => (attempt.status === "crashed" ? LOOKS.crashed : lookOfRun(attempt));

/** @param {AttemptView | null} attempt */
function createLeft(attempt) {
  const found = attempt?.left ? leftWords(attempt.left) : [];
  if (!attempt || !found.length) return [];
  const lines = found.map((one) =>
    element(
      "p",
      { class: "told" },
      element("span", { class: "hint" }, glyph(one.glyph)),
      element("span", { dir: "auto" }, one.text),
    ),
  );
  return [
    element(
      "h3",
      {},
      `Left by attempt ${attempt.attempt}, which ${attempt.status === "crashed" ? "crashed" : `was ${attempt.status}`}`,
    ),
    ...lines,
  ];
}

/** @param {NodeVisit["steps"]} steps */
function createSteps(steps) {
  if (!steps.length) return [];
  const lines = steps
    .slice(0, 20)
    .map((step) =>
      element(
        "p",
        { class: "told" },
        element("span", { "data-tone": "done" }, glyph("kept")),
        element("span", { class: "cut" }, element("code", {}, step.name), ` ${valueText(step.result).slice(0, STEP_CHARS)}`),
        element("span", { class: "hint" }, `attempt ${step.attempt}`),
      ),
    );
  return [element("h3", {}, "Steps kept"), ...lines];
}

/**
 * The items of a fan-out, failures first, and more of them when asked for.
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<{ visit: NodeVisit, place: Place }>}
 */
function createItems(app) {
  const [title, list] = [element("h3", {}), element("ul", { class: "attempts" })];
  const more = button("link", () => void read());
  const host = element("section", {}, title, list, more);
  const draw = keepChildren(list, (/** @type {any} */ one) => String(one.item), createItem);
  /** Those after the ones that the visit has. @type {any[]} */
  let rest = [];
  let shown = "";
  /** @type {{ visit: NodeVisit, place: Place }} */
  let view;

  async function read() {
    const { node, iteration, execution, items } = view.visit;
    const from = (items?.length ?? 0) + rest.length;
    const query = { iteration: [String(iteration)], execution: [String(execution)], items_from: [String(from)] };
    const key = shown;
    const answer = await app.api.get(`runs/${view.place.run}/nodes/${node}`, query);
    if (!answer.ok || key !== shown) return;
    rest = [...rest, ...answer.value.items];
    show();
  }

  function show() {
    const { visit, place } = view;
    const all = [...(visit.items ?? []), ...rest];
    setText(title, `Items, failures first: ${new Set(all.map((one) => one.item)).size} of ${visit.items_all}`);
    draw(all.map((one) => ({ ...one, visit, place })));
    const left = visit.items_all - all.length;
    more.hidden = left <= 0;
    setText(more, `${left} more`);
  }

  return {
    element: host,
    update(next) {
      const { visit, place } = next;
      const key = JSON.stringify([place.run, place.at, visit.node, visit.iteration, visit.execution]);
      if (key !== shown) rest = [];
      [view, shown] = [next, key];
      host.hidden = !visit.items || visit.item !== null;
      if (!host.hidden) show();
    },
  };
}

function createItem() {
  const status = createStatus();
  const words = element("span", { class: "cut", dir: "auto" });
  const link = element("a", { class: "attempt" }, status.element, words);
  return {
    element: element("li", {}, link),
    /** @param {any} one */
    update(one) {
      status.update({ ...lookOfRun(one), word: `item ${one.item}` });
      setText(
        words,
        one.failure
          ? `${one.failure.type}: ${one.failure.message}`
          : `${one.status} · ${valueText(one.value).slice(0, STEP_CHARS)}`,
      );
      const there = placeOfVisit(one.place, one.visit.node, [one.visit.iteration, one.visit.execution]);
      setAttribute(link, "href", formatFragment({ ...there, query: { ...there.query, item: [String(one.item)] } }));
    },
  };
}
