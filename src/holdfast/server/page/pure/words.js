// Quantities, times and names as people read them. All functions are given the present; none reads a clock.

/** @type {[seconds: number, word: string][]} */
const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];

/**
 * How long something took, to one decimal while that says something: "0.3 s", "41.2 s", "12 min", "3 h", "2 d".
 * @param {number} seconds
 */
export const duration = (seconds) => (seconds < 99.95 ? `${Math.max(0, seconds).toFixed(1)} s` : coarse(seconds));

/**
 * How long ago something was, in its largest unit: "now", "31 s", "6 min", "2 h", "1 d".
 * @param {number} seconds
 */
export const age = (seconds) => (seconds < 1.5 ? "now" : short(seconds));

/** How long ago something was, in a sentence: "now", "31 s ago". @param {number} seconds */
export const agoWords = (seconds) => (seconds < 1.5 ? "now" : `${age(seconds)} ago`);

/**
 * A length with its second unit, as the label of folded time: "74 s", "3 min", "2 h 26 min", "3 d 4 h".
 * @param {number} seconds
 */
export function span(seconds) {
  const at = UNITS.findIndex(([size]) => seconds >= size);
  if (at !== 0 && at !== 1) return short(seconds);
  const rest = seconds % UNITS[at][0];
  return rest < UNITS[at + 1][0] ? coarse(seconds) : `${coarse(seconds)} ${coarse(rest)}`;
}

/** @param {number} seconds */
const short = (seconds) => (seconds < 99.5 ? `${Math.round(seconds)} s` : coarse(seconds));

/** @param {number} seconds */
function coarse(seconds) {
  const [size, unit] = UNITS.find((one) => seconds >= one[0]) ?? UNITS[2];
  return `${Math.max(1, Math.floor(seconds / size))} ${unit}`;
}

/** @param {Intl.DateTimeFormatOptions} options @returns {(at: number) => string} */
function instants(options) {
  const format = new Intl.DateTimeFormat("en-GB", options);
  return (at) => format.format(at * 1000);
}

/** @type {Intl.DateTimeFormatOptions[]} */
const [DAY, CLOCK] = [
  { day: "numeric", month: "short" },
  { hour: "2-digit", minute: "2-digit" },
];
const inYear = instants({ ...DAY, ...CLOCK });
const inOtherYear = instants({ ...DAY, year: "numeric" });

/**
 * The time of day: "14:31:52".
 * @param {number} at  seconds since the epoch
 */
export const timeOfDay = instants({ ...CLOCK, second: "2-digit" });

/**
 * An instant as short as the present allows: "14:31:52" today, "16 Nov, 14:31" this year, else "16 Nov 2025".
 * @param {number} at
 * @param {number} now
 */
export function instant(at, now) {
  const [then, today] = [new Date(at * 1000), new Date(now * 1000)];
  if (then.getFullYear() !== today.getFullYear()) return inOtherYear(at);
  return (then.toDateString() === today.toDateString() ? timeOfDay : inYear)(at);
}

/**
 * An instant in full, for a tooltip.
 * @param {number} at
 */
export const fullInstant = instants({ dateStyle: "medium", timeStyle: "medium" });

/** A number with its thousands parted: "98,274". */
export const number = new Intl.NumberFormat("en-GB").format;

/**
 * "1 run", "2 runs", "2 runs match".
 * @param {number} count
 * @param {string} noun
 * @param {string} [plural]
 */
export const plural = (count, noun, plural = `${noun}s`) => `${number(count)} ${count === 1 ? noun : plural}`;

/**
 * How many runs of how many are listed: "15 of 98,274 · newest first".
 * @param {number} shown
 * @param {number | null} total  null if it is not known
 */
export function shownWords(shown, total) {
  if (!shown) return "";
  const count = total === null ? plural(shown, "run") : `${number(shown)} of ${number(Math.max(shown, total))}`;
  return `${count} · newest first`;
}

/** An answer in a few words: “approve”, or JSON. @param {unknown} answer */
export const answerWords = (answer) =>
  cutMiddle(typeof answer === "string" ? `“${answer}”` : (JSON.stringify(answer) ?? "nothing"), 48);

/**
 * Shorten a name in its middle, because names often differ only at their end. Counts what a reader sees as characters, so that
 * no emoji is cut in two.
 * @param {string} text
 * @param {number} max
 */
export function cutMiddle(text, max) {
  if (text.length <= max) return text;
  const characters = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  if (characters.length <= max) return text;
  const tail = Math.floor((max - 1) / 2);
  return `${characters.slice(0, max - 1 - tail).join("")}…${characters.slice(characters.length - tail).join("")}`;
}

/**
 * Text in which names of nodes, runs and workers are set as code. The parts together are the text again.
 * @param {string} text
 * @param {Iterable<string>} names
 * @returns {{ text: string, code: boolean }[]}
 */
export function markNames(text, names) {
  const known = [...new Set(names)].filter((name) => name.length > 1 || name === text).sort((a, b) => b.length - a.length);
  if (!known.length) return text ? [{ text, code: false }] : [];
  const one = known.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  const pattern = new RegExp(`(?<![\\w.-])(?:${one})(?:@[0-9]+)?(?![\\w-])`, "g");
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(pattern)) {
    if (found.index > from) parts.push({ text: text.slice(from, found.index), code: false });
    parts.push({ text: found[0], code: true });
    from = found.index + found[0].length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), code: false });
  return parts;
}

/**
 * A reason of the server. The nodes that it names in a form of its own are code: "node charge failed", "publish asks: …". A word
 * of the question, or of the error, that equals a name is none. A command between backticks is code, too.
 * @param {string} reason
 * @param {string[]} [names]  further ones
 */
export function markReason(reason, names = []) {
  const [head] = /^.*?\b(asks|failed): |.*/s.exec(reason) ?? [""];
  const found = head.matchAll(
    /\b(?:node|crashed in|now in) ([\w-]+)|^([\w-]+) (?:asks:|waits|is retried|sleeps|did not|was (?:completed|begun))/g,
  );
  const parts = markNames(head, [...names, ...[...found].map((one) => one[1] ?? one[2])]);
  const rest = head === reason ? [] : [{ text: reason.slice(head.length), code: false }];
  return [...parts, ...rest].flatMap((part) => (part.code ? part : markTicks(part.text)));
}

/** Text in which what is between backticks is code, as a message of the server quotes a command. @param {string} text */
const markTicks = (text) =>
  text
    .split(/`([^`\n]+)`/)
    .map((part, at) => ({ text: part, code: at % 2 === 1 }))
    .filter((part) => part.text);

/**
 * The store as the top bar names it: "shop · PostgreSQL", ".holdfast/runs.db".
 * @param {string} url  as `GET meta` has it, without a password
 */
export function storeName(url) {
  const [, scheme, path] = /^(\w+)[^:]*:\/\/[^/]*\/*([^?]*)/.exec(url) ?? ["", "", url];
  if (scheme.startsWith("postgres")) return `${path || "postgres"} · PostgreSQL`;
  return scheme === "memory" ? "in memory" : path.split("/").slice(-2).join("/");
}
