// The field for a token: at the start if there is none, and later if the one there was has expired. What is shown stays behind
// it, so the reader continues at the same place.

import { tokenIn } from "../pure/fragments.js";
import { openDialog } from "../shell/dialogs.js";
import { PLAIN_TEXT, element } from "../shell/elements.js";
import { createCommand } from "./command.js";

/**
 * Ask for a token until one is typed.
 * @param {import("../shapes.js").Problem} problem  why one is needed
 * @param {boolean} hadOne
 * @returns {Promise<string>}
 */
export function askForToken(problem, hadOne) {
  return new Promise((resolve) => {
    const field = element("input", {
      ...PLAIN_TEXT,
      type: "password",
      class: "field",
      id: "token",
      required: true,
      pattern: "\\s*[!-~]+\\s*",
    });
    const command = createCommand();
    command.update("holdfast token create NAME --role operate");
    /** @param {Event} event */
    function submit(event) {
      event.preventDefault();
      const typed = field.value.trim();
      dialog.close();
      resolve(tokenIn(typed.slice(Math.max(0, typed.indexOf("#")))) ?? typed);
    }
    const dialog = openDialog(
      "sign-in",
      [hadOne ? "The token is not valid any more" : "A token is needed"],
      element(
        "form",
        { onsubmit: submit },
        element("p", {}, hadOne ? problem.detail : "Open the link that holdfast serve printed, or paste a token."),
        element("label", { for: "token" }, "Token, or the link with it"),
        field,
        element("p", { class: "hint" }, "This makes one:"),
        command.element,
        element("footer", {}, element("button", { class: "button filled" }, "Continue")),
      ),
    );
    field.focus();
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // there is nothing to see without one
  });
}
