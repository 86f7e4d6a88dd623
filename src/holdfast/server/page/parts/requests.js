// What was asked of a run and is not done yet: how long ago, after ten seconds why nothing happens, and the last refusal with
// other ways. `asked` stands among the buttons of the run, `element` below its sentence.

import { actionFor } from "../pure/actions.js";
import { formatFragment } from "../pure/fragments.js";
import { showRequests } from "../pure/requests.js";
import { markNames } from "../pure/words.js";
import { element, glyph, keepChildren, setAttribute, setSentence, setText } from "../shell/elements.js";
import { createCommand } from "./command.js";

/**
 * @typedef {object} Requested
 * @property {import("../shapes.js").RunRequest[]} requests  as `GET runs/{id}/requests` has them
 * @property {import("../pure/requests.js").RequestedRun} run
 * @property {number} now
 */

/** @returns {import("../shell/elements.js").Part<Requested> & { asked: HTMLElement }} */
export function createRequests() {
  const asked = element("span", { class: "asked", role: "status" });
  const drawAsked = keepChildren(asked, (/** @type {{ key: string }} */ one) => one.key, createChip);
  const note = element("p", { class: "requests-note" });
  const command = createCommand();
  const [title, reason, ways] = [element("strong", {}), element("p", { dir: "auto" }), element("div", { class: "ways" })];
  const refused = element(
    "div",
    { class: "banner refusal", "data-tone": "fail", role: "alert" },
    glyph("failed"),
    element("div", {}, title, reason, ways),
  );
  return {
    asked,
    element: element("div", { class: "requests" }, note, command.element, refused),
    update({ requests, run, now }) {
      const shown = showRequests(requests, run, now);
      drawAsked(shown.waiting);
      note.hidden = !shown.note;
      setSentence(note, markNames(shown.note, [run.flow, ...(run.held_by ? [run.held_by] : [])]));
      command.element.hidden = !shown.command;
      command.update(shown.command);
      refused.hidden = !shown.refused;
      if (!shown.refused) return;
      setText(title, shown.refused.title);
      setText(reason, shown.refused.reason);
      ways.replaceChildren(...shown.refused.remedies.flatMap((remedy) => createWay(run.id, remedy) ?? []));
    },
  };
}

/** @returns {import("../shell/elements.js").Part<{ key: string, words: string, title: string }>} */
function createChip() {
  const words = element("span", {});
  const host = element("span", { class: "asked-chip", "data-tone": "accent" }, glyph("running", "turns"), words);
  return {
    element: host,
    update(one) {
      setText(words, one.words);
      setAttribute(host, "title", one.title || null);
    },
  };
}

/** @param {string} run @param {import("../shapes.js").Remedy} remedy */
function createWay(run, remedy) {
  const action = actionFor(run, remedy);
  if (!action) return null;
  return element("a", { class: "button", href: formatFragment(action.place), title: remedy.words }, `${action.label}…`);
}
