// The one way in which the page makes and changes elements. Text is always set as text, so markup in names, outputs and errors
// stays text; the policy of the page forbids every other way.

import { GLYPHS } from "../pure/glyphs.js";

/**
 * A component: an element, and how it takes its next value. An update touches only what differs, so that focus, selection and
 * scrolling survive it.
 * @template T
 * @typedef {{ element: HTMLElement, update: (value: T) => void }} Part
 */

/**
 * @typedef {string | Node | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. An attribute that begins with "on" is a listener; true sets an empty attribute; false, null and undefined set
 * none.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

/**
 * Make an element of a drawing.
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Name]}
 */
export function drawing(name, attributes = {}, ...children) {
  return furnish(/** @type {SVGElementTagNameMap[Name]} */ (document.createElementNS(SVG, name)), attributes, children);
}

/**
 * Make a glyph. It is decoration: the word beside it says the same.
 * @param {import("../pure/glyphs.js").GlyphName} name
 * @param {string} [look]  further classes
 */
export function glyph(name, look = "") {
  const shapes = GLYPHS[name].map(([shape, attributes]) => drawing(shape, attributes));
  return drawing("svg", { class: `glyph ${look}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, ...shapes);
}

/**
 * Make a button.
 * @param {string} look  classes
 * @param {(event: MouseEvent) => void} act
 * @param {...Child} children
 */
export const button = (look, act, ...children) => element("button", { type: "button", class: look, onclick: act }, ...children);

/**
 * Make a button that is a glyph; its words are heard, and seen as a tooltip.
 * @param {import("../pure/glyphs.js").GlyphName} name
 * @param {string} words
 * @param {(event: MouseEvent) => void} act
 */
export const iconButton = (name, words, act) =>
  element("button", { type: "button", class: "icon-button", title: words, "aria-label": words, onclick: act }, glyph(name));

/** The attributes of a field for names and ids, which browsers should not correct. */
export const PLAIN_TEXT = { type: "text", autocomplete: "off", spellcheck: "false" };

/**
 * @template {Element} Made
 * @param {Made} made
 * @param {Attributes} attributes
 * @param {Child[]} children
 * @returns {Made}
 */
function furnish(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else setAttribute(made, name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/**
 * Set an attribute if it differs.
 * @param {Element} of
 * @param {string} name
 * @param {string | number | boolean | null | undefined} value
 */
export function setAttribute(of, name, value) {
  const text = value === true ? "" : String(value);
  if (value === false || value === null || value === undefined) of.removeAttribute(name);
  else if (of.getAttribute(name) !== text) of.setAttribute(name, text);
}

/**
 * Set the text of an element if it differs: an equal text keeps its selection.
 * @param {Element} of
 * @param {string} text
 */
export function setText(of, text) {
  if (of.textContent !== text) of.textContent = text;
}

/**
 * Set a sentence in which some names are code. The text of the element is the sentence, letter by letter.
 * @param {Element} of
 * @param {{ text: string, code: boolean }[]} parts
 */
export function setSentence(of, parts) {
  const whole = parts.map((part) => part.text).join("");
  if (of.textContent === whole && of.childElementCount === parts.filter((part) => part.code).length) return;
  of.replaceChildren(...parts.map((part) => (part.code ? element("code", {}, part.text) : part.text)));
  of.classList.toggle("begins-with-name", Boolean(parts[0]?.code)); // a name keeps its small letter
}

/**
 * Keep the children of an element in step with a list. An item with the same key keeps its element, and an element moves only if
 * it has to, because moving takes the focus away.
 * @template T
 * @param {Element} parent
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Part<T>} make
 * @returns {(items: T[]) => void}
 */
export function keepChildren(parent, keyOf, make) {
  /** @type {Map<string, Part<T>>} */
  let kept = new Map();
  return (items) => {
    /** @type {Map<string, Part<T>>} */
    const next = new Map();
    for (const item of items) {
      const key = keyOf(item);
      const part = kept.get(key) ?? make(item);
      part.update(item);
      next.set(key, part);
    }
    for (const [key, part] of kept) if (!next.has(key)) part.element.remove();
    let place = parent.firstElementChild;
    for (const part of next.values()) {
      if (part.element === place) place = place.nextElementSibling;
      else parent.insertBefore(part.element, place);
    }
    kept = next;
  };
}
