// How many runs ended in each of the last 60 minutes: those that failed are below the axis.

import { drawing, element, setText } from "../shell/elements.js";
import { number, timeOfDay } from "../pure/words.js";

const WIDTH = 264;
const UP = 30;
const DOWN = 8;
const STEP = WIDTH / 60;

/** @returns {import("../shell/elements.js").Part<import("../shapes.js").Minute[]>} */
export function createSpark() {
  const [bars, failures] = [drawing("g", { class: "spark-ended" }), drawing("g", { class: "spark-failed" })];
  const [width, height] = [WIDTH, UP + DOWN + 1];
  const picture = drawing(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    bars,
    drawing("path", { class: "spark-axis", d: `M0 ${UP + 0.5}h${width}` }),
    failures,
  );
  const [rate, share, rows] = [element("strong"), element("span", { class: "spark-share" }), element("tbody")];
  const table = element(
    "table",
    { class: "unseen" },
    element("caption", {}, "Runs that ended, by minute"),
    element("thead", {}, createCells("th", ["Minute", "Ended", "Failed"])),
    rows,
  );
  return {
    element: element(
      "div",
      { class: "spark" },
      picture,
      element("p", {}, rate, element("span", {}, "ended, 60 min"), share),
      table,
    ),
    update(minutes) {
      const ends = minutes.map(({ at, completed = 0, failed = 0, cancelled = 0 }) => ({
        at,
        failed,
        ended: completed + failed + cancelled,
      }));
      const most = Math.max(1, ...ends.map(({ ended }) => ended));
      // Both are to one scale, with at least 3 px for what is above zero.
      const high = (/** @type {number} */ count) => count && Math.max(3, (count / most) * UP);
      bars.replaceChildren(...ends.map(({ ended }, at) => createBar(at, UP - high(ended), high(ended))));
      failures.replaceChildren(...ends.map(({ failed }, at) => createBar(at, UP + 1, Math.min(DOWN, high(failed)))));
      rows.replaceChildren(
        ...ends
          .filter(({ ended }) => ended)
          .map(({ at, ended, failed }) => createCells("td", [timeOfDay(at), number(ended), number(failed)])),
      );
      const all = ends.reduce((sum, { ended }) => sum + ended, 0);
      const broken = ends.reduce((sum, { failed }) => sum + failed, 0);
      const percent = (100 * broken) / Math.max(1, all);
      setText(rate, all < minutes.length ? `${all} / h` : `${number(Math.round(all / minutes.length))} / min`);
      setText(share, all ? `${percent < 10 && percent % 1 ? percent.toFixed(1) : Math.round(percent)} % failed` : "");
      share.dataset.tone = broken ? "fail" : "rest";
    },
  };
}

/** @param {number} at @param {number} y @param {number} height */
const createBar = (at, y, height) => drawing("rect", { x: at * STEP + 0.5, y, width: STEP - 1.2, height, rx: 1 });

/** @param {"th" | "td"} tag @param {string[]} words */
const createCells = (tag, words) => element("tr", {}, ...words.map((word) => element(tag, {}, word)));
