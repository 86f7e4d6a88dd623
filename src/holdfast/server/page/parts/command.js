// A command to paste into a terminal, with a button that copies it.

import { button, element, glyph, setText } from "../shell/elements.js";

const SAID_MS = 1500;

/**
 * @param {string} [look]  further classes
 * @returns {import("../shell/elements.js").Part<string>}
 */
export function createCommand(look = "") {
  const text = element("code", {});
  const copy = createCopyButton(() => text.textContent ?? "", "Copy command");
  return {
    element: element(
      "div",
      { class: `command ${look}` },
      element("span", { class: "prompt", "aria-hidden": "true" }, "$"),
      text,
      copy,
    ),
    update(command) {
      if (text.textContent !== command)
        text.replaceChildren(...command.split(/(?<=\s)/).map((word) => element("span", {}, word)));
    },
  };
}

/**
 * A button that copies a text. It says that it did, for those who see it and for those who hear it.
 * @param {() => string} textOf
 * @param {string} words
 * @param {"glyph" | "words"} [look]  whether the words are seen, or only heard
 */
export function createCopyButton(textOf, words, look = "glyph") {
  const said = element("span", { class: "unseen", role: "status" });
  const copied = () => {
    setText(said, "Copied");
    copy.replaceChild(glyph("tick"), /** @type {Element} */ (copy.firstElementChild));
    setTimeout(() => {
      setText(said, "");
      copy.replaceChild(glyph("copy"), /** @type {Element} */ (copy.firstElementChild));
    }, SAID_MS);
  };
  const copy = button(
    look === "glyph" ? "icon-button copy" : "quiet-button copy",
    async () => {
      await writeClipboard(textOf());
      copied();
    },
    glyph("copy"),
    element("span", { class: look === "glyph" && "unseen" }, words),
    said,
  );
  copy.title = words;
  return copy;
}

/** @param {string} text */
async function writeClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS, and not on this machine, a browser offers only the old way.
    const area = element("textarea", { class: "unseen", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
