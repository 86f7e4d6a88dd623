// A button that opens a small panel below it. Escape and a click elsewhere close it, and the focus returns to the button.

import { button, element, glyph, setAttribute, setText } from "../shell/elements.js";

/**
 * @param {object} options
 * @param {string} [options.look]  classes of the button
 * @param {string} [options.hostLook]  classes of the element around button and panel
 * @param {import("../pure/glyphs.js").GlyphName} [options.mark]  the glyph of the button; without one, an arrow
 *   follows the label
 * @param {(panel: HTMLElement, close: () => void) => void} options.fill  fills the panel each time it opens
 * @returns {import("../shell/elements.js").Part<{ label: string, chosen?: boolean }>}
 */
export function createMenu({ look = "button", hostLook = "", mark, fill }) {
  const label = element("span", {});
  const panel = element("div", { class: "menu", hidden: true });
  const opener = button(look, () => (panel.hidden ? open() : close()), ...(mark ? [glyph(mark), label] : [label, glyph("down")]));
  opener.setAttribute("aria-expanded", "false");
  const host = element("div", { class: `menu-host ${hostLook}` }, opener, panel);

  /** @param {Event} event */
  const outside = (event) => {
    if (!host.contains(/** @type {Node | null} */ (event.target))) close();
  };

  function open() {
    panel.replaceChildren();
    fill(panel, close);
    panel.hidden = false;
    opener.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
    /** @type {HTMLElement | null} */ (panel.querySelector("input, a, button"))?.focus();
  }

  function close() {
    if (panel.hidden) return;
    const inside = panel.contains(document.activeElement);
    panel.hidden = true;
    opener.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    if (inside) opener.focus();
  }

  host.addEventListener("keydown", (event) => {
    if (panel.hidden) return;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") step(panel, event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  host.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !host.contains(/** @type {Node} */ (event.relatedTarget))) close();
  });
  return {
    element: host,
    update(next) {
      setText(label, next.label);
      setAttribute(opener, "data-chosen", next.chosen);
    },
  };
}

/** @param {HTMLElement} panel @param {number} by */
function step(panel, by) {
  const all = /** @type {HTMLElement[]} */ ([...panel.querySelectorAll("input, a, button")]);
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  all[(at + by + all.length) % all.length]?.focus();
}
