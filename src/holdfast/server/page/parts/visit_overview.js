// A visit at a glance: the error with its lines, all attempts, what a crashed one left, why it ran, and the steps that are kept.

import { whenChanged } from "../pure/depending.js";
import { familyRow } from "../pure/families.js";
import { formatFragment, withQuery } from "../pure/fragments.js";
import { statusOfItem, textOfItem } from "../pure/node_views.js";
import { checkLines, policyLines } from "../pure/reasons.js";
import { placeOfVisit } from "../pure/run_choices.js";
import { handledSentence, lookOfAttempt, lookOfRun } from "../pure/statuses.js";
import { attemptTime, attemptWords, excerptOf, leftWords, questionLines, visitFacts, whyItRan } from "../pure/visit_words.js";
import { cutMiddle, fullInstant, instant, markNames } from "../pure/words.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { valueText } from "./difference.js";
import { createErrorFrames } from "./error_frames.js";
import { queryOf } from "./fetched.js";
import { createSlot } from "./slot.js";
import { createStatus } from "./status.js";

/**
 * @typedef {import("../shapes.js").NodeVisit} NodeVisit
 * @typedef {import("../shapes.js").AttemptView} AttemptView
 * @typedef {import("../pure/visit_words.js").Line} Line
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {{ visit: NodeVisit, attempt: AttemptView | null, place: Place, now: number,
 *   mark?: import("../shapes.js").NodeMark }} OverviewView
 *
 * @typedef {object} VisitRow  a row of attempts, items or runs
 * @property {string} key
 * @property {import("../pure/statuses.js").Look} look
 * @property {string} word
 * @property {number | null} [began]
 * @property {string} text
 * @property {string} [note]
 * @property {string} [time]
 * @property {Place} place
 * @property {boolean} [chosen]
 * @property {number} now
 */

const STEP_CHARS = 120;
const STEPS_SHOWN = 20;

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<OverviewView>}
 */
export function createVisitOverview(app) {
  const error = createSlot("", (/** @type {AttemptView["failure"]} */ failure) => (failure ? [createErrorFrames(failure)] : []));
  const rows = createVisitRows("attempts");
  const attempts = element("section", {}, element("h3", {}, "Attempts"), rows.element);
  const runs = createVisitRows("family");
  const called = element("section", {}, element("h3", {}, "Child runs"), runs.element);
  const left = createLeft();
  const none = element("p", { class: "hint" });
  const asked = createSlot("", (/** @type {Line[]} */ lines) => titledList("Asked", lines.map(createWordLine)));
  const [items, side] = [createItems(app), createVisitSide()];
  return {
    element: element(
      "div",
      { class: "visit" },
      element("div", { class: "visit-main" }, none, error.element, asked.element, called, attempts, left.element, items.element),
      side.element,
    ),
    update(view) {
      const { visit, attempt, place, mark, now } = view;
      error.update(attempt?.failure ?? null);
      asked.update(questionLines(visit));
      attempts.hidden = !visit.attempts.length;
      const asks = mark?.waits_for === "question" && !visit.attempts.length;
      const skipped = visit.reasons?.skipped;
      const isLatest = mark?.iteration === visit.iteration && mark.execution === visit.execution;
      const handled = isLatest ? mark?.handled_by : null;
      const isReached = visit.attempts.length + visit.causes.length + visit.questions.length > 0;
      none.hidden = !asks && !skipped && !handled && isReached;
      const waits = asks ? "It begins when its question is answered." : "The run has not reached this node.";
      // The failure that led there is shown below.
      const why = visit.attempts.length ? skipped?.split(":")[0] : skipped;
      setText(none, handled ? handledSentence(handled) : why ? `It was skipped: ${why}.` : waits);
      rows.update(
        visit.attempts.toReversed().map((one) => ({
          key: String(one.attempt),
          look: lookOfAttempt(one),
          word: `attempt ${one.attempt}`,
          began: one.started_at,
          ...attemptWords(one),
          time: attemptTime(one, now),
          place: placeOfVisit(place, visit.node, [visit.iteration, visit.execution, one.attempt]),
          chosen: one === attempt,
          now,
        })),
      );
      called.hidden = !visit.children.length;
      runs.update(visit.children.map((one) => familyRow(one)));
      left.update(visit);
      items.update(view);
      side.update(view);
    },
  };
}

