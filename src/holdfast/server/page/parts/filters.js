// The filters of the Runs screen. Each is a menu whose choices are links, so that a choice is a place like any other.

import { SINCE } from "../pure/filters.js";
import { formatFragment, withQuery } from "../pure/fragments.js";
import { PLAIN_TEXT, element } from "../shell/elements.js";
import { createMenu } from "./menu.js";

/**
 * @typedef {import("../pure/fragments.js").Place} Place
 * @typedef {{ value: string, words: string }} Choice
 *
 * @typedef {object} Known  what the reader can choose from
 * @property {() => Choice[]} flows
 * @property {() => Choice[]} labels
 * @property {() => Promise<Choice[]> | Choice[]} queues
 */

const STARTED = Object.entries(SINCE).map(([value, [, words]]) => ({ value, words }));

/**
 * @param {Known} known
 * @param {(place: Place) => void} go
 * @returns {import("../shell/elements.js").Part<Place>}
 */
export function createFilters(known, go) {
  /** @type {Place} */
  let place = { screen: "runs", query: {} };

  /**
   * @param {string} name  of the parameter
   * @param {string} words
   * @param {() => Choice[] | Promise<Choice[]>} choices
   * @param {string} [typed]  what can be typed instead, as an example
   */
  function filter(name, words, choices, typed) {
    /** @param {string | undefined} value */
    const at = (value) => withQuery(place, { [name]: value });
    const menu = createMenu({
      async fill(panel, close) {
        const list = element("ul", { class: "menu-list" });
        /** @param {string} value */
        function choose(value) {
          close();
          go(at(value));
        }
        panel.append(typed ? typeIn(words, typed, choose) : "", list);
        const any = { value: "", words: name === "since" ? "any time" : `any ${words.toLowerCase()}` };
        for (const { value, words: text } of [any, ...(await choices())]) {
          const current = (place.query[name]?.[0] ?? "") === value && "true";
          const link = element("a", { href: formatFragment(at(value)), "aria-current": current, onclick: close }, text);
          list.append(element("li", {}, link));
        }
        if (!typed) list.querySelector("a")?.focus();
      },
    });
    return {
      menu,
      show() {
        const value = place.query[name]?.[0];
        const text = (name === "since" && SINCE[value ?? ""]?.[1]) || value;
        menu.element.hidden = name === "origin" && !value; // only a link chooses it
        menu.update({ label: value ? `${words}: ${text}` : words, chosen: Boolean(value) });
      },
    };
  }

  const filters = [
    filter("flow", "Flow", known.flows, "order"),
    filter("label", "Label", known.labels, "customer=acme"),
    filter("queue", "Queue", known.queues),
    filter("since", "Started", () => STARTED),
    filter("origin", "Caller", () => []),
  ];
  return {
    element: element(
      "div",
      { class: "filters", role: "group", "aria-label": "Filters" },
      ...filters.map((one) => one.menu.element),
    ),
    update(next) {
      place = next;
      for (const one of filters) one.show();
    },
  };
}

/**
 * @param {string} words
 * @param {string} example
 * @param {(value: string) => void} choose
 */
function typeIn(words, example, choose) {
  const field = element("input", { ...PLAIN_TEXT, class: "field", "aria-label": words, placeholder: example });
  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    choose(field.value.trim());
  }
  return element("form", { class: "menu-form", onsubmit: submit }, field);
}
