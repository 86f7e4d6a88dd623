import assert from "node:assert/strict";
import { test } from "node:test";

import {
  age,
  cutMiddle,
  duration,
  instant,
  markNames,
  markReason,
  plural,
  shownWords,
  span,
  storeName,
} from "../../src/holdfast/server/page/pure/words.js";

test("a duration has one decimal while that says something", () => {
  assert.deepEqual([0, 0.31, 9.84, 41.2, 99.94, 100, 720, 3600, 90000, 200000].map(duration), [
    "0.0 s",
    "0.3 s",
    "9.8 s",
    "41.2 s",
    "99.9 s",
    "1 min",
    "12 min",
    "1 h",
    "1 d",
    "2 d",
  ]);
});

test("an age has one unit", () => {
  assert.deepEqual([-5, 0.4, 2, 31.4, 120, 7300, 90000].map(age), ["now", "now", "2 s", "31 s", "2 min", "2 h", "1 d"]);
});

test("a span has a second unit where the first is large", () => {
  assert.deepEqual([74, 180, 8760, 7200, 273600].map(span), ["74 s", "3 min", "2 h 26 min", "2 h", "3 d 4 h"]);
});

test("an instant of another day names the day", () => {
  const now = new Date(2026, 10, 17, 14, 30).getTime() / 1000;
  assert.equal(instant(now - 60, now), "14:29:00");
  assert.equal(instant(now - 86400, now), "16 Nov, 14:30");
  assert.equal(instant(now - 366 * 86400, now), "16 Nov 2025");
});

test("a count has its noun", () => {
  assert.deepEqual(
    [plural(1, "run"), plural(98274, "run"), plural(2, "query", "queries")],
    ["1 run", "98,274 runs", "2 queries"],
  );
});

test("a long name is cut in its middle, and no character is cut in two", () => {
  assert.equal(cutMiddle("validate", 12), "validate");
  assert.equal(cutMiddle("load_customers_eu_west", 12), "load_c…_west");
  assert.equal(cutMiddle("👩‍👩‍👧".repeat(20), 5), `${"👩‍👩‍👧".repeat(2)}…${"👩‍👩‍👧".repeat(2)}`);
});

test("names in a sentence are marked, and the sentence stays as it is", () => {
  const sentence = "node charge failed: charge.py and recharge are not charge-2, but charge.";
  const parts = markNames(sentence, ["charge", ""]);
  assert.equal(parts.map((part) => part.text).join(""), sentence);
  assert.deepEqual(parts.filter((part) => part.code).length, 3);
  assert.deepEqual(
    markNames("a (b) c", ["(b)"]).map((part) => part.code),
    [false, true, false],
  );
  assert.deepEqual(markNames("", ["x"]), []);
});

test("a store has a short name", () => {
  assert.equal(storeName("postgresql://db.example.com/shop"), "shop · PostgreSQL");
  assert.equal(storeName("sqlite:////srv/app/.holdfast/runs.db"), ".holdfast/runs.db");
  assert.equal(storeName("memory://"), "in memory");
});

test("a list says how many of how many it shows", () => {
  assert.equal(shownWords(15, 98274), "15 of 98,274 · newest first");
  assert.equal(shownWords(1, null), "1 run · newest first");
  assert.equal(shownWords(3, 2), "3 of 3 · newest first");
  assert.equal(shownWords(0, 5), "");
});

test("nodes are found in the reasons of the server, but not in the words of a question or an error", () => {
  const codes = (/** @type {string} */ reason) =>
    markReason(reason)
      .filter((part) => part.code)
      .map((part) => part.text);
  assert.deepEqual(codes("node charge failed: charge is closed"), ["charge"]);
  assert.deepEqual(codes("carrier asks: Which carrier for 14 pallets?"), ["carrier"]);
  assert.deepEqual(codes("pay_out did not end and is not idempotent"), ["pay_out"]);
  assert.deepEqual(codes("every branch of the flow reached its end"), []);
  const reason = "carrier asks: Which carrier\nfor 14 pallets?";
  assert.equal(
    markReason(reason)
      .map((part) => part.text)
      .join(""),
    reason,
  );
});

test("a command that the server quotes is code, without its backticks", () => {
  assert.deepEqual(markReason("no worker: `holdfast worker a.py` starts one"), [
    { text: "no worker: ", code: false },
    { text: "holdfast worker a.py", code: true },
    { text: " starts one", code: false },
  ]);
});

test("the node that the question of a fork is about is set as code", () => {
  assert.deepEqual(markReason("pay_out was completed at 12:00")[0], { text: "pay_out", code: true });
});
