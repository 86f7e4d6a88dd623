// Where the reader is: the fragment of the address. Links are real links, so that Ctrl-click, copying and the back button work.

import { formatFragment, parseFragment } from "../pure/fragments.js";

/**
 * @typedef {import("../pure/fragments.js").Place} Place
 *
 * @typedef {object} Router
 * @property {() => Place} place
 * @property {(place: Place) => void} go  a step that the back button takes back
 * @property {(place: Place) => void} replace  a correction, which leaves no trace in the history
 */

/**
 * @param {(place: Place) => void} show
 * @returns {Router}
 */
export function createRouter(show) {
  const place = () => parseFragment(location.hash);
  window.addEventListener("hashchange", () => {
    // A dialog is about the place where it was opened. One that waits for an answer stays.
    document.querySelector("dialog")?.requestClose?.();
    show(place());
  });
  return {
    place,
    go(next) {
      location.hash = formatFragment(next);
    },
    replace(next) {
      const fragment = formatFragment(next);
      if (fragment === location.hash) return;
      history.replaceState(null, "", fragment);
      show(next);
    },
  };
}