/** Why it ran, the steps that are kept, and what else is known: beside every tab that has room for it. */
export function createVisitSide() {
  const [why, policies, checks] = ["Why it ran", "Policies", "Verification"].map((title) =>
    createSlot("", (/** @type {Line[]} */ lines) => titledList(title, lines.map(createWordLine))),
  );
  const returned = createSlot("", (/** @type {import("../shapes.js").Value | null} */ value) =>
    titledList(
      "Returned, and not used",
      value ? [element("p", { class: "excerpt" }, element("code", {}, valueText(value)))] : [],
    ),
  );
  const steps = createSlot("", (/** @type {NodeVisit["steps"]} */ all) =>
    titledList(
      "Steps kept",
      all.slice(0, STEPS_SHOWN).map((one) => createStep(one)),
    ),
  );
  const facts = createSlot("", (/** @type {[string, string][]} */ all) => {
    const pairs = all.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
    return titledList("This visit", pairs.length ? [element("dl", { class: "visit-facts" }, ...pairs)] : []);
  });
  const [open, excerpt] = [element("a", {}, "Open"), element("code", {})];
  const title = element("header", {}, element("h3", {}, "Input"), open);
  const input = element("div", {}, title, element("p", { class: "excerpt" }, excerpt));
  const parts = [why, policies, checks, returned, steps, facts].map((part) => part.element);
  return {
    element: element("section", { class: "visit-side", "aria-label": "About this visit" }, ...parts, input),
    /** @param {OverviewView} view */
    update({ visit, attempt, place }) {
      const { reasons, status } = visit;
      why.update(whyItRan(visit, attempt));
      policies.update(reasons ? policyLines(reasons) : []);
      checks.update(reasons ? checkLines(reasons) : []);
      returned.update(status === "completed" ? null : (visit.returned ?? null));
      steps.update(visit.steps);
      facts.update(visitFacts(visit));
      input.hidden = !visit.input;
      setAttribute(open, "href", formatFragment(withQuery(place, { node: visit.node, tab: "input" })));
      setText(excerpt, excerptOf(visit.input ?? {}, valueText));
    },
  };
}

/** @param {string} title @param {HTMLElement[]} lines */
const titledList = (title, lines) => (lines.length ? [element("h3", {}, title), ...lines] : []);

/** @param {Line} line */
export function createWordLine({ glyph: mark, tone, text, names, seq, rest }) {
  const words = element("bdi", {});
  setSentence(words, markNames(text, names));
  return createTold(mark, tone, words, rest, seq !== null && element("span", { class: "hint" }, ` @${seq}`));
}

/**
 * A step whose result is kept.
 * @param {NodeVisit["steps"][number]} step
 * @param {boolean} [isWhole]  with all of its result
 */
export function createStep({ name, key, result, attempt, seq }, isWhole = false) {
  const value = ` ${isWhole ? valueText(result) : cutMiddle(valueText(result), STEP_CHARS)}`;
  const line = createTold("kept", "done", element("code", {}, key ? `${name} ${key}` : name), value);
  line.lastElementChild?.classList.add(isWhole ? "wrap" : "cut");
  line.append(element("span", { class: "hint" }, `attempt ${attempt} · @${seq}`));
  return line;
}

/**
 * A line with its glyph.
 * @param {import("../pure/glyphs.js").GlyphName} mark
 * @param {string} tone
 * @param {...import("../shell/elements.js").Child} words
 */
const createTold = (mark, tone, ...words) =>
  element(
    "p",
    { class: "told" },
    element("span", { "data-tone": tone }, glyph(mark)),
    element("span", { dir: "auto" }, ...words),
  );

