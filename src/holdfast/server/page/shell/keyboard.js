// The keyboard: one listener for the whole page. A screen gives its keys when it is shown; "?" lists them all.

import { commandFor, keyLabel, mayAct, nameOfKey } from "../pure/keys.js";
import { openDialog } from "./dialogs.js";
import { element, iconButton } from "./elements.js";

/**
 * @typedef {import("../pure/keys.js").KeyCommand} KeyCommand
 * @typedef {{ setScreenKeys: (commands: KeyCommand[]) => void }} Keyboard
 */

const OFF = "holdfast.letters-off";
const areLettersOff = () => localStorage.getItem(OFF) === "yes";

/**
 * @param {KeyCommand[]} shellKeys
 * @returns {Keyboard}
 */
export function createKeyboard(shellKeys) {
  /** @type {KeyCommand[]} */
  let screenKeys = [];
  const shell = [...shellKeys, { keys: ["?"], words: "all keys", hint: true, act: () => openList([...screenKeys, ...shell]) }];
  document.addEventListener("keydown", (event) => {
    const name = nameOfKey(event);
    const where = { typing: isField(event.target), lettersOff: areLettersOff() };
    // A dialog has keys of its own, and Enter belongs to the button or link that has the focus.
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    if (name === "enter" && event.target instanceof HTMLElement && event.target.closest("a, button, summary")) return;
    const command = mayAct(name, where) ? commandFor([...screenKeys, ...shell], name) : undefined;
    if (!command) return;
    event.preventDefault();
    command.act(name);
  });
  return {
    setScreenKeys(commands) {
      screenKeys = commands;
    },
  };
}

/** @param {EventTarget | null} target */
const isField = (target) =>
  target instanceof HTMLElement &&
  (target.isContentEditable || target.matches("input:not([type=checkbox], [type=radio]), textarea, select"));

/**
 * The keys as a row of hints below a screen.
 * @param {KeyCommand[]} commands
 */
export function keyHints(commands) {
  const hints = [...commands.filter((command) => command.hint), { keys: ["?"], words: "all keys" }];
  return element(
    "p",
    { class: "key-hints" },
    ...hints.map((command) => element("span", {}, ...keycaps(command.keys), ` ${command.words}`)),
  );
}

/** @param {string[]} keys */
const keycaps = (keys) => keys.map((key) => element("kbd", {}, keyLabel(key)));

/** @param {KeyCommand[]} commands */
function openList(commands) {
  const rows = commands.map((command) =>
    element("tr", {}, element("td", {}, ...keycaps(command.keys)), element("td", {}, command.words)),
  );
  const letters = element("input", {
    type: "checkbox",
    checked: !areLettersOff(),
    onchange: () => localStorage.setItem(OFF, letters.checked ? "no" : "yes"),
  });
  const dialog = openDialog(
    "keys",
    ["Keys"],
    element("table", {}, element("tbody", {}, ...rows)),
    element("label", { class: "check" }, letters, "Use letter keys"),
  );
  dialog.querySelector("header")?.append(iconButton("close", "Close", () => dialog.close()));
}
