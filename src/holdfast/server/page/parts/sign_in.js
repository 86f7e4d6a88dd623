// The field for a token: at the start if there is none, and later if the one there was has expired. What is shown stays behind
// it, so the reader continues at the same place.

import { tokenIn } from "../pure/fragments.js";
import { button, element } from "../shell/elements.js";
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
      type: "password",
      class: "field",
      id: "token",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
    });
    const command = createCommand();
    command.update("holdfast token create NAME --role operate");
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "sign-in-title" }, hadOne ? "The token is not valid any more" : "A token is needed"),
      element("p", {}, hadOne ? problem.detail : "Open the link that holdfast serve printed, or paste a token."),
      element("label", { for: "token" }, "Token, or the link with it"),
      field,
      element("p", { class: "hint" }, "This makes one:"),
      command.element,
      element(
        "footer",
        {},
        button("button filled", () => form.requestSubmit(), "Continue"),
      ),
    );
    const dialog = element("dialog", { class: "dialog sign-in", "aria-labelledby": "sign-in-title" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // there is nothing to see without one
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const typed = field.value.trim();
      const token = tokenIn(typed.slice(Math.max(0, typed.indexOf("#")))) ?? typed;
      dialog.close();
      dialog.remove();
      resolve(token);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
