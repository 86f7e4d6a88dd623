// Questions: what runs ask, soonest deadline first, and a form for the one that is chosen. What was typed into a form stays while
// others are looked at.

import { mayOperate } from "../pure/actions.js";
import { formatFragment, hrefOfRun } from "../pure/fragments.js";
import { byName } from "../pure/groups.js";
import {
  doubtsOf,
  keyOfAsked,
  lookOfQuestion,
  questionWords,
  receiveQuestions,
  reorder,
  untilWords,
  whenWords,
} from "../pure/questions.js";
import { agoWords, markNames, plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createQuestionForm } from "../parts/question_form.js";
import { createQuestionSide } from "../parts/question_side.js";
import { createRequests } from "../parts/requests.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createStatus } from "../parts/status.js";
import { button, element, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { keyHints } from "../shell/keyboard.js";

/**
 * @typedef {import("../shapes.js").AskedQuestion} Asked
 * @typedef {import("../shapes.js").QuestionDetails} QuestionDetails
 * @typedef {import("../pure/questions.js").QuestionList} QuestionList
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {import("../shell/app.js").App} App
 *
 * @typedef {object} Opened  a question that was opened, with its form
 * @property {HTMLElement} element
 * @property {import("../parts/question_form.js").QuestionForm | null} form  null if the token may not answer
 * @property {number} doubts  steps of which an answer can say that they have happened
 * @property {() => void} tick  a second has passed
 * @property {(details: QuestionDetails, facts: Facts) => void} update
 *
 * @typedef {object} Facts  what is known about its run
 * @property {Record<string, import("../shapes.js").NodeMark>} marks
 * @property {import("../shapes.js").NodeVisit | null} visit  of the node, unless it asks by itself
 * @property {import("../shapes.js").RunRequest[]} requests
 * @property {import("../shapes.js").Row | null} row
 */

const QUESTIONS_REFRESH_S = 5;
/** As far as a reader can look through them. */
const QUESTIONS_MAX = 1000;

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createQuestionsScreen(app) {
  /** @type {Place} */
  let place = { screen: "questions", query: {} };
  /** @type {QuestionList | null} */
  let list = null;
  /** Questions that were opened, with what was typed. @type {Map<string, Opened>} */
  const opened = new Map();
  let current = "";
  let readAt = 0;
  let asks = -1;

  const problem = createBanner();
  const pill = button("new-pill", () => {
    if (list) list = reorder(list);
    draw();
  });
  const count = element("span", { class: "count", "data-tone": "ask" });
  const rows = element("ul", { class: "question-list", "aria-label": "Open questions" });
  const drawRows = keepChildren(rows, keyOfAsked, () => createQuestionRow(app, () => ({ list, current })));
  const detail = element("div", { class: "question-detail" });
  /** @type {import("../pure/keys.js").KeyCommand[]} */
  const keys = [
    { keys: ["j", "k"], words: "move", hint: true, act: (key) => move(key === "j" ? 1 : -1) },
    { keys: ["1–9"], words: "choose", hint: true, act: choose },
    { keys: [..."123456789"], words: "choose", act: choose },
    { keys: ["ctrl+enter"], words: "answer", hint: true, act: () => opened.get(current)?.form?.send() },
  ];
  const host = element(
    "main",
    { class: "screen questions", tabindex: "-1" },
    element(
      "section",
      { class: "questions-side" },
      element("header", {}, element("h1", {}, "Questions"), count, pill),
      problem.element,
      rows,
      keyHints(keys),
    ),
    detail,
  );

  /** @param {string} key */
  function choose(key) {
    opened.get(current)?.form?.choose(Number(key));
  }

  /** @param {number} by */
  function move(by) {
    const shown = list?.shown ?? [];
    const at = shown.findIndex((one) => keyOfAsked(one) === current);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    if (next) app.router.replace(placeOf(next));
  }

  async function load() {
    readAt = app.clock.now();
    const stopWaiting = afterWait(() => !list && detail.replaceChildren(createSkeleton(4, ["c-reason"])));
    /** @type {Asked[]} */
    const open = [];
    /** @type {import("../pure/fragments.js").Query} */
    let query = { limit: ["200"] };
    while (query.cursor?.[0] !== null && open.length < QUESTIONS_MAX) {
      const answer = await app.api.get("questions", query);
      stopWaiting();
      problem.update(answer.ok ? null : problemBanner(answer.problem, () => void load()));
      if (!answer.ok) return;
      open.push(...answer.value.questions);
      query = { ...query, cursor: [answer.value.next] };
    }
    const waited = list?.fresh.length ?? 0;
    list = receiveQuestions(list, open);
    if (list.fresh.length > waited) app.announce("questions", plural(list.fresh.length, "new question"));
    choosePlace();
  }

  /** Open what the address names; without that, the first question, which then stays. */
  function choosePlace() {
    const [[run], [key]] = [place.query.run ?? [], place.query.key ?? []];
    const shown = list?.shown ?? [];
    const first = run
      ? shown.find((one) => one.run_id === run && (!key || one.question.key === key))
      : (shown.find((one) => keyOfAsked(one) === current) ?? shown[0]);
    current = first ? keyOfAsked(first) : run && key ? `${run} ${key}` : "";
    setAttribute(host, "data-chosen", Boolean(run));
    if (current) void open(current);
    else showNothing(run);
    draw();
  }

  /** Show a question as it is now: it may have been answered elsewhere. @param {string} key */
  async function open(key) {
    const [run, ...rest] = key.split(" ").map((part, at) => (at ? part : encodeURIComponent(part)));
    const known = opened.get(key);
    if (known) showIn(detail, known.element);
    const [asked, picture, listed, requested] = await Promise.all([
      app.api.get(`runs/${run}/questions`, { key: [rest.join(" ")] }),
      app.api.get(`runs/${run}/picture`),
      app.api.get("runs", { id: [run] }),
      app.api.get(`runs/${run}/requests`),
    ]);
    if (current !== key) return;
    if (!asked.ok) {
      const text = problemBanner(asked.problem, () => void open(key));
      if (known) return problem.update(text); // a form with an answer in it stays
      const banner = createBanner();
      banner.update(text);
      return detail.replaceChildren(banner.element);
    }
    /** @type {QuestionDetails} */
    const details = asked.value.questions[0];
    const { question } = details;
    const visit = question.about !== "ask" ? await app.api.get(`runs/${run}/nodes/${question.node}`) : null;
    /** @type {import("../shapes.js").Row | null} */
    const row = (listed.ok && listed.value.runs[0]) || null;
    if (opened.get(key)?.doubts !== doubtsOf(question).length) opened.delete(key); // one of several steps was settled
    const [program, words] = row?.remedy?.command.split(" answer ") ?? [];
    const made =
      opened.get(key) ?? createOpened(app, details, { program: (words && program) || "holdfast", sent: () => void load() });
    opened.set(key, made);
    made.update(details, {
      marks: byName(picture.ok ? picture.value.nodes : {}),
      visit: visit?.ok ? visit.value : null,
      requests: requested.ok ? requested.value.requests : [],
      row,
    });
    if (current === key) showIn(detail, made.element);
  }

  /** @param {string | undefined} run */
  function showNothing(run) {
    detail.replaceChildren(
      element(
        "section",
        { class: "no-match" },
        element("h2", {}, run ? "This run asks nothing" : "No run asks anything"),
        run && element("a", { class: "button", href: hrefOfRun(run) }, "Open the run"),
      ),
    );
  }

  function draw() {
    if (!list) return;
    drawRows(list.shown);
    opened.get(current)?.tick();
    const open = list.shown.length - list.closed.size + list.fresh.length;
    setText(count, String(open));
    count.hidden = !open;
    pill.hidden = !list.fresh.length;
    setText(pill, plural(list.fresh.length, "new question"));
  }

  function tick() {
    if (app.feed.isLive() && app.clock.now() - readAt >= QUESTIONS_REFRESH_S) void load();
    else draw();
  }

  return {
    element: host,
    title: () => "Questions",
    keys,
    show(next) {
      place = next;
      if (list) choosePlace();
      else void load();
    },
    hide() {
      if (list) list = reorder(list);
    },
    tick,
    changed() {
      const now = app.feed.board()?.asks ?? asks;
      if (now !== asks && list) void load();
      asks = now;
    },
  };
}

/** Show an element, and leave it alone, with its focus, if it is shown already. @param {Element} where @param {Element} what */
function showIn(where, what) {
  if (where.firstElementChild !== what) where.replaceChildren(what);
}

/** @param {Asked} asked @returns {Place} */
const placeOf = ({ run_id, question }) => ({ screen: "questions", query: { run: [run_id], key: [question.key] } });

/**
 * @param {App} app
 * @param {() => { list: QuestionList | null, current: string }} state
 * @returns {import("../shell/elements.js").Part<Asked>}
 */
function createQuestionRow(app, state) {
  const status = createStatus();
  const [text, about, when] = [element("strong", { dir: "auto" }), element("span", { class: "cut" }), element("span", {})];
  const link = element("a", {}, status.element, text, about, when);
  return {
    element: element("li", {}, link),
    update(asked) {
      const { list, current } = state();
      const { question, run_id } = asked;
      const isClosed = list?.closed.has(keyOfAsked(asked));
      status.update(isClosed ? { word: "closed", glyph: "tick", tone: "rest" } : lookOfQuestion(question));
      setText(text, questionWords(question));
      setSentence(about, markNames(`${run_id} · ${question.node}`, [run_id]));
      setText(when, isClosed ? "closed" : whenWords(question, app.clock.now()));
      setAttribute(link, "href", formatFragment(placeOf(asked)));
      setAttribute(link, "aria-current", keyOfAsked(asked) === current && "true");
    },
  };
}

/**
 * @param {App} app
 * @param {QuestionDetails} first
 * @param {object} options
 * @param {string} options.program
 * @param {() => void} options.sent
 * @returns {Opened}
 */
function createOpened(app, first, { program, sent }) {
  const form = mayOperate(app.meta().role) ? createQuestionForm(app, first, { program, sent }) : null;
  const requests = createRequests();
  const side = createQuestionSide(app.clock.now);
  const { question, run_id, flow } = first;
  const title = element("h2", { dir: "auto" });
  setSentence(title, markNames(questionWords(question), [question.node]));
  const [about, due] = [element("span", {}), element("span", { "data-tone": "ask" })];
  /** @type {import("../parts/requests.js").Requested} */
  let requested;
  /** @type {Opened} */
  const made = {
    element: element(
      "article",
      { class: "question" },
      element("a", { class: "phone-only", href: "#/questions" }, "All questions"),
      element("p", { class: "question-head" }, about, due),
      title,
      element("div", { class: "question-answer" }, requests.asked, requests.element, form?.element ?? createReadOnly(app)),
      side.element,
    ),
    form,
    doubts: doubtsOf(question).length,
    tick() {
      const now = app.clock.now();
      const asked = `${run_id} · flow ${flow} · asked by ${question.node} ${agoWords(now - question.asked_at)}`;
      setSentence(about, markNames(asked, [run_id, question.node]));
      setText(due, question.until ? ` · ${untilWords(question, now)}` : "");
      requests.update({ ...requested, now });
    },
    update(details, { marks, visit, requests: asked, row }) {
      side.update({ details, marks, visit });
      form?.close(details.closing);
      // Other requests to the run are shown on its own screen.
      const answers = asked.filter(({ verb }) => verb === "answer");
      const run = { id: run_id, flow, held_by: null, updated_at: 0, ...row, remedies: row?.remedy ? [row.remedy] : [] };
      requested = { requests: answers, run, now: 0 };
      made.tick();
    },
  };
  return made;
}

/** @param {App} app */
function createReadOnly(app) {
  const { name } = app.meta();
  const words = `Token “${name}” may only read. To answer, open a link made with an operate token: `;
  return element("p", { class: "hint" }, words, element("code", {}, `holdfast token create ${name} --role operate`));
}
