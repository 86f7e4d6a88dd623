// What a part reads from the server when it is shown. The answer to an earlier question is dropped; a problem is said in place.

import { whenChanged } from "../pure/depending.js";
import { formatQuery } from "../pure/fragments.js";
import { createReader } from "../shell/reader.js";
import { createBanner, problemBanner } from "./banner.js";

/**
 * @typedef {Record<string, string | number | boolean | null | undefined>} Asked  what is null or undefined is left out
 * @typedef {{ path: string, asked: Asked, follows?: unknown }} Wanted  `follows`: whatever else the answer depends on, whole,
 *   because the server may use any part of it
 */

const FETCH_MS = 500;

/**
 * @param {import("../shell/app.js").App} app
 * @param {(value: any) => void} take  null: it cannot be read
 */
export function createFetched(app, take) {
  const problem = createBanner();
  let [path, query] = ["", /** @type {import("../pure/fragments.js").Query} */ ({})];
  let [wanted, taken] = ["", ""];
  const reader = createReader(() => FETCH_MS, read);

  async function read() {
    const asked = wanted;
    const answer = await app.api.get(path, query);
    if (asked !== wanted) return;
    if (!answer.ok && !answer.problem.status && taken === asked) return; // the server does not answer, and what is known stays
    problem.update(answer.ok ? null : problemBanner(answer.problem, () => reader.ask(true)));
    taken = answer.ok ? asked : "";
    take(answer.ok ? answer.value : null);
  }

  return {
    problem: problem.element,
    ask: reader.ask,
    /** Read this, unless it was read; soon again if what the answer follows has changed. */
    want: whenChanged((/** @type {Wanted} */ next) => {
      [path, query] = [next.path, queryOf(next.asked)];
      const was = wanted;
      wanted = `${path}?${formatQuery(query)}`;
      reader.ask(wanted !== was);
    }),
  };
}

/** @param {Asked} asked @returns {import("../pure/fragments.js").Query} */
export const queryOf = (asked) =>
  Object.fromEntries(
    Object.entries(asked).flatMap(([name, value]) => (value === null || value === undefined ? [] : [[name, [String(value)]]])),
  );