/** What the last attempt that did not end in order has left. @returns {import("../shell/elements.js").Part<NodeVisit>} */
export function createLeft() {
  const slot = createSlot("", (/** @type {AttemptView | null} */ attempt) => {
    if (!attempt?.left) return [];
    const end = attempt.status === "crashed" ? "crashed" : `was ${attempt.status}`;
    const lines = leftWords(attempt.left).map((one) => createTold(one.glyph, "rest", one.text));
    return titledList(`Left by attempt ${attempt.attempt}, which ${end}`, lines);
  });
  return { element: slot.element, update: ({ attempts }) => slot.update(attempts.findLast((one) => one.left) ?? null) };
}

/**
 * The items of a fan-out, failures first, and more of them when asked for.
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<OverviewView>}
 */
function createItems(app) {
  const [title, rows] = [element("h3", {}), createVisitRows("items")];
  const more = button("link", () => void read());
  const host = element("section", {}, title, rows.element, more);
  /** Those after the ones that the visit has. @type {any[]} */
  let rest = [];
  /** @type {OverviewView} */
  let view;

  async function read() {
    const { node, iteration, execution, items } = view.visit;
    const query = queryOf({ iteration, execution, at: view.place.at, items_from: (items?.length ?? 0) + rest.length });
    const before = rest;
    const answer = await app.api.get(`runs/${view.place.run}/nodes/${node}`, query);
    if (!answer.ok || before !== rest) return;
    rest = [...rest, ...answer.value.items];
    show();
  }

  function show() {
    const { visit, place, mark, now } = view;
    const all = [...(visit.items ?? []), ...rest];
    setText(title, `Items, failures first: ${new Set(all.map((one) => one.item)).size} of ${visit.items_all}`);
    const there = placeOfVisit(place, visit.node, [visit.iteration, visit.execution]);
    rows.update(
      all.map(({ item, label, status: stored, failure, value }) => {
        const status = statusOfItem(stored, mark);
        return {
          key: String(item),
          look: lookOfRun({ status }),
          word: `item ${item}`,
          text: textOfItem(
            label,
            failure ? `${failure.type}: ${failure.message}` : `${status} · ${cutMiddle(valueText(value), STEP_CHARS)}`,
          ),
          place: withQuery(there, { item: String(item) }),
          now,
        };
      }),
    );
    const left = visit.items_all - all.length;
    more.hidden = left <= 0;
    setText(more, `${left} more`);
  }

  const begin = whenChanged((/** @type {Record<string, unknown>} */ _) => (rest = []));

  return {
    element: host,
    update(next) {
      const { visit, place } = next;
      view = next;
      const { node, iteration, execution } = visit;
      begin({ run: place.run, at: place.at, node, iteration, execution });
      host.hidden = !visit.items || visit.item !== null;
      if (!host.hidden) show();
    },
  };
}

/** @param {"attempts" | "items" | "family"} look @returns {import("../shell/elements.js").Part<VisitRow[]>} */
export function createVisitRows(look) {
  const host = element("ul", { class: `visit-rows ${look}` });
  return { element: host, update: keepChildren(host, (/** @type {VisitRow} */ row) => row.key, createVisitRow) };
}

/** @returns {import("../shell/elements.js").Part<VisitRow>} */
function createVisitRow() {
  const [status, began, words] = [createStatus(), element("time", {}), element("span", {})];
  const [note, time] = [element("span", { class: "hint" }), element("span", { class: "hint" })];
  const link = element("a", {}, status.element, began, element("span", { class: "cut", dir: "auto" }, words, " ", note), time);
  return {
    element: element("li", {}, link),
    update({ look, word, began: at, text, note: more = "", time: spent = "", place, chosen, now }) {
      status.update({ ...look, word });
      setText(began, at ? instant(at, now) : "");
      setAttribute(began, "title", at && fullInstant(at));
      setText(words, text);
      setText(note, more);
      setText(time, spent);
      setAttribute(link, "href", formatFragment(place));
      setAttribute(link, "aria-current", chosen && "true");
    },
  };
}
