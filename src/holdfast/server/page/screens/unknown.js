// An address that names no screen: an old link, or one that was cut.

import { element } from "../shell/elements.js";

/** @returns {import("../shell/app.js").Screen} */
export function createUnknownScreen() {
  return {
    element: element(
      "main",
      { class: "screen alone", tabindex: "-1" },
      element("h1", {}, "There is nothing at this address"),
      element("p", {}, "The link may have been cut, or belongs to another version of Holdfast."),
      element("a", { class: "button filled", href: "#/runs" }, "Show all runs"),
    ),
    title: () => "Not found",
    keys: [],
    show() {},
  };
}
