// Our own glyphs, drawn on 16 x 16 with strokes of 1.5 in the colour of the text beside them. A shape is the element's name and
// its attributes; the class "solid" fills it, "cut" draws on top of a filled shape in the colour below it, "faint" is pale.

/** @typedef {[name: "path" | "circle" | "rect", attributes: Record<string, string | number>]} Shape */

/** @type {(d: string, look?: string) => Shape} */
const path = (d, look = "line") => ["path", { d, class: look }];

/** @type {(cx: number, cy: number, r: number, look?: string) => Shape} */
const circle = (cx, cy, r, look = "line") => ["circle", { cx, cy, r, class: look }];

/** @type {(x: number, y: number, width: number, height: number, rx: number, look?: string) => Shape} */
const rect = (x, y, width, height, rx, look = "line") => ["rect", { x, y, width, height, rx, class: look }];

const RING = circle(8, 8, 6.25);
const BARS = path("M6.4 5.9v4.2M9.6 5.9v4.2");
const TURNING = [circle(8, 8, 6.25, "faint"), path("M8 1.75a6.25 6.25 0 0 1 5.9 8.3", "turning")];

const SHAPES = {
  // statuses
  pending: [circle(8, 8, 6.25, "line dashed")],
  running: TURNING,
  waiting: [RING, path("M8 4.6V8l2.3 1.6")],
  asks: [
    path("M8 .9 15.1 8 8 15.1.9 8z", "solid"),
    path("M6.3 6.5a1.75 1.75 0 1 1 2.5 1.6c-.5.3-.8.6-.8 1.2", "cut"),
    circle(8, 11.2, 0.5, "cut"),
  ],
  crashed: [path("M5.4 2.3a6.2 6.2 0 0 0-1 10.8M10.6 13.7a6.2 6.2 0 0 0 1-10.8"), path("M9 3.9 6.6 8.2h2.8L7 12.2")],
  pausing: [...TURNING, BARS],
  paused: [RING, BARS],
  interrupted: [RING, rect(6, 6, 4, 4, 0.8, "solid")],
  completed: [circle(8, 8, 7, "solid"), path("m5 8.2 2.1 2.1L11.1 6", "cut")],
  failed: [path("M5.1 1h5.8L15 5.1v5.8L10.9 15H5.1L1 10.9V5.1z", "solid"), path("m5.8 5.8 4.4 4.4m0-4.4-4.4 4.4", "cut")],
  cancelled: [RING, path("m3.7 12.3 8.6-8.6")],
  skipped: [RING, path("m5.4 5.7 2.3 2.3-2.3 2.3M8.5 5.7 10.8 8l-2.3 2.3")],
  unreached: [circle(8, 8, 2, "solid")],
  warning: [path("M8 1.9 14.6 13.6H1.4z"), path("M8 6.2v3.4M8 11.5v.4")],
  // acts and things
  play: [path("M4.5 2.8v10.4L13 8z", "solid")],
  pause: [RING, BARS],
  retry: [path("M13.2 9.4A5.5 5.5 0 1 1 12 4.2l1.5 1.4M13.6 2v3.7H9.9")],
  skip: [path("m3 3.5 4.5 4.5L3 12.5M8.5 3.5 13 8l-4.5 4.5")],
  fork: [circle(4, 3.2, 1.6), circle(4, 12.8, 1.6), circle(12, 5.2, 1.6), path("M4 4.8v6.4M12 6.8c0 2.6-3.6 2.2-6.2 3.2")],
  loop: [path("M3 9.6A5.2 5.2 0 1 0 4.3 4.4L2.6 6M2.4 2.4V6H6")],
  copy: [rect(5.5, 5.5, 8, 8, 1.6), path("M10.5 5.3V3.9c0-.8-.6-1.4-1.4-1.4H3.9c-.8 0-1.4.6-1.4 1.4v5.2c0 .8.6 1.4 1.4 1.4h1.4")],
  tick: [path("m3 8.5 3.4 3.4L13 4.8")],
  close: [path("m4 4 8 8m0-8-8 8")],
  more: [circle(3.2, 8, 1.2, "solid"), circle(8, 8, 1.2, "solid"), circle(12.8, 8, 1.2, "solid")],
  down: [path("m4 6.2 4 4 4-4")],
  left: [path("M10 3.5 5.5 8l4.5 4.5")],
  right: [path("M6 3.5 10.5 8 6 12.5")],
  swap: [path("M2.5 5.5h10M10 3l2.8 2.5L10 8M13.5 10.5h-10M6 8l-2.8 2.5L6 13")],
  search: [circle(7, 7, 4.75), path("m10.5 10.5 3.7 3.7")],
  person: [circle(8, 5, 2.9), path("M2.6 14.2c.4-3 2.5-4.6 5.4-4.6s5 1.6 5.4 4.6")],
  theme: [RING, path("M8 1.75v12.5a6.25 6.25 0 0 0 0-12.5z", "solid")],
  store: [rect(1.75, 2.5, 12.5, 4.6, 1.4), rect(1.75, 8.9, 12.5, 4.6, 1.4), path("M4.4 4.8h.1M4.4 11.2h.1M7 4.8h4.6M7 11.2h4.6")],
  pulse: [path("M1 8.2h2.9L6 3.2l3.6 9.6 2-4.6H15")],
  list: [path("M2 4h12M2 8h12M2 12h8")],
  kept: [path("M8 1.6 13.6 3.6v4.2c0 3.2-2.2 5.4-5.6 6.6-3.4-1.2-5.6-3.4-5.6-6.6V3.6z"), path("m5.6 7.9 1.8 1.8 3-3.3")],
  file: [path("M9.2 1.8H4.4c-.7 0-1.2.5-1.2 1.2v10c0 .7.5 1.2 1.2 1.2h7.2c.7 0 1.2-.5 1.2-1.2V5.4zM9 2v3.6h3.6")],
  mail: [rect(1.75, 3.2, 12.5, 9.6, 1.6), path("m2.2 4.2 5.8 4.6 5.8-4.6")],
  offline: [
    path("M4 12a5.6 5.6 0 0 1 0-8M12 4a5.6 5.6 0 0 1 0 8M6.2 9.8a2.5 2.5 0 0 1 0-3.6M9.8 6.2a2.5 2.5 0 0 1 0 3.6M2 2l12 12"),
  ],
  mark: [path("M8 1v13.6M5 3.6h6M2.2 14.6c0-3.6 1.6-5.4 5.8-7.4 4.2 2 5.8 3.8 5.8 7.4", "bold")],
};

/** @typedef {keyof typeof SHAPES} GlyphName */

export const GLYPHS = /** @type {Record<GlyphName, Shape[]>} */ (/** @type {unknown} */ (SHAPES));
