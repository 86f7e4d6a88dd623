// Keys: how one is named, and which one acts. Letters act only outside of fields, and a reader may turn them off.

/**
 * @typedef {{ key: string, ctrlKey?: boolean, metaKey?: boolean, altKey?: boolean, shiftKey?: boolean }} Press
 * @typedef {{ keys: string[], words: string, act: (press: string) => void, hint?: boolean }} KeyCommand  `hint`: shown below
 *   the screen; all are in the list that "?" opens
 */

/**
 * The name of a key as the map has it: "j", "?", "enter", "ctrl+enter" (also for ⌘), "left".
 * @param {Press} press
 */
export function nameOfKey(press) {
  const named = press.key.replace(/^Arrow/, "").toLowerCase();
  const key = { " ": "space", escape: "esc" }[named] ?? named;
  if (press.altKey) return `alt+${key}`;
  return press.ctrlKey || press.metaKey ? `ctrl+${key}` : key;
}

/**
 * Whether a key acts, given where the focus is. In a field only keys with ctrl and Escape do.
 * @param {string} name
 * @param {{ typing: boolean, lettersOff: boolean }} where
 */
export function mayAct(name, { typing, lettersOff }) {
  if (name.startsWith("ctrl+") || name === "esc") return true;
  if (typing) return false;
  return name.length > 1 || !lettersOff;
}

/**
 * The command for a key among those of the screen and then of the shell.
 * @param {KeyCommand[]} commands  the innermost first
 * @param {string} name
 */
export const commandFor = (commands, name) => commands.find((command) => command.keys.includes(name));

/** How a key is shown. @param {string} key */
export const keyLabel = (key) => ({ enter: "↵", left: "←", right: "→", up: "↑", down: "↓", "ctrl+enter": "ctrl ↵" })[key] ?? key;
