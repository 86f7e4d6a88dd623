// The live region: what changed, for those who do not see it. See `pure/announcements.js` for how often.

import { beginAnnouncements, noteMessage, sayNow } from "../pure/announcements.js";
import { element, setText } from "./elements.js";

/** @typedef {(subject: string, message: string) => void} Announce */

/**
 * @param {import("./clock.js").Clock} clock
 * @returns {{ element: HTMLElement, announce: Announce }}
 */
export function createAnnouncer(clock) {
  const region = element("div", { class: "unseen", role: "status", "aria-live": "polite" });
  let all = beginAnnouncements();
  clock.onTick(() => {
    const [said, rest] = sayNow(all, clock.now());
    all = rest;
    if (said !== null) setText(region, said);
  });
  return {
    element: region,
    announce(subject, message) {
      all = noteMessage(all, subject, message);
    },
  };
}
