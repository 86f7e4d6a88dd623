// An address that names no screen: an old link, or one that was cut.

import { createAlone } from "../parts/alone.js";
import { element } from "../shell/elements.js";

/** @returns {import("../shell/app.js").Screen} */
export const createUnknownScreen = () => ({
  element: createAlone(
    "There is nothing at this address",
    "The link may have been cut, or belongs to another version of Holdfast.",
    element("a", { class: "button filled", href: "#/runs" }, "Show all runs"),
  ),
  title: () => "Not found",
  keys: [],
  show() {},
});
