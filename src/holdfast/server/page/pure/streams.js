// The text that an attempt streams, put together from its log and from live chunks. A chunk has a number, so one that comes by
// both ways, or again after a lost connection, is added once. Only the end of a long text is kept.

const KEPT = 50_000;

/**
 * @typedef {object} StreamedText
 * @property {string} text
 * @property {number} count  the number of the last chunk in the text
 * @property {number} recorded  how many chunks the events of the log have so far
 * @property {number} seq  the last of these events
 * @property {boolean} isCut  the beginning is left out
 *
 * @typedef {{ node?: string | null, iteration?: number, execution?: number, attempt?: number, item?: number | null }} Streamer
 * @typedef {Streamer & { number: number, value?: unknown, omitted?: number }} StreamChunk
 */

/** @returns {StreamedText} */
export const beginText = () => ({ text: "", count: 0, recorded: 0, seq: 0, isCut: false });

/** @param {Streamer} one */
const streamerName = ({ node, iteration, execution, attempt, item }) => [node, iteration, execution, attempt, item].join();

/**
 * Whether a chunk, or an event with chunks, is of this attempt.
 * @param {Streamer} one
 * @param {Streamer} other
 */
export const isSame = (one, other) => streamerName(one) === streamerName(other);

/** @param {unknown} value  of a chunk */
export const textOf = (value) => (typeof value === "string" ? value : `${JSON.stringify(value)}\n`);

/**
 * @param {StreamedText} was
 * @param {StreamChunk} chunk
 * @returns {StreamedText}
 */
export function addChunk(was, { number, value, omitted }) {
  if (number <= was.count) return was;
  const isCut = was.isCut || number > was.count + 1;
  return append({ ...was, count: number, isCut }, [omitted ? `[${omitted} bytes]` : value]);
}

/**
 * Add the chunks of an event `NodeStreamed`. Those that came live before are not added again, nor is an event that was added.
 * @param {StreamedText} was
 * @param {number} seq
 * @param {unknown[]} chunks
 * @returns {StreamedText}
 */
export function addRecorded(was, seq, chunks) {
  if (seq <= was.seq) return was;
  const recorded = was.recorded + chunks.length;
  const fresh = chunks.slice(Math.max(0, was.count - was.recorded));
  return append({ ...was, seq, recorded, count: Math.max(was.count, recorded) }, fresh);
}

/** @param {StreamedText} was @param {unknown[]} values @returns {StreamedText} */
function append(was, values) {
  const text = was.text + values.map(textOf).join("");
  return text.length > 2 * KEPT ? { ...was, text: text.slice(-KEPT), isCut: true } : { ...was, text };
}
