import assert from "node:assert/strict";
import { test } from "node:test";

import { formatFragment, parseFragment, tokenIn, withQuery } from "../../src/holdfast/server/page/pure/fragments.js";

test("every place is read back from its fragment", () => {
  for (const fragment of [
    "#/runs",
    "#/runs?attention=true&flow=order&status=failed&status=running",
    "#/runs/order-4711",
    "#/runs/order-4711@24?node=charge&view=state&visit=1.1.4",
    "#/compare?a=x&b=y",
    "#/questions?key=k%2F1&run=r",
    "#/workers",
    "#/doctor",
  ]) {
    assert.equal(formatFragment(parseFragment(fragment)), fragment);
  }
});

test("no fragment is the list of runs", () => {
  for (const fragment of ["", "#", "#/", "#/runs"]) assert.deepEqual(parseFragment(fragment), { screen: "runs", query: {} });
});

test("a run may be shown at a checkpoint", () => {
  assert.deepEqual(parseFragment("#/runs/a.b-c_1@17"), { screen: "run", run: "a.b-c_1", at: 17, query: {} });
});

test("a fragment that names nothing of ours is unknown", () => {
  for (const fragment of ["#/nope", "#/runs/../x", "#/runs/-x", "#/runs/a/b", "#/runs/%00", "#/runs/%zz", "#x", "#/runs/a@b"]) {
    assert.equal(parseFragment(fragment).screen, "unknown", fragment);
  }
});

test("a parameter without a value is taken off", () => {
  const place = parseFragment("#/runs?status=failed&flow=");
  assert.deepEqual(place.query, { status: ["failed"] });
  assert.deepEqual(withQuery(place, { status: undefined, flow: "order" }).query, { flow: ["order"] });
});

test("a token is read only from a fragment that is nothing else", () => {
  assert.equal(tokenIn("#token=c126e184.WT7-_x"), "c126e184.WT7-_x");
  assert.equal(tokenIn("#token=a b"), "a b", "also one that no server accepts, so that it leaves the address");
  for (const fragment of ["", "#/runs?token=x", "#token=", "#x&token=a"]) assert.equal(tokenIn(fragment), null);
});
