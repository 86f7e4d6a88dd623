// A banner: what happened, in a tone, with at most one thing to do. It takes no room while there is nothing to say.

import { timeOfDay } from "../pure/words.js";
import { button, element, glyph, setAttribute, setText } from "../shell/elements.js";

/**
 * @typedef {object} BannerText
 * @property {"ask" | "fail" | "accent"} tone
 * @property {import("../pure/glyphs.js").GlyphName} glyph
 * @property {string} title
 * @property {string} [detail]
 * @property {{ words: string, act: () => void }} [action]
 */

/** @returns {import("../shell/elements.js").Part<BannerText | null>} */
export function createBanner() {
  const title = element("strong", {});
  const detail = element("p", {});
  const act = button("button", () => shown?.action?.act());
  const host = element(
    "div",
    { class: "banner", role: "alert", hidden: true },
    glyph("warning"),
    element("div", {}, title, detail),
    act,
  );
  /** @type {BannerText | null} */
  let shown = null;
  return {
    element: host,
    update(next) {
      if (next && next.glyph !== shown?.glyph)
        host.replaceChild(glyph(next.glyph), /** @type {Element} */ (host.firstElementChild));
      shown = next;
      host.hidden = !next;
      if (!next) return;
      setAttribute(host, "data-tone", next.tone);
      setText(title, next.title);
      setText(detail, next.detail ?? "");
      detail.hidden = !next.detail;
      setText(act, next.action?.words ?? "");
      act.hidden = !next.action;
    },
  };
}

/**
 * The words for a stream whose connection is lost; null while it is not.
 * @param {import("../shell/app.js").Streamed} stream
 * @returns {BannerText | null}
 */
export function connectionBanner({ connection, retry }) {
  const { state, failures, heardAt, retryAt } = connection();
  if (!failures) return null;
  const wait = state === "lost" ? Math.ceil(retryAt - Date.now() / 1000) : 0;
  const next = wait > 0 ? `in ${wait} s` : "now";
  return {
    tone: "ask",
    glyph: "offline",
    title: `Not live since ${timeOfDay(heardAt)}. Trying again ${next}.`,
    action: { words: "Try now", act: retry },
  };
}

/**
 * The words for a problem: title, reason, and the way out.
 * @param {import("../shapes.js").Problem} problem
 * @param {() => void} again
 * @returns {BannerText}
 */
export const problemBanner = (problem, again) => ({
  tone: "fail",
  glyph: "failed",
  title: problem.title,
  detail: [problem.detail, problem.remedy].filter(Boolean).join(" "),
  action: { words: "Try again", act: again },
});
