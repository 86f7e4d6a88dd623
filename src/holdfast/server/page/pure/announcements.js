// What a screen reader is told: one message in five seconds, the latest of each subject. A stream of changes must not read on
// for minutes.

export const PAUSE_S = 5;

/**
 * @typedef {object} Announcements
 * @property {Map<string, string>} waiting  subject -> message
 * @property {number} saidAt
 */

/** @returns {Announcements} */
export const beginAnnouncements = () => ({ waiting: new Map(), saidAt: -Infinity });

/**
 * Note a message. A later one about the same subject replaces it.
 * @param {Announcements} all
 * @param {string} subject
 * @param {string} message
 * @returns {Announcements}
 */
export const noteMessage = (all, subject, message) => ({ ...all, waiting: new Map(all.waiting).set(subject, message) });

/**
 * What to say now: all that waits, in one message; null while the last one is too recent.
 * @param {Announcements} all
 * @param {number} now
 * @returns {[said: string | null, Announcements]}
 */
export function sayNow(all, now) {
  if (!all.waiting.size || now - all.saidAt < PAUSE_S) return [null, all];
  const messages = [...all.waiting.values()];
  const said = messages.length > 3 ? [...messages.slice(0, 2), `and ${messages.length - 2} more changes`] : messages;
  return [said.join(". "), { waiting: new Map(), saidAt: now }];
}
