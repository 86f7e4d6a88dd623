// The timeline: who held the run, every attempt as a bar, waits dotted, acts of people as diamonds. Dragging zooms time, a double
// click shows all of it again. A table with the same facts is beside it for those who do not see the drawing.

import { storyOf } from "../pure/stories.js";
import { createTimeScale } from "../pure/time_scale.js";
import { BAR_ROW_PX, actShapes, axisShapes, gridShapes, heldShapes, overShapes, rowShapes } from "../pure/timeline_shapes.js";
import { busyTimes, holderGaps, timelineRows, wholeTime } from "../pure/timelines.js";
import { visibleRows } from "../pure/windows.js";
import { cutMiddle, instant } from "../pure/words.js";
import { button, drawing, element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { oncePerFrame } from "../shell/frames.js";
import { createOnce } from "./graph_node.js";
import { createStatus } from "./status.js";

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
  under.element.append(hatch());
  const list = element("ul", {});
  const room = element("div", {}, list);
  const rows = element("div", { class: "timeline-rows", onscroll: () => drawSoon() }, room);
  const drawRows = keepChildren(
    list,
    (/** @type {DrawnRow} */ one) => one.row.name,
    () => createTimelineRow(choose),
  );
  const peopleRow = createLane("timeline-row", "People", people);
  const beginning = element("p", { class: "hint timeline-beginning" });
  const lines = element("tbody", {});
  const host = element(
    "div",
    { class: "timeline", role: "group", "aria-label": "Timeline" },
    under.element,
    element("div", { class: "timeline-axis" }, axis.element),
    createLane("timeline-held", "Held by", held),
    rows,
    peopleRow,
    over.element,
    beginning,
    element(
      "table",
      { class: "unseen" },
      element("caption", {}, "What happened, newest first"),
      element("thead", {}, tableRow("th", ["When", "What", "Status", "Details"])),
      lines,
    ),
  );
  const fold = createSwitch("Fold idle time", true, draw);
  const hide = createSwitch("Hide completed", false, draw);
  const reset = button("button small", () => zoom(null), "Show all of the time");

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
    const used = width - (whole.isOpen ? 24 : 88);
    scale = createTimeScale({ ...(zoomed ?? whole), busy, width: used, fold: fold.isOn(), now });
    const all = timelineRows(timeline, view.nodes, checkpoint?.at ?? now);
    const isLong = all.length > ROWS_WINDOWED_FROM;
    hide.element.hidden = !isLong;
    reset.hidden = !zoomed;
    const hides = isLong && hide.isOn();
    // That somebody started the run is where the axis begins.
    const acts = timeline.acts.filter((act) => act.verb !== "start" && act.verb !== "fork");
    const isRunning = timeline.attempts.some((bar) => bar.status === "running");
    axis.update(axisShapes(scale, width, checkpoint?.at));
    held.update(heldShapes(timeline.holders, holderGaps(timeline), scale));
    people.update(actShapes(acts, scale, width));
    peopleRow.hidden = !acts.length;
    under.update(gridShapes(scale));
    over.update(overShapes({ acts, checkpoint, isRunning, marked }, scale));
    const isOver = (/** @type {TimelineRow} */ row) => row.name !== chosen && ["completed", "skipped"].includes(row.look.word);
    drawVisible(hides ? all.filter((row) => !isOver(row)) : all, scale, chosen);
    setText(beginning, timeline.beginning);
    beginning.hidden = !timeline.beginning;
  }

  /** @param {TimelineRow[]} shown @param {TimeScale} on @param {string | null} chosen */
  function drawVisible(shown, on, chosen) {
    const count = shown.length;
    room.style.height = `${count * BAR_ROW_PX}px`;
    const top = shown.findIndex((row) => row.name === chosen) * BAR_ROW_PX;
    const isOut = top < rows.scrollTop || top + BAR_ROW_PX > rows.scrollTop + rows.clientHeight;
    if (chosen !== revealed && isOut && top >= 0) rows.scrollTop = top - rows.clientHeight / 2;
    revealed = chosen;
    const height = count > ROWS_WINDOWED_FROM ? rows.clientHeight : count * BAR_ROW_PX;
    const { from, to, above } = visibleRows({ count, rowHeight: BAR_ROW_PX, scrolled: rows.scrollTop, height });
    list.style.transform = `translateY(${above}px)`;
    drawRows(shown.slice(from, to).map((row) => ({ row, chosen: row.name === chosen, shapes: rowShapes(row, on) })));
  }

  const drawSoon = oncePerFrame(draw);

  /** @param {typeof zoomed} next */
  function zoom(next) {
    zoomed = next;
    draw();
  }

  new ResizeObserver(drawSoon).observe(host);
  host.addEventListener("dblclick", (event) => !isOnLabel(event) && zoom(null));
  onDrag(host, (from, to, isDone) => {
    marked = isDone ? null : [from, to];
    const [a, b] = [from, to].sort((one, other) => one - other).map((x) => scale?.timeOf(x) ?? 0);
    if (isDone && b - a > 0.01) zoomed = { from: a, to: b };
    drawSoon();
  });

  return {
    element: host,
    tools: element("div", { class: "timeline-tools" }, reset, hide.element, fold.element),
    update(next) {
      if (view?.timeline !== next.timeline) drawLines(lines, next);
      if (view?.timeline.run_id !== next.timeline.run_id) zoomed = null;
      view = next;
      draw();
    },
  };
}

