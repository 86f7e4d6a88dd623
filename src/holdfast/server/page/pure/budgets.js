// How much of a budget is spent: a fact with a meter for each of its limits.

import { duration, number } from "./words.js";

const NEARLY = 0.8;

/**
 * @param {import("../shapes.js").ShownRun} run
 * @returns {{ name: string, value: string, meter: { part: number, tone: string } }[]}
 */
export function budgetFacts({ budget, cost, children_cost: below, active_s }) {
  /** @type {[name: string, limit: number | null | undefined, spent: number, words: (amount: number) => string][]} */
  const all = [
    ["Budget", budget?.usd, cost.usd + below.usd, (usd) => `$${usd.toFixed(2)}`],
    ["Token budget", budget?.tokens, cost.tokens + below.tokens, number],
    ["Time budget", budget?.active_s, active_s, duration],
  ];
  return all.flatMap(([name, limit, spent, words]) => {
    if (!limit) return [];
    const part = Math.min(1, spent / limit);
    const tone = part === 1 ? "fail" : part < NEARLY ? "accent" : "ask";
    return [{ name, value: `${words(spent)} of ${words(limit)}`, meter: { part, tone } }];
  });
}
