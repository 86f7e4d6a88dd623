// A screen that has only one thing to say, and one way on.

import { element } from "../shell/elements.js";

/**
 * @param {string} title
 * @param {string} words
 * @param {HTMLElement} way
 */
export const createAlone = (title, words, way) =>
  element("main", { class: "screen alone", tabindex: "-1" }, element("h1", {}, title), element("p", {}, words), way);