/** @param {"th" | "td"} name @param {string[]} words */
const tableRow = (name, words) => element("tr", {}, ...words.map((word) => element(name, {}, word)));

/** @param {string} look @param {string} label @param {ReturnType<typeof createLayer>} layer */
const createLane = (look, label, layer) =>
  element("div", { class: look }, element("span", { class: "timeline-label" }, label), layer.element);

/** How folded time is filled. */
const hatch = () =>
  drawing(
    "pattern",
    { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    drawing("path", { d: "M0 0V6" }),
  );

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

/** @typedef {{ row: TimelineRow, chosen: boolean, shapes: Shape[] }} DrawnRow */

/**
 * @param {(choice: Choice) => void} choose
 * @returns {import("../shell/elements.js").Part<DrawnRow>}
 */
function createTimelineRow(choose) {
  let name = "";
  const status = createStatus();
  const [code, count, time] = [element("code", {}), element("span", {}), element("span", { class: "timeline-time" })];
  const once = createOnce();
  const label = button("timeline-label", () => choose({ node: name }), status.element, code, count, once, time);
  const lane = createLayer("lane");
  lane.element.addEventListener("click", ({ target }) => {
    const { visit, item } = /** @type {SVGElement} */ (target).dataset;
    choose({ node: name, visit, item });
  });
  const host = element("li", { class: "timeline-row" }, label, lane.element);
  return {
    element: host,
    update({ row, chosen, shapes }) {
      name = row.name;
      status.update(row.look);
      setText(code, cutMiddle(name, 15 - row.count.length));
      label.title = name;
      setText(count, row.count);
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
  const told = storyOf(timeline, now).slice(0, LINES_MAX);
  const cells = told.map(({ at, title, look, detail }) => [
    instant(at, now),
    title.map((part) => part.text).join(""),
    look.word,
    detail,
  ]);
  body.replaceChildren(...cells.map((words) => tableRow("td", words)));
}

/** @param {Event} event */
const isOnLabel = (event) => Boolean(/** @type {Element} */ (event.target).closest("button"));

/**
 * Follow a drag along the lanes. A finger scrolls instead.
 * @param {HTMLElement} host
 * @param {(from: number, to: number, isDone: boolean) => void} drag
 */
function onDrag(host, drag) {
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
    drag(from, place(event), false);
  });
  host.addEventListener("pointerup", (event) => {
    if (isDragging && from !== null) drag(from, place(event), true);
    from = null;
  });
  // The click that ends a drag chooses nothing.
  host.addEventListener("click", (event) => isDragging && !isOnLabel(event) && event.stopPropagation(), { capture: true });
}
