import assert from "node:assert/strict";
import { test } from "node:test";

import { isEqual, whenChanged } from "../../src/holdfast/server/page/pure/depending.js";

test("values are equal if they are the same data, however they were made", () => {
  const made = Object.assign(Object.create(null), { a: [1, { b: null }] });
  assert.ok(isEqual(made, { a: [1, { b: null }] }));
  assert.ok(isEqual(NaN, NaN));
  for (const other of [{ a: [1, {}] }, { a: [1, { b: undefined }] }, { a: [1] }, { a: 1 }, {}, null, undefined, []])
    assert.ok(!isEqual(made, other));
  assert.ok(!isEqual([], {}));
  assert.ok(!isEqual({ a: undefined }, { b: undefined }));
});

test("what is no plain data is equal only to itself, because its parts cannot be seen", () => {
  const set = new Set(["a"]);
  assert.ok(isEqual({ set }, { set }));
  assert.ok(!isEqual(set, new Set(["b"])));
  assert.ok(!isEqual(new Map(), new Map()));
});

test("a part acts on any change of what it is given, and on nothing else", () => {
  const seen = [];
  const show = whenChanged((value, before) => seen.push([value, before]));
  assert.deepEqual(
    [undefined, undefined, { mark: { crashed: false } }, { mark: { crashed: false } }, { mark: { crashed: true } }].map(show),
    [true, false, true, false, true],
  );
  assert.deepEqual(seen, [
    [undefined, undefined],
    [{ mark: { crashed: false } }, undefined],
    [{ mark: { crashed: true } }, { mark: { crashed: false } }],
  ]);
});
