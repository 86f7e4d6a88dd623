// The ledger of a run: every decision in its log, by whom and why, and whether the log is exactly what was written.

import { whenChanged } from "../pure/depending.js";
import { formatFragment } from "../pure/fragments.js";
import { damagedSeqs, verifiedWords } from "../pure/ledgers.js";
import { fullInstant, timeOfDay } from "../pure/words.js";
import { button, element, glyph, setAttribute, setText } from "../shell/elements.js";
import { createFetched } from "./fetched.js";
import { createSelect } from "./log_view.js";
import { createSlot } from "./slot.js";
import { createTable, textColumn } from "./table.js";

/**
 * @typedef {import("../shapes.js").LedgerEntry & { href: string, damaged: boolean }} LedgerRow
 * @typedef {{ place: import("../pure/fragments.js").Place, end: number }} LedgerView
 */

const ENTRIES_PAGE = 1000;
const ENTRY_TYPES = "plan branch guard policy verification decision skip failure edit resume rewind refusal".split(" ");

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<LedgerView>}
 */
export function createLedgerView(app) {
  /** @type {LedgerView} */
  let view;
  /** @type {import("../shapes.js").LedgerEntry[]} */
  let entries = [];
  /** The seq after which entries are read. */
  let after = 0;
  let isChecked = false;
  const type = createSelect("Type", "All decisions", () => read(0));
  type.update(ENTRY_TYPES.map((one) => [one, one]));
  const verify = button(
    "button",
    () => {
      isChecked = true;
      read(0);
    },
    "Verify",
  );
  const mark = createSlot("ledger-mark", (/** @type {import("../shapes.js").Ledger} */ { verified, problems }) =>
    verified === null
      ? []
      : [
          element("span", { "data-tone": verified ? "done" : "fail" }, glyph(verified ? "completed" : "failed")),
          element("span", { role: "status", dir: "auto" }, verifiedWords(verified, problems)),
        ],
  );
  const none = element("p", { class: "hint" }, "This run has decided nothing of this kind.");
  const more = button("button more", () => read(entries.at(-1)?.seq ?? 0), `Show ${ENTRIES_PAGE} more`);
  /** @type {import("./table.js").Table<LedgerRow>} */
  const table = createTable({
    caption: "Decisions",
    columns: [
      { name: "l-seq", label: "Event", make: createSeq },
      textColumn("l-type", "Decision", (row) => row.type),
      textColumn("l-actor", "By", (row) => row.by ?? row.actor),
      textColumn("l-text", "What was decided", (row) => [row.text, row.reason].filter(Boolean).join(": ")),
      textColumn("l-digest", "Digest", (row) => row.digest.slice(0, 12), "code"),
    ],
    keyOf: (row) => String(row.seq),
  });
  const fetched = createFetched(app, (page) => {
    if (!page) return;
    entries = after ? [...entries, ...page.entries] : page.entries;
    const damaged = damagedSeqs(page);
    if (!after) mark.update(page);
    table.update(
      entries.map((one) => ({
        ...one,
        damaged: damaged.has(one.seq),
        href: formatFragment({ ...view.place, at: one.seq, query: { ...view.place.query, view: ["ledger"] } }),
      })),
    );
    none.hidden = Boolean(entries.length);
    table.element.hidden = !entries.length;
    more.hidden = page.next === null;
  });

  /** @param {number} next */
  function read(next) {
    after = next;
    const asked = { limit: ENTRIES_PAGE, after: after || null, type: type.element.value || null };
    fetched.want({
      path: `runs/${view.place.run}/ledger`,
      asked: { ...asked, verify: (isChecked && !after) || null },
      follows: after ? null : view.end,
    });
  }

  const follow = whenChanged((/** @type {{ run: string | undefined, end: number }} */ { run }, before) => {
    if (run !== before?.run) isChecked = false;
    read(0);
  });

  return {
    element: element(
      "div",
      { class: "view-pad ledger" },
      element("div", { class: "view-tools" }, type.element, verify, mark.element),
      fetched.problem,
      none,
      table.element,
      more,
    ),
    update(next) {
      view = next;
      follow({ run: next.place.run, end: next.end });
    },
  };
}

/** @returns {import("../shell/elements.js").Part<LedgerRow>} */
function createSeq() {
  const [link, time] = [element("a", {}), element("time", { class: "hint" })];
  return {
    element: element("span", {}, link, time),
    update({ seq, at, href, damaged }) {
      setText(link, `@${seq}`);
      setAttribute(link, "href", href);
      setAttribute(link, "data-tone", damaged && "fail");
      setText(time, timeOfDay(at));
      setAttribute(time, "title", fullInstant(at));
    },
  };
}
