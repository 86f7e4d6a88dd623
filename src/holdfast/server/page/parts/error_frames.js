// Why an attempt failed: the error, and where it was raised. The reader's own code comes first; lines of packages are folded.

import { failureWords, messageOf } from "../pure/visit_words.js";
import { plural } from "../pure/words.js";
import { element } from "../shell/elements.js";
import { createCopyButton } from "./command.js";

/** @param {import("../shapes.js").FailureView} failure */
export function createErrorFrames(failure) {
  const frames = [...failure.frames].reverse(); // the line that raised is first
  const raised = frames.find((frame) => frame.own) ?? frames[0];
  const [own, others] = [frames.filter((frame) => frame.own), frames.filter((frame) => !frame.own)];
  const [words, meaning] = failureWords(failure.kind);
  const shown = own.length ? own : others.splice(0, 2);
  const folded = others.length > 0 && [
    element("summary", {}, plural(others.length, "more frame")),
    element("div", { class: "frames" }, ...others.flatMap((frame) => createFrame(frame, false))),
  ];
  return element(
    "section",
    { class: "error-frames" },
    element(
      "header",
      {},
      element("p", { dir: "auto" }, element("strong", {}, element("code", {}, failure.type)), " ", messageOf(failure)),
      element("span", { class: "tag outlined", title: meaning }, words),
    ),
    failure.advice ? element("p", { class: "advice", dir: "auto" }, failure.advice) : null,
    element("div", { class: "frames" }, ...shown.flatMap((frame) => createFrame(frame, frame === raised))),
    (folded || failure.traceback) &&
      element(
        "footer",
        {},
        folded ? element("details", {}, ...folded) : element("span", {}),
        failure.traceback ? createCopyButton(() => failure.traceback, "Copy traceback", "words") : null,
      ),
  );
}

/**
 * @param {import("../shapes.js").Frame} frame
 * @param {boolean} raised
 */
const createFrame = (frame, raised) => [
  element(
    "p",
    { class: "frame-place", title: frame.file },
    shortPath(frame.file),
    " in ",
    element("span", { class: "frame-function" }, frame.function),
  ),
  element(
    "p",
    { class: raised ? "frame-line raised" : "frame-line" },
    element("span", { class: "line-number" }, String(frame.line)),
    element("code", {}, frame.source || "(the line was not recorded)"),
  ),
];

/** The end of a path, by which its readers know a file. @param {string} path */
const shortPath = (path) => path.split("/").slice(-2).join("/");
