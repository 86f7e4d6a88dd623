// Doctor: what cannot continue by itself, what waits for an answer, and whether the store is in order. Each with the command and
// the button that helps.

import { actionFor, mayOperate } from "../pure/actions.js";
import { checksOf, findingsInWords, groupFindings, lookOfFinding } from "../pure/findings.js";
import { hrefOfRun } from "../pure/fragments.js";
import { countAll } from "../pure/statuses.js";
import { agoWords, instant, markReason, number, plural } from "../pure/words.js";
import { createBanner, problemBanner } from "../parts/banner.js";
import { createCommand } from "../parts/command.js";
import { setAction } from "../parts/run_columns.js";
import { afterWait, createSkeleton } from "../parts/skeleton.js";
import { createSlot } from "../parts/slot.js";
import { createStatus } from "../parts/status.js";
import { button, element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";

/**
 * @typedef {import("../shapes.js").Finding} Finding
 * @typedef {import("../shapes.js").StoreCheck} StoreCheck
 * @typedef {import("../shell/app.js").App} App
 */

const FINDINGS_SHOWN = 20;

/**
 * @param {App} app
 * @returns {import("../shell/app.js").Screen}
 */
export function createDoctorScreen(app) {
  const [summary, examined] = [element("p", { class: "lead" }), element("span", { class: "hint" })];
  const again = button("button", () => void load(true), glyph("retry"), "Examine again");
  const problem = createBanner();
  const problems = createFindings(app, "Problems", "cannot continue by themselves");
  const waits = createFindings(app, "Wait for a person or a program", "in good order");
  const store = createSlot("store-health panel", (/** @type {StoreCheck[]} */ checks) => [
    element("h2", {}, "Store"),
    element("ul", {}, ...checks.map(createCheck)),
  ]);
  const content = element("div", { class: "doctor-content" });
  const head = element(
    "div",
    { class: "screen-head" },
    element("div", {}, element("h1", {}, "Doctor"), summary),
    examined,
    again,
  );
  /** @type {{ examined_at: number, problems: Finding[], store: StoreCheck[] } | null} */
  let shown = null;
  /** What the board counts: when that changes, the problems may be others. */
  let counted = "";

  /** @param {boolean} anew */
  async function load(anew) {
    again.disabled = true;
    const stopWaiting = afterWait(() => !shown && content.replaceChildren(createSkeleton(6, ["c-status", "c-reason"])));
    const answer = await app.api.get("doctor", anew ? { again: ["true"] } : {});
    stopWaiting();
    again.disabled = false;
    if (!answer.ok) return problem.update(problemBanner(answer.problem, () => void load(anew)));
    problem.update(null);
    shown = answer.value;
    content.replaceChildren(element("div", { class: "findings" }, problems.element, waits.element), store.element);
    draw();
  }

  function draw() {
    if (!shown) return;
    const groups = groupFindings(shown.problems);
    setText(summary, findingsInWords(groups));
    const runs = countAll(app.feed.board());
    const counted = runs === null ? "" : `, ${plural(runs, "run")}`;
    setText(examined, `Examined ${agoWords(app.clock.now() - shown.examined_at)}${counted}`);
    problems.update(groups.problems);
    waits.update(groups.waits);
    store.update(checksOf(shown.store, groups.store));
  }

  return {
    element: element("main", { class: "screen doctor", tabindex: "-1" }, head, problem.element, content),
    title: () => "Doctor",
    keys: [],
    show: () => void load(false),
    changed() {
      const { counts, asks, attention } = app.feed.board() ?? {};
      const now = JSON.stringify([counts, asks, attention]);
      if (shown && now !== counted) void load(false);
      counted = now;
      draw();
    },
    tick: draw,
  };
}

/**
 * @param {App} app
 * @param {string} title
 * @param {string} note
 * @returns {import("../shell/elements.js").Part<Finding[]>}
 */
function createFindings(app, title, note) {
  const count = element("span", { class: "count" });
  const list = element("ul", {});
  const more = button("link findings-more", () => {
    limit = Infinity;
    update(all);
  });
  const host = element(
    "section",
    { class: "panel" },
    element("header", {}, element("h2", {}, title), count, element("span", { class: "hint" }, note)),
    list,
    more,
  );
  const draw = keepChildren(list, keyOf, () => createFinding(app));
  let limit = FINDINGS_SHOWN;
  /** @type {Finding[]} */
  let all = [];
  /** @param {Finding[]} found */
  function update(found) {
    all = found;
    host.hidden = !found.length;
    setText(count, number(found.length));
    draw(found.slice(0, limit));
    more.hidden = found.length <= limit;
    setText(more, `${found.length - limit} more`);
  }
  return { element: host, update };
}

/** @param {Finding} finding */
const keyOf = ({ run_id, kind }) => `${run_id} ${kind}`;

/** @param {App} app @returns {import("../shell/elements.js").Part<Finding>} */
function createFinding(app) {
  const status = createStatus();
  const run = element("a", { class: "run-link" });
  const [flow, since] = [element("span", {}), element("span", { class: "hint" })];
  const reason = element("p", { class: "sentence whole", dir: "auto" });
  const command = createCommand();
  const [open, act] = [element("a", { class: "button small" }, "Open"), element("a", { class: "button small" })];
  const about = element("p", { class: "finding-about" }, run, flow, since);
  return {
    element: element(
      "li",
      { class: "finding" },
      status.element,
      element("div", { class: "finding-body" }, about, reason, command.element),
      element("div", { class: "finding-acts" }, open, act),
    ),
    update(finding) {
      const id = finding.run_id ?? "";
      const now = app.clock.now();
      const here = hrefOfRun(id);
      status.update(lookOfFinding(finding));
      setText(run, id);
      setAttribute(run, "href", here);
      setText(flow, finding.flow ?? "");
      setText(since, finding.since ? `since ${instant(finding.since, now)}` : "");
      setSentence(reason, markReason(finding.reason));
      const remedy = finding.remedies?.[0];
      command.element.hidden = !remedy;
      if (remedy) command.update(remedy.command);
      setAttribute(open, "href", here);
      setAttribute(open, "aria-label", `Open ${id}`);
      const action = remedy && mayOperate(app.meta().role) ? actionFor(id, remedy) : null;
      setAction(act, id, action, "…");
    },
  };
}

/** @param {StoreCheck} check */
const createCheck = ({ title, detail, fault }) =>
  element(
    "li",
    { "data-tone": fault ? "fail" : "done" },
    glyph(fault ? "warning" : "completed"),
    element("div", { dir: "auto" }, title, element("p", { class: "hint" }, fault || detail)),
  );
