// Questions: what runs ask, soonest deadline first, and a form for the one that is chosen. What was typed into a form stays while
// others are looked at.

import { mayOperate } from "../pure/actions.js";
import { formatFragment } from "../pure/fragments.js";
import { isAboutCrash, keyOfAsked, lookOfQuestion, receiveQuestions, reorder, whenWords } from "../pure/questions.js";
import { markNames, plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createCommand } from "../parts/command.js";
import { createQuestionForm } from "../parts/question_form.js";
import { createQuestionSide } from "../parts/question_side.js";
import { createRequests } from "../parts/requests.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { keyHints } from "../shell/keyboard.js";

/**
 * @typedef {import("../shapes.js").AskedQuestion} Asked
 * @typedef {import("../shapes.js").QuestionDetails} QuestionDetails
 * @typedef {import("../pure/questions.js").QuestionList} QuestionList
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {import("../shell/app.js").App} App
 *
 * @typedef {object} Opened  a question that was opened, with its form
 * @property {QuestionDetails} details
 * @property {HTMLElement} element
 * @property {import("../parts/question_form.js").QuestionForm | null} form  null if the token may not answer
 * @property {() => void} tick  a second has passed
 * @property {boolean} waits  an answer was given that no process has carried out yet
 * @property {(details: QuestionDetails, facts: Facts) => void} update
 *
 * @typedef {object} Facts  what is known about its run
 * @property {Record<string, import("../shapes.js").NodeMark>} marks
 * @property {any} visit  of a node that crashed
 * @property {import("../shapes.js").RunRequest[]} requests
 * @property {import("../shapes.js").Row | null} row
 */

