// The timeline: who held the run, every attempt as a bar, waits dotted, acts of people as diamonds. Dragging zooms time, a double
// click shows all of it again. A table with the same facts is beside it for those who do not see the drawing.

import { storyOf } from "../pure/stories.js";
import { LOOKS } from "../pure/statuses.js";
import { createTimeScale } from "../pure/time_scale.js";
import { BAR_ROW_PX, actShapes, axisShapes, gridShapes, heldShapes, overShapes, rowShapes } from "../pure/timeline_shapes.js";
import { busyTimes, holderGaps, timelineRows, wholeTime } from "../pure/timelines.js";
import { visibleRows } from "../pure/windows.js";
import { cutMiddle, instant } from "../pure/words.js";
import { button, drawing, element, glyph, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { oncePerFrame } from "../shell/frames.js";

/**
 * @typedef {import("../pure/timeline_shapes.js").Shape} Shape
 * @typedef {import("../pure/timelines.js").TimelineRow} TimelineRow
 * @typedef {import("../pure/time_scale.js").TimeScale} TimeScale
 *
 * @typedef {object} TimelineView
 * @property {import("../shapes.js").Timeline} timeline
 * @property {import("../pure/timelines.js").TimelineNode[]} nodes  in the order of the flow, as they were at the checkpoint
 * @property {string | null} chosen
 * @property {{ seq: number, at: number } | null} checkpoint  null: now
 * @property {number} now
 *
 * @typedef {{ node: string, visit?: string, item?: string }} Choice  `visit`: "ITERATION.EXECUTION.ATTEMPT"
 */

const LABEL_PX = 204;
/** Above this many rows, only those in view are drawn, and completed ones can be hidden. */
const ROWS_WINDOWED_FROM = 40;
const DRAG_PX = 4;
const LINES_MAX = 200;

/**
 * @param {{ choose: (choice: Choice) => void }} options
 * @returns {import("../shell/elements.js").Part<TimelineView> & { tools: HTMLElement }}  `tools`: the switches, for the head of
 *   the pane
 */
export function createTimeline({ choose }) {
  const [axis, held, people] = [createLayer("lane axis"), createLayer("lane"), createLayer("lane")];
  const [under, over] = [createLayer("timeline-under"), createLayer("timeline-over")];
  const folds = element("div", { class: "timeline-folds", "aria-hidden": "true" });
  const drawFolds = keepChildren(folds, (/** @type {Fold} */ fold) => fold.key, createFold);
  const list = element("ul", {});
  const room = element("div", { class: "timeline-room" }, list);
  const rows = element("div", { class: "timeline-rows", onscroll: () => drawSoon() }, room);
  const drawRows = keepChildren(
    list,
    (/** @type {DrawnRow} */ one) => one.row.name,
    () => createTimelineRow(choose),
  );
  const peopleRow = element(
    "div",
    { class: "timeline-row" },
    element("span", { class: "timeline-label" }, "People"),
    people.element,
  );
  const beginning = element("p", { class: "hint timeline-beginning" });
  const lines = element("tbody", {});
  const host = element(
    "div",
    { class: "timeline", role: "group", "aria-label": "Timeline" },
    folds,
    under.element,
    element("div", { class: "timeline-axis" }, axis.element),
    element("div", { class: "timeline-held" }, element("span", { class: "timeline-label" }, "Held by"), held.element),
    rows,
    peopleRow,
    over.element,
    beginning,
    element(
      "table",
      { class: "unseen" },
      element("caption", {}, "What happened, newest first"),
      element(
        "thead",
        {},
        element("tr", {}, ...["When", "What", "Status", "Details"].map((word) => element("th", { scope: "col" }, word))),
      ),
      lines,
    ),
  );
  const fold = createSwitch("Fold idle time", true, () => draw());
  const hide = createSwitch("Hide completed", false, () => draw());
  const reset = button("button small", () => zoom(null), "Show all of the time");
  const tools = element("div", { class: "timeline-tools" }, reset, hide.element, fold.element);

  /** @type {TimelineView | null} */
  let view = null;
  /** @type {{ from: number, to: number } | null} */
  let zoomed = null;
  /** @type {[number, number] | null} */
  let marked = null;
  /** @type {TimeScale | null} */
  let scale = null;
  /** The chosen row that was brought into view last. @type {string | null} */
  let revealed = null;

  function draw() {
    if (!view || !host.clientWidth) return; // it is drawn when it gets a width
    const { timeline, now, chosen, checkpoint } = view;
    const whole = wholeTime(timeline, now);
    const width = Math.max(120, rows.clientWidth - LABEL_PX);
    const busy = busyTimes(timeline, now);
    scale = createTimeScale({ ...(zoomed ?? whole), busy, width: width - (whole.isOpen ? 24 : 88), fold: fold.isOn() });
    const all = timelineRows(timeline, view.nodes, now);
    const isLong = all.length > ROWS_WINDOWED_FROM;
    hide.element.hidden = !isLong;
    reset.hidden = !zoomed;
    const hides = isLong && hide.isOn();
    const shown = all.filter((row) => !hides || row.name === chosen || !["completed", "skipped"].includes(row.look.word));
    // That somebody started the run is where the axis begins.
    const acts = timeline.acts.filter((act) => act.verb !== "start" && act.verb !== "fork");
    const isRunning = timeline.attempts.some((bar) => bar.status === "running");
    axis.update(axisShapes(scale, width, checkpoint?.at));
    held.update(heldShapes(timeline.holders, holderGaps(timeline), scale, now));
    people.update(actShapes(acts, scale, width));
    peopleRow.hidden = !acts.length;
    under.update(gridShapes(scale));
    drawFolds(scale.stretches.filter((one) => one.folded).map((one) => ({ key: String(one.from), x: one.x, width: one.width })));
    over.update(overShapes({ acts, checkpoint, now: isRunning ? now : null, marked }, scale));
    drawVisible(shown, scale);
    setText(beginning, timeline.beginning && `The earlier events are in ${timeline.beginning}.`);
    beginning.hidden = !timeline.beginning;
  }

  /** @param {TimelineRow[]} shown @param {TimeScale} on */
  function drawVisible(shown, on) {
    if (!view) return;
    const { now, chosen } = view;
    const count = shown.length;
    room.style.height = `${count * BAR_ROW_PX}px`;
    const top = shown.findIndex((row) => row.name === chosen) * BAR_ROW_PX;
    const isOut = top < rows.scrollTop || top + BAR_ROW_PX > rows.scrollTop + rows.clientHeight;
    if (chosen !== revealed && isOut && top >= 0) rows.scrollTop = top - rows.clientHeight / 2;
    revealed = chosen;
    const seen = visibleRows({
      count,
      rowHeight: BAR_ROW_PX,
      scrolled: rows.scrollTop,
      height: count > ROWS_WINDOWED_FROM ? rows.clientHeight : count * BAR_ROW_PX,
    });
    list.style.transform = `translateY(${seen.above}px)`;
    const drawn = shown.slice(seen.from, seen.to);
    drawRows(drawn.map((row) => ({ row, chosen: row.name === chosen, shapes: rowShapes(row, on, now) })));
  }

  const drawSoon = oncePerFrame(draw);

  /** @param {{ from: number, to: number } | null} next */
  function zoom(next) {
    zoomed = next;
    draw();
  }

  new ResizeObserver(drawSoon).observe(host);
  host.addEventListener("dblclick", (event) => !isOnLabel(event) && zoom(null));
  onDrag(host, {
    mark(from, to) {
      marked = [from, to];
      drawSoon();
    },
    done(from, to) {
      marked = null;
      const [a, b] = [scale?.timeOf(Math.min(from, to)) ?? 0, scale?.timeOf(Math.max(from, to)) ?? 0];
      zoom(b - a > 0.01 ? { from: a, to: b } : zoomed);
    },
  });

  return {
    element: host,
    tools,
    update(next) {
      if (view?.timeline !== next.timeline) drawLines(lines, next);
      if (view && view.timeline.run_id !== next.timeline.run_id) zoomed = null;
      view = next;
      draw();
    },
  };
}

/** A drawing that is kept in step with a list of shapes. @param {string} look */
function createLayer(look) {
  const host = drawing("svg", { class: look, "aria-hidden": "true" });
  return { element: host, update: keepChildren(host, (/** @type {Shape} */ shape) => shape.key, createShape) };
}

/**
 * @param {Shape} shape
 * @returns {import("../shell/elements.js").Part<Shape>}
 */
function createShape({ name, words }) {
  const made = drawing(name);
  const said = name === "text" || words === undefined ? made : made.appendChild(drawing("title"));
  return {
    element: /** @type {HTMLElement} */ (/** @type {unknown} */ (made)),
    update(next) {
      for (const [attribute, value] of Object.entries(next.attributes)) setAttribute(made, attribute, value);
      if (next.words !== undefined) setText(said, next.words);
    },
  };
}

/** @typedef {{ key: string, x: number, width: number }} Fold */

/** @returns {import("../shell/elements.js").Part<Fold>} */
function createFold() {
  const strip = element("div", { class: "fold" });
  return {
    element: strip,
    update({ x, width }) {
      strip.style.left = `${x}px`;
      strip.style.width = `${width}px`;
    },
  };
}

/** @typedef {{ row: TimelineRow, chosen: boolean, shapes: Shape[] }} DrawnRow */

/**
 * @param {(choice: Choice) => void} choose
 * @returns {import("../shell/elements.js").Part<DrawnRow>}
 */
function createTimelineRow(choose) {
  let name = "";
  let shownGlyph = "";
  const [mark, word] = [element("span", { class: "timeline-glyph" }), element("span", { class: "unseen" })];
  const [code, count, time] = [element("code", {}), element("span", {}), element("span", { class: "timeline-time" })];
  const once = element("span", { class: "once", title: "not idempotent" }, "1×");
  const label = button("timeline-label", () => choose({ node: name }), mark, code, count, once, word, time);
  const lane = createLayer("lane");
  lane.element.addEventListener("click", (event) => {
    const bar = /** @type {SVGElement} */ (event.target).dataset;
    choose({ node: name, visit: bar.visit, item: bar.item });
  });
  const host = element("li", { class: "timeline-row" }, label, lane.element);
  return {
    element: host,
    update({ row, chosen, shapes }) {
      name = row.name;
      if (row.look.glyph !== shownGlyph) mark.replaceChildren(glyph(row.look.glyph, row.look.turns ? "turns" : ""));
      shownGlyph = row.look.glyph;
      setAttribute(mark, "data-tone", row.look.tone);
      setText(code, cutMiddle(row.name, 15 - row.count.length));
      setAttribute(label, "title", code.textContent === row.name ? null : row.name);
      setText(count, row.count);
      setText(word, ` ${row.look.word} `);
      setText(time, row.time);
      once.hidden = !row.once;
      setAttribute(label, "aria-pressed", String(chosen));
      setAttribute(host, "data-chosen", chosen);
      setAttribute(host, "data-unreached", row.look.glyph === "unreached");
      lane.update(shapes);
    },
  };
}

/** @param {string} words @param {boolean} isOn @param {() => void} changed */
function createSwitch(words, isOn, changed) {
  const box = element("input", { type: "checkbox", checked: isOn, onchange: changed });
  return { element: element("label", { class: "check" }, words, box), isOn: () => box.checked };
}

/** @param {HTMLElement} body @param {TimelineView} view */
function drawLines(body, { timeline, now }) {
  const cells = storyOf(timeline, now)
    .slice(0, LINES_MAX)
    .map(({ at, title, glyph, detail }) => [
      instant(at, now),
      title.map((part) => part.text).join(""),
      LOOKS[glyph]?.word ?? "",
      detail,
    ]);
  body.replaceChildren(...cells.map((words) => element("tr", {}, ...words.map((word) => element("td", {}, word)))));
}

/** @param {Event} event */
const isOnLabel = (event) => Boolean(/** @type {Element} */ (event.target).closest("button"));

/**
 * Follow a drag along the lanes. A finger scrolls instead.
 * @param {HTMLElement} host
 * @param {{ mark: (from: number, to: number) => void, done: (from: number, to: number) => void }} act
 */
function onDrag(host, act) {
  /** @type {number | null} */
  let from = null;
  let isDragging = false;
  /** @param {MouseEvent} event */
  const place = (event) => Math.max(0, event.clientX - host.getBoundingClientRect().left - LABEL_PX);
  host.addEventListener("pointerdown", (event) => {
    const isLane = event.button === 0 && event.pointerType !== "touch" && !isOnLabel(event);
    [from, isDragging] = [isLane ? place(event) : null, false];
  });
  host.addEventListener("pointermove", (event) => {
    if (from === null || (!isDragging && Math.abs(place(event) - from) < DRAG_PX)) return;
    if (!isDragging) host.setPointerCapture(event.pointerId);
    isDragging = true;
    act.mark(from, place(event));
  });
  host.addEventListener("pointerup", (event) => {
    if (isDragging && from !== null) act.done(from, place(event));
    from = null;
  });
  host.addEventListener("pointercancel", () => (from = null));
  // The click that ends a drag chooses nothing.
  host.addEventListener("click", (event) => isDragging && !isOnLabel(event) && event.stopPropagation(), { capture: true });
}
