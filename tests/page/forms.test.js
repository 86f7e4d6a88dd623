import assert from "node:assert/strict";
import { test } from "node:test";

import { showChange } from "../../src/holdfast/server/page/pure/differences.js";
import { controlFor, faultsOf, readTyped } from "../../src/holdfast/server/page/pure/schemas.js";

const kind = (schema) => controlFor(schema).kind;

test("each kind of schema has its control", () => {
  assert.equal(kind({ enum: ["a", "b", "c", "d"] }), "cards");
  assert.equal(kind({ enum: ["a", "b", "c", "d", "e"] }), "select");
  assert.equal(kind({ anyOf: [{ const: "a" }, { const: "b" }] }), "cards");
  assert.equal(kind({ type: "boolean" }), "checkbox");
  assert.equal(kind({ type: "integer" }), "number");
  assert.equal(kind({ type: "string" }), "line");
  assert.equal(kind({ type: "string", maxLength: 80 }), "line");
  assert.equal(kind({ type: "string", maxLength: 81 }), "area");
  assert.equal(kind({ type: "object", properties: { a: {} } }), "group");
  assert.equal(kind({ type: "array", items: { type: "object", properties: { a: {} } } }), "rows");
  for (const schema of [
    {},
    { type: "array", items: { type: "string" } },
    { type: "object" },
    { anyOf: [{ type: "string" }, { type: "integer" }] },
  ]) {
    assert.equal(kind(schema), "json");
  }
});

const REFUND = {
  $ref: "#/$defs/Refund",
  $defs: {
    Refund: {
      title: "Refund",
      type: "object",
      required: ["decision", "amount_in_cents", "lines"],
      properties: {
        decision: { enum: ["refund", "partial"] },
        amount_in_cents: { type: "integer", minimum: 1, maximum: 4200 },
        note: { anyOf: [{ type: "string", maxLength: 500 }, { type: "null" }], default: null },
        notify: { type: "boolean", default: true },
        lines: { type: "array", minItems: 1, items: { $ref: "#/$defs/Line" } },
      },
    },
    Line: { type: "object", required: ["sku"], properties: { sku: { type: "string", pattern: "^[A-Z]+$" } } },
  },
};

test("references and optional values are followed", () => {
  const control = controlFor(REFUND);
  assert.deepEqual(
    control.controls.map((one) => [one.name, one.kind, one.required, one.label, one.help]),
    [
      ["decision", "cards", true, "Decision", ""],
      ["amount_in_cents", "number", true, "Amount in cents", "At least 1, at most 4200"],
      ["note", "area", false, "Note", "Up to 500 characters"],
      ["notify", "checkbox", false, "Notify", "Default: yes"],
      ["lines", "rows", true, "Lines", "At least 1"],
    ],
  );
  assert.deepEqual(
    control.controls[4].controls.map((one) => one.name),
    ["sku"],
  );
});

test("a wrong value is named by its path", () => {
  const control = controlFor(REFUND);
  const good = { decision: "refund", amount_in_cents: 1, lines: [{ sku: "A" }] };
  assert.deepEqual(faultsOf(control, good), []);
  const faults = faultsOf(control, { decision: "x", amount_in_cents: 8490, note: 1, lines: [{ sku: "A" }, { sku: "a" }, {}] });
  assert.deepEqual(
    faults.map((fault) => [fault.path.join("."), fault.message]),
    [
      ["decision", "Choose one of these"],
      ["amount_in_cents", "At most 4200"],
      ["note", "Must be a string"],
      ["lines.1.sku", "Must match ^[A-Z]+$"],
      ["lines.2.sku", "Required"],
    ],
  );
  assert.deepEqual(faultsOf(control, { ...good, lines: [] }), [{ path: ["lines"], message: "At least 1" }]);
});

test("typed text becomes a value, or a message", () => {
  const number = controlFor({ type: "integer" });
  const messages = (control, text) => faultsOf(control, readTyped(control, text)).map((fault) => fault.message);
  assert.equal(readTyped(number, " 42 "), 42);
  assert.deepEqual(messages(number, "4.2"), ["A whole number"]);
  assert.deepEqual(messages(number, "x"), ["Not a number"]);
  assert.equal(readTyped(number, ""), undefined);
  assert.deepEqual(readTyped(controlFor({}), '{"a": [1]}'), { a: [1] });
  assert.match(messages(controlFor({}), "{")[0], /^Not valid JSON/);
});

test("a schema that refers to itself or to nothing does not hang", () => {
  assert.equal(kind({ $ref: "#/$defs/A", $defs: { A: { $ref: "#/$defs/A" } } }), "json");
  assert.equal(kind({ $ref: "#/nowhere" }), "json");
});

test("a change shows its operation and the sides that it has", () => {
  assert.deepEqual(showChange({ operation: "append", path: ["notes"], now: { value: ["b"] } }), {
    path: "notes",
    chip: "append",
    was: null,
    now: { value: ["b"] },
  });
  const added = showChange({ operation: "add", path: ["budget"], was: { value: 41 }, now: { value: -3.1 } });
  assert.deepEqual([added.chip, added.now], ["add −3.1", { value: 37.9 }]);
  const noisy = showChange({ operation: "add", path: ["budget"], was: { value: 41 }, now: { value: -3.1000000000000014 } });
  assert.deepEqual([noisy.chip, noisy.now?.value], ["add −3.1", 37.9]);
  assert.equal(showChange({ operation: "set", path: ["a", "b"], now: { bytes: 9000, sha256: "x" } }).path, "a.b");
});