const QUESTIONS_REFRESH_S = 5;
const QUESTIONS_PAGE = "200";
const PAGES_MAX = 5;

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
  let stopTicks = () => {};

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
    const answer = await readOpen(app);
    stopWaiting();
    if ("problem" in answer) return problem.update(problemBanner(answer.problem, () => void load()));
    problem.update(null);
    const waited = list?.fresh.length ?? 0;
    list = receiveQuestions(list, answer.open);
    if (list.fresh.length > waited) app.announce("questions", plural(list.fresh.length, "new question"));
    return choosePlace();
  }

  /** Open what the address names; without that, the first question, which then stays. */
  function choosePlace() {
    const [run] = place.query.run ?? [];
    const [key] = place.query.key ?? [];
    const shown = list?.shown ?? [];
    const first = run
      ? shown.find((one) => one.run_id === run && (!key || one.question.key === key))
      : (shown.find((one) => keyOfAsked(one) === current) ?? shown[0]);
    const next = first ? keyOfAsked(first) : run && key ? `${run} ${key}` : "";
    const known = opened.get(next);
    const isClosed = Boolean(list?.closed.has(next));
    const isNews = known && (known.waits || (first && isClosed !== (known.details.closing !== null)));
    setAttribute(host, "data-chosen", Boolean(run));
    if (next && (next !== current || isNews || !known)) void open(next);
    else if (!next) showNothing(run);
    draw();
  }

  /** @param {string} key  of a question */
  async function open(key) {
    current = key;
    const [run, question] = [key.slice(0, key.indexOf(" ")), key.slice(key.indexOf(" ") + 1)];
    const known = opened.get(key);
    if (known) showIn(detail, known.element);
    const [asked, picture, listed, requested] = await Promise.all([
      app.api.get(`runs/${run}/questions`, { key: [question] }),
      app.api.get(`runs/${run}/picture`),
      app.api.get("runs", { id: [run] }),
      app.api.get(`runs/${run}/requests`),
    ]);
    if (current !== key) return;
    if (!asked.ok) {
      const text = problemBanner(asked.problem, () => void open(key));
      return known ? problem.update(text) : showProblem(text); // a form with an answer in it stays
    }
    /** @type {QuestionDetails} */
    const details = asked.value.questions[0];
    const { node } = details.question;
    const visit = isAboutCrash(details.question) ? await app.api.get(`runs/${run}/nodes/${node}`) : null;
    /** @type {import("../shapes.js").Row | null} */
    const row = listed.ok ? (listed.value.runs[0] ?? null) : null;
    const [program, rest] = row?.remedy?.command.split(" answer ") ?? [];
    const made =
      opened.get(key) ?? createOpened(app, details, { program: rest ? program : "holdfast", sent: () => void again(key) });
    opened.set(key, made);
    made.update(details, {
      marks: picture.ok ? picture.value.nodes : {},
      visit: visit?.ok ? visit.value : null,
      requests: requested.ok ? requested.value.requests : [],
      row,
    });
    if (current === key) showIn(detail, made.element);
    return draw();
  }

  /** Look again at a question that was answered here, or that may have been answered elsewhere. @param {string} key */
  async function again(key) {
    await Promise.all([load(), open(key)]);
  }

  /** @param {import("../parts/banner.js").BannerText} text */
  function showProblem(text) {
    const banner = createBanner();
    banner.update(text);
    detail.replaceChildren(banner.element);
  }

  /** @param {string | undefined} run */
  function showNothing(run) {
    current = "";
    detail.replaceChildren(
      element(
        "section",
        { class: "no-match" },
        element("h2", {}, run ? "This run asks nothing" : "No run asks anything"),
        element("p", { class: "hint" }, "A question appears here as soon as a run asks it."),
        run && element("a", { class: "button", href: formatFragment({ screen: "run", run, query: {} }) }, "Open the run"),
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
    if (app.feed.connection().state === "live" && app.clock.now() - readAt >= QUESTIONS_REFRESH_S) void load();
    else draw();
  }

  return {
    element: host,
    title: () => "Questions",
    keys,
    show(next) {
      place = next;
      stopTicks();
      stopTicks = app.clock.onTick(tick);
      if (list) choosePlace();
      else void load();
    },
    hide() {
      stopTicks();
      if (list) list = reorder(list);
    },
    changed() {
      const board = app.feed.board();
      if (board && board.asks !== asks && host.isConnected && list) void load();
      asks = board?.asks ?? asks;
    },
  };
}

/**
 * All open questions, as far as a reader can look through them.
 * @param {App} app
 * @returns {Promise<{ open: Asked[] } | { problem: import("../shapes.js").Problem }>}
 */
async function readOpen(app) {
  /** @type {Asked[]} */
  const open = [];
  /** @type {string | null} */
  let cursor = null;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const query = /** @type {import("../pure/fragments.js").Query} */ ({
      limit: [QUESTIONS_PAGE],
      ...(cursor ? { cursor: [cursor] } : {}),
    });
    const answer = await app.api.get("questions", query);
    if (!answer.ok) return { problem: answer.problem };
    open.push(...answer.value.questions);
    cursor = answer.value.next;
    if (!cursor) break;
  }
  return { open };
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
  const [text, run, node, when] = [
    element("strong", { dir: "auto" }),
    element("code", {}),
    element("span", {}),
    element("span", {}),
  ];
  const mark = element("span", {});
  const link = element("a", {}, mark, text, element("span", { class: "question-about" }, run, " · ", node), when);
  let shown = "";
  return {
    element: element("li", {}, link),
    update(asked) {
      const { list, current } = state();
      const { question, run_id } = asked;
      const isClosed = Boolean(list?.closed.has(keyOfAsked(asked)));
      const look = lookOfQuestion(question);
      const mood = isClosed ? "tick" : look.glyph;
      if (mood !== shown) mark.replaceChildren(glyph((shown = mood)));
      setAttribute(mark, "data-tone", isClosed ? "rest" : look.tone);
      setText(text, question.text);
      setText(run, run_id);
      setText(node, question.node);
      setText(when, isClosed ? "closed" : whenWords(question, app.clock.now()));
      setAttribute(when, "class", question.until && !isClosed ? "question-when due" : "question-when");
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
  const side = createQuestionSide();
  const title = element("h2", { dir: "auto" });
  const { question, run_id, flow } = first;
  setSentence(title, markNames(question.text.replace(`'${question.node}'`, question.node), [question.node]));
  const [ago, due] = [element("span", {}), element("span", { class: "due", "data-tone": "ask" })];
  const about = element(
    "p",
    { class: "question-head" },
    element("code", {}, run_id),
    ` · flow ${flow} · asked by `,
    element("code", {}, question.node),
    " ",
    ago,
    due,
  );
  /** @type {import("../parts/requests.js").Requested} */
  let requested;
  const back = element("a", { class: "phone-only", href: "#/questions" }, "All questions");
  const host = element(
    "article",
    { class: "question" },
    back,
    about,
    title,
    element(
      "div",
      { class: "question-columns" },
      element("div", { class: "question-answer" }, requests.asked, requests.element, form?.element ?? createReadOnly(app)),
      side.element,
    ),
  );
  /** @type {Opened} */
  const made = {
    details: first,
    element: host,
    form,
    waits: false,
    tick() {
      const now = app.clock.now();
      setText(ago, whenWords({ ...question, until: null }, now).replace("asked ", ""));
      setText(due, question.until ? whenWords(question, now) : "");
      if (made.waits) requests.update({ ...requested, now });
    },
    update(details, { marks, visit, requests: asked, row }) {
      made.details = details;
      const now = app.clock.now();
      side.update({ details, marks, visit, now });
      form?.close(details.closing);
      // Other requests to the run are shown on its own screen.
      const answers = asked.filter((one) => one.verb === "answer");
      made.waits = answers.some((one) => one.status === "waiting");
      const run = { id: run_id, flow, held_by: null, updated_at: 0, ...row, remedies: row?.remedy ? [row.remedy] : [] };
      requested = { requests: answers, run, now };
      requests.update(requested);
      made.tick();
    },
  };
  return made;
}

/** @param {App} app */
function createReadOnly(app) {
  const command = createCommand();
  command.update(`holdfast token create ${app.meta().name} --role operate`);
  return element(
    "div",
    { class: "read-only" },
    element("p", {}, `Token “${app.meta().name}” may only read. To answer, open a link made with an operate token.`),
    command.element,
  );
}
