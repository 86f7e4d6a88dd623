// What an empty store shows: the next command. The first run replaces it.

import { storeName } from "../pure/words.js";
import { element, glyph } from "../shell/elements.js";
import { createCommand } from "./command.js";

/** @param {import("../shapes.js").Meta} meta */
export function createFirstStart(meta) {
  const [run, demo] = [createCommand("large"), createCommand("large")];
  run.update(meta.run_command);
  demo.update("holdfast demo");
  const flows = meta.flows.flatMap((name, at) => [at ? ", " : "", element("code", {}, name)]);
  return element(
    "section",
    { class: "first-start", "aria-labelledby": "first-start-title" },
    glyph("mark", "mark"),
    element("h2", { id: "first-start-title" }, "No runs yet"),
    element(
      "p",
      { class: "lead" },
      "Start one in another terminal. It appears here by itself, and stays here when you kill its process.",
    ),
    element("h3", {}, "Start a run of your own flow"),
    run.element,
    element("h3", {}, "Or watch a run being killed twice, and resumed"),
    demo.element,
    element(
      "p",
      { class: "hint" },
      "About 10 seconds. It keeps a store of its own and ends with the command that opens it here.",
    ),
    element("hr", {}),
    element(
      "p",
      { class: "listening" },
      element("span", { class: "live", "data-tone": "done" }, element("span", { class: "live-dot" })),
      element(
        "span",
        {},
        "Listening to ",
        element("code", { title: meta.store }, storeName(meta.store)),
        ".",
        ...(flows.length && meta.features.includes("work") ? [" This server executes ", ...flows, "."] : []),
      ),
    ),
  );
}
