// The text that an attempt streams, put together from its log and from live chunks. A chunk has a number, so one that comes by
// both ways, or again after a lost connection, is added once. Only the end of a long text is kept.

const KEPT = 200_000;

/**
 * @typedef {object} StreamedText
 * @property {string} text
 * @property {number} count  the number of the last chunk in the text
 * @property {number} recorded  how many chunks the events of the log have so far
 * @property {boolean} isCut  the beginning is left out
 *
 * @typedef {{ node?: string | null, iteration?: number, execution?: number, attempt?: number, item?: number | null }} Streamer
 */

/** @returns {StreamedText} */
export const beginText = () => ({ text: "", count: 0, recorded: 0, isCut: false });

/**
 * Whether a chunk, or an event with chunks, is of this attempt.
 * @param {Streamer} one
 * @param {Streamer} other
 */
export const isSame = (one, other) =>
  one.node === other.node &&
  one.iteration === other.iteration &&
  one.execution === other.execution &&
  one.attempt === other.attempt &&
  (one.item ?? null) === (other.item ?? null);

/**
 * @param {StreamedText} was
 * @param {{ number: number, value?: unknown, omitted?: number }} chunk
 * @returns {StreamedText}
 */
export function addChunk(was, chunk) {
  if (chunk.number <= was.count) return was;
  return { ...append(was, [chunk.value ?? `[${chunk.omitted ?? 0} bytes]`]), count: chunk.number };
}

/**
 * Add the chunks of an event `NodeStreamed`. Those that came live before are not added again.
 * @param {StreamedText} was
 * @param {unknown[]} chunks
 * @returns {StreamedText}
 */
export function addRecorded(was, chunks) {
  const recorded = was.recorded + chunks.length;
  const fresh = chunks.slice(Math.max(0, was.count - was.recorded));
  return { ...append(was, fresh), recorded, count: Math.max(was.count, recorded) };
}

/** @param {StreamedText} was @param {unknown[]} values @returns {StreamedText} */
function append(was, values) {
  const text = was.text + values.map((value) => (typeof value === "string" ? value : `${JSON.stringify(value)}\n`)).join("");
  return text.length > 2 * KEPT ? { ...was, text: text.slice(-KEPT), isCut: true } : { ...was, text };
}
