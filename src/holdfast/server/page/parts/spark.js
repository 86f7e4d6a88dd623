// How many runs ended in each of the last 60 minutes: those that failed are below the axis.

import { drawing, element, setText } from "../shell/elements.js";
import { number, timeOfDay } from "../pure/words.js";

const WIDTH = 264;
const UP = 30;
const DOWN = 8;
const STEP = WIDTH / 60;

/** @returns {import("../shell/elements.js").Part<import("../shapes.js").Minute[]>} */
export function createSpark() {
  const bars = drawing("g", { class: "spark-ended" });
  const failures = drawing("g", { class: "spark-failed" });
  const axis = drawing("path", { class: "spark-axis", d: `M0 ${UP + 0.5}h${WIDTH}` });
  const picture = drawing(
    "svg",
    {
      class: "spark-picture",
      viewBox: `0 0 ${WIDTH} ${UP + DOWN + 1}`,
      width: WIDTH,
      height: UP + DOWN + 1,
      "aria-hidden": "true",
    },
    bars,
    axis,
    failures,
  );
  const [rate, share] = [element("strong", {}), element("span", { class: "spark-share" })];
  const rows = element("tbody", {});
  const table = element(
    "table",
    { class: "unseen" },
    element("caption", {}, "Runs that ended, by minute"),
    element(
      "thead",
      {},
      element("tr", {}, ...["Minute", "Ended", "Failed"].map((word) => element("th", { scope: "col" }, word))),
    ),
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
      const ended = minutes.map((minute) => (minute.completed ?? 0) + (minute.failed ?? 0) + (minute.cancelled ?? 0));
      const failed = minutes.map((minute) => minute.failed ?? 0);
      const [all, broken] = [sum(ended), sum(failed)];
      const most = Math.max(1, ...ended);
      // Both are to one scale, with at least 3 px for what is above zero.
      bars.replaceChildren(...draw(ended, (count) => [UP - Math.max(3, (count / most) * UP), Math.max(3, (count / most) * UP)]));
      failures.replaceChildren(...draw(failed, (count) => [UP + 1, Math.min(DOWN, Math.max(3, (count / most) * UP))]));
      const perMinute = all / Math.max(1, minutes.length);
      const percent = (100 * broken) / Math.max(1, all);
      setText(rate, perMinute < 1 ? `${all} / h` : `${number(Math.round(perMinute))} / min`);
      setText(share, all ? `${percent < 10 && percent % 1 ? percent.toFixed(1) : Math.round(percent)} % failed` : "");
      share.dataset.tone = broken ? "fail" : "rest";
      rows.replaceChildren(
        ...minutes.flatMap((minute, at) =>
          ended[at]
            ? [
                element(
                  "tr",
                  {},
                  ...[timeOfDay(minute.at), number(ended[at]), number(failed[at])].map((text) => element("td", {}, text)),
                ),
              ]
            : [],
        ),
      );
    },
  };
}

/**
 * @param {number[]} counts
 * @param {(count: number) => [y: number, height: number]} place
 */
const draw = (counts, place) =>
  counts.flatMap((count, at) => {
    if (!count) return [];
    const [y, height] = place(count);
    return [drawing("rect", { x: at * STEP + 0.5, y, width: STEP - 1.2, height, rx: 1 })];
  });

/** @param {number[]} counts */
const sum = (counts) => counts.reduce((total, count) => total + count, 0);
