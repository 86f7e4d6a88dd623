import assert from "node:assert/strict";
import { test } from "node:test";

import { filterParameters, filterWords, meetsFilters, withoutFilter } from "../../src/holdfast/server/page/pure/filters.js";
import { beginList, extendList, receiveRow, releaseFresh } from "../../src/holdfast/server/page/pure/rows.js";

const row = (id, created_at, changes = {}) => ({
  id,
  flow: "order",
  status: "running",
  seq: 1,
  labels: {},
  created_at,
  updated_at: created_at,
  queue: "default",
  crashed: false,
  asks: 0,
  needs_attention: false,
  ...changes,
});
const all = () => true;
const ids = (rows) => rows.map((one) => one.id);

test("a shown row changes where it is", () => {
  const list = beginList({ runs: [row("c", 3), row("b", 2), row("a", 1)], next: null });
  const after = receiveRow(list, row("b", 2, { seq: 2, status: "failed" }), () => false);
  assert.deepEqual(ids(after.rows), ["c", "b", "a"]);
  assert.equal(after.rows[1].status, "failed");
});

test("a new run waits behind the pill, and is shown when asked for", () => {
  let list = beginList({ runs: [row("b", 2)], next: null });
  list = receiveRow(list, row("c", 3), all);
  list = receiveRow(list, row("e", 5), all);
  list = receiveRow(list, row("d", 4), all);
  assert.deepEqual([ids(list.rows), ids(list.fresh)], [["b"], ["e", "d", "c"]]);
  assert.deepEqual(ids(releaseFresh(list).rows), ["e", "d", "c", "b"]);
});

test("a waiting run that no longer meets the filters leaves the pill", () => {
  let list = receiveRow(beginList({ runs: [row("b", 2)], next: null }), row("c", 3), all);
  list = receiveRow(list, row("c", 3, { status: "completed" }), () => false);
  assert.deepEqual(list.fresh, []);
});

test("a run of a later page, and a row that came late, change nothing", () => {
  const list = beginList({ runs: [row("b", 2, { seq: 5 })], next: "more" });
  assert.equal(receiveRow(list, row("a", 1), all), list);
  assert.equal(receiveRow(list, row("b", 2, { seq: 4 }), all), list);
  assert.equal(receiveRow(list, row("b", 2, { seq: 5 }), all), list);
});

test("a crash changes a row without an event", () => {
  const list = beginList({ runs: [row("b", 2)], next: null });
  assert.equal(receiveRow(list, row("b", 2, { crashed: true }), all).rows[0].crashed, true);
});

test("a further page repeats no row", () => {
  const list = extendList(beginList({ runs: [row("b", 2)], next: "x" }), { runs: [row("b", 2), row("a", 1)], next: null });
  assert.deepEqual([ids(list.rows), list.next], [["b", "a"], null]);
});

test("filters are sent as the server names them, and read as words", () => {
  const query = { status: ["failed"], since: ["1h"], find: ["ord"], label: ["a=b"], view: ["x"] };
  assert.deepEqual(filterParameters(query, 7230), { status: ["failed"], label: ["a=b"], since: ["3600"], prefix: ["ord"] });
  assert.deepEqual(
    filterWords(query).map((one) => one.words),
    ["failed", "a=b", "started in the last hour", "id begins with ord"],
  );
  assert.deepEqual(withoutFilter({ status: ["failed", "paused"] }, { name: "status", value: "failed" }), { status: ["paused"] });
  assert.deepEqual(withoutFilter({ status: ["failed"] }, { name: "status", value: "failed" }), {});
});

test("filters are met as the server means them", () => {
  const one = row("order-1", 1000, { labels: { region: "eu=1" }, asks: 1, needs_attention: true });
  const meets = (query) => meetsFilters(one, query, 2000);
  assert.ok(meets({}));
  assert.ok(
    meets({ status: ["failed", "running"], label: ["region=eu=1"], since: ["1h"], find: ["order"], attention: ["true"] }),
  );
  for (const query of [
    { status: ["failed"] },
    { flow: ["x"] },
    { queue: ["x"] },
    { label: ["region=us"] },
    { since: ["15min"] },
    { find: ["x"] },
    { origin: ["x"] },
  ]) {
    assert.ok(!meets(query), JSON.stringify(query));
  }
});
