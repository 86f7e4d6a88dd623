// A place whose content is made again only when what it shows has changed, so that what a reader opened in it stays open.

import { whenChanged } from "../pure/depending.js";
import { element } from "../shell/elements.js";

/**
 * @template T
 * @param {string} look  classes
 * @param {(value: T) => (Node | null | false)[]} make  no content hides the place
 * @returns {import("../shell/elements.js").Part<T>}
 */
export function createSlot(look, make) {
  const host = element("div", { class: look, hidden: true });
  const update = whenChanged((/** @type {T} */ value) => {
    const content = make(value).flatMap((one) => one || []);
    host.replaceChildren(...content);
    host.hidden = !content.length;
  });
  return { element: host, update };
}
