// A table of rows that change where they are. Only rows in view are in the document, and one row at a time is in the order of
// the Tab key: `j`, `k` and the arrows move it.

import { visibleRows } from "../pure/windows.js";
import { fullInstant, instant } from "../pure/words.js";
import { element, keepChildren, setAttribute, setText } from "../shell/elements.js";
import { oncePerFrame } from "../shell/frames.js";

const ROW_PX = 40;
/** Below this many rows all are drawn: windowing saves nothing there, and the browser's own search finds them. */
const WINDOWED_FROM = 200;

/**
 * @template T
 * @typedef {object} Column
 * @property {string} name  the class of its cells
 * @property {string} label
 * @property {boolean} [unseen]  the label is only heard
 * @property {() => import("../shell/elements.js").Part<T>} make  what is in a cell
 */

/**
 * @template T
 * @typedef {object} Table
 * @property {HTMLElement} element
 * @property {(items: T[]) => void} update
 * @property {(by: number) => void} move  moves the current row, and the focus to it
 * @property {() => T | null} current
 * @property {() => T[]} inView
 */

/**
 * @template T
 * @param {object} options
 * @param {string} options.caption
 * @param {Column<T>[]} options.columns
 * @param {(item: T) => string} options.keyOf
 * @param {(item: T) => void} [options.open]  a click on a row that is on no link or button
 * @returns {Table<T>}
 */
export function createTable({ caption, columns, keyOf, open }) {
  const heads = columns.map(({ name, label, unseen }) =>
    element("th", { scope: "col", class: name }, unseen ? element("span", { class: "unseen" }, label) : label),
  );
  const [above, below] = [createSpace(), createSpace()];
  const body = element("tbody", {});
  const host = element(
    "table",
    { class: `table panel ${open ? "opens" : ""}` },
    element("caption", { class: "unseen" }, caption),
    element("thead", {}, element("tr", {}, ...heads)),
    above.element,
    body,
    below.element,
  );
  /** @type {T[]} */
  let items = [];
  let currentKey = "";
  let drawn = { from: 0, to: 0, above: 0, below: 0 };
  const draw = keepChildren(body, keyOf, createRow);

  /** @returns {import("../shell/elements.js").Part<T>} */
  function createRow() {
    const cells = columns.map((column) => column.make());
    /** @type {T} */
    let shown;
    const row = element(
      "tr",
      { tabindex: "-1" },
      ...cells.map((cell, at) => element("td", { class: columns[at].name }, cell.element)),
    );
    row.addEventListener("focusin", () => setCurrent(keyOf(shown)));
    row.addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      if (event.ctrlKey || event.metaKey || event.shiftKey || target.closest("a, button")) return;
      if (!getSelection()?.toString()) open?.(shown);
    });
    return {
      element: row,
      update(item) {
        if (shown !== undefined && shown !== item) flash(row);
        shown = item;
        for (const cell of cells) cell.update(item);
        mark(row, keyOf(item));
      },
    };
  }

  /** @param {HTMLElement} row @param {string} key */
  function mark(row, key) {
    row.tabIndex = key === currentKey ? 0 : -1;
    row.classList.toggle("current", key === currentKey);
    row.dataset.key = key;
  }

  /** @param {string} key */
  function setCurrent(key) {
    if (key === currentKey) return;
    currentKey = key;
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (body.querySelectorAll("tr"))) mark(row, row.dataset.key ?? "");
  }

  function drawWindow() {
    const isCards = getComputedStyle(body).display !== "table-row-group"; // on a phone, rows are as high as their text
    const count = items.length;
    const scrolled = drawn.above - body.getBoundingClientRect().top;
    drawn =
      count < WINDOWED_FROM || isCards
        ? { from: 0, to: count, above: 0, below: 0 }
        : visibleRows({ count, rowHeight: ROW_PX, scrolled, height: innerHeight });
    above.update(drawn.above);
    below.update(drawn.below);
    draw(items.slice(drawn.from, drawn.to));
    setAttribute(host, "aria-rowcount", drawn.to - drawn.from < count && count + 1);
  }

  const onScroll = oncePerFrame(() => items.length >= WINDOWED_FROM && host.isConnected && drawWindow());
  addEventListener("scroll", onScroll, { passive: true, capture: true }); // also of a pane that scrolls by itself
  addEventListener("resize", onScroll);

  return {
    element: host,
    update(next) {
      items = next;
      if (!items.some((item) => keyOf(item) === currentKey)) currentKey = items.length ? keyOf(items[0]) : "";
      drawWindow();
    },
    move(by) {
      const at = items.findIndex((item) => keyOf(item) === currentKey);
      const isFocused = body.contains(document.activeElement);
      const next = items[Math.min(items.length - 1, Math.max(0, isFocused ? at + by : at))];
      if (next === undefined) return;
      setCurrent(keyOf(next));
      const row = () => /** @type {HTMLElement | null} */ (body.querySelector(`tr[data-key="${CSS.escape(currentKey)}"]`));
      if (!row()) {
        scrollBy({ top: by * ROW_PX });
        drawWindow();
      }
      row()?.focus({ preventScroll: true });
      row()?.scrollIntoView({ block: "nearest" });
    },
    current: () => items.find((item) => keyOf(item) === currentKey) ?? null,
    inView: () => items.slice(drawn.from, drawn.to),
  };
}

/**
 * A column of text.
 * @template T
 * @param {string} name
 * @param {string} label
 * @param {(item: T) => string} words
 * @param {"span" | "code"} [tag]
 * @returns {Column<T>}
 */
export const textColumn = (name, label, words, tag = "span") => ({
  name,
  label,
  make() {
    const host = element(tag, { class: "cut", dir: "auto" });
    return {
      element: host,
      update(item) {
        const text = words(item);
        setText(host, text);
        setAttribute(host, "title", text.length > 24 && text);
      },
    };
  },
});

/**
 * A column of instants: how long ago each was. While nothing is live it is the time itself, because an age would keep growing
 * beside data that is not fresh.
 * @template T
 * @param {import("../shell/app.js").App} app
 * @param {string} name
 * @param {string} label
 * @param {(item: T) => number} at
 * @param {(seconds: number) => string} words
 * @returns {Column<T>}
 */
export const agesColumn = (app, name, label, at, words) => ({
  name,
  label,
  make() {
    const host = element("time");
    return {
      element: host,
      update(item) {
        const now = app.clock.now();
        setText(host, app.feed.isLive() ? words(now - at(item)) : instant(at(item), now));
        setAttribute(host, "title", fullInstant(at(item)));
      },
    };
  },
});

/** The room of rows that are not drawn. @returns {import("../shell/elements.js").Part<number>} */
function createSpace() {
  const row = element("tr", {}, element("td"));
  const host = element("tbody", { class: "space", "aria-hidden": "true" }, row);
  return {
    element: host,
    update(height) {
      host.hidden = !height;
      row.style.height = `${height}px`;
    },
  };
}

/** Tint a row that changed, for 600 ms. @param {HTMLElement} row */
function flash(row) {
  row.classList.remove("changed");
  void row.offsetWidth; // restarts the animation
  row.classList.add("changed");
}
