// Forms from JSON Schema: which control each value gets, what a reader typed as a value, and what is wrong with it, by path. The
// server checks every answer again; this check is for naming a mistake at its field before anything is sent.

/**
 * @typedef {Record<string, any>} Schema
 * @typedef {(string | number)[]} Path
 * @typedef {{ path: Path, message: string }} Fault
 *
 * @typedef {"cards" | "select" | "checkbox" | "number" | "line" | "area" | "group" | "rows" | "json"} ControlKind
 *
 * @typedef {{ value: unknown, label: string, note?: string }} Option
 *
 * @typedef {object} Control
 * @property {ControlKind} kind
 * @property {string} name  the last part of its path; "" for the value as a whole
 * @property {string} label
 * @property {string} help
 * @property {boolean} required
 * @property {boolean} nullable
 * @property {unknown} [preset]  the default
 * @property {Option[]} options  of cards and select
 * @property {Control[]} controls  of a group, or of each row
 * @property {Schema} schema  without references
 */

const CARDS_MAX = 4;
const LINE_MAX = 80;

/** What a reader typed that cannot even be read as a value. */
export class Unreadable extends Error {}

/** Keyword -> whether a number, or the length of a text or list, keeps to it, and what it demands in words.
 * @type {Record<string, [keeps: (size: number, limit: number) => boolean, words: string, unit?: string]>} */
const LIMITS = {
  minimum: [(size, limit) => size >= limit, "At least "],
  exclusiveMinimum: [(size, limit) => size > limit, "More than "],
  maximum: [(size, limit) => size <= limit, "At most "],
  exclusiveMaximum: [(size, limit) => size < limit, "Less than "],
  multipleOf: [(size, limit) => size % limit === 0, "A multiple of "],
  minLength: [(size, limit) => size >= limit, "At least ", " characters"],
  maxLength: [(size, limit) => size <= limit, "Up to ", " characters"],
  minItems: [(size, limit) => size >= limit, "At least "],
  maxItems: [(size, limit) => size <= limit, "At most "],
};

/** The limits that a schema has, and what they demand. @param {Schema} schema */
const limitsOf = (schema) =>
  Object.entries(LIMITS)
    .filter(([keyword]) => keyword in schema)
    .map(([keyword, [keeps, words, unit = ""]]) => ({
      keeps: (/** @type {number} */ size) => keeps(size, schema[keyword]),
      words: `${words}${schema[keyword]}${unit}`,
    }));

/**
 * The control for a schema.
 * @param {Schema} schema
 * @param {{ name?: string, required?: boolean, root?: Schema }} [at]
 * @returns {Control}
 */
export function controlFor(schema, { name = "", required = true, root = schema } = {}) {
  const { plain, nullable } = resolve(schema, root);
  const options = optionsOf(plain);
  const inner = plain.type === "array" ? resolve(plain.items, root).plain : plain;
  const kind = kindOf(plain, options, inner);
  return {
    kind,
    name,
    label: plain.title && name && plain.title !== name ? plain.title : labelOf(name),
    help: helpFor(plain, required),
    required,
    nullable,
    ...("default" in plain ? { preset: plain.default } : {}),
    options,
    controls: Object.entries(inner.properties ?? {}).map(([one, of]) =>
      controlFor(of, { name: one, required: Boolean(inner.required?.includes(one)), root }),
    ),
    schema: plain,
  };
}

/** @type {Record<string, ControlKind>} */
const KINDS = { boolean: "checkbox", integer: "number", number: "number", string: "line" };

/**
 * @param {Schema} schema
 * @param {Option[]} options
 * @param {Schema} inner  of a list: what is in it
 * @returns {ControlKind}
 */
function kindOf({ type, maxLength }, options, inner) {
  if (options.length) return options.length <= CARDS_MAX ? "cards" : "select";
  if (type === "string" && maxLength > LINE_MAX) return "area";
  if (inner.properties) return type === "array" ? "rows" : "group";
  return KINDS[type] ?? "json";
}

/**
 * A schema without its reference, and without the null that makes it optional.
 * @param {Schema} schema
 * @param {Schema} root
 * @returns {{ plain: Schema, nullable: boolean }}
 */
function resolve(schema, root) {
  let plain = schema ?? {};
  let nullable = false;
  for (let depth = 0; depth < 10; depth += 1) {
    const { $ref, anyOf, oneOf, allOf, ...rest } = plain;
    const choices = anyOf ?? oneOf ?? allOf;
    const others = choices?.filter((/** @type {Schema} */ one) => one.type !== "null");
    if ($ref) plain = { ...lookUp($ref, root), ...rest };
    else if (others?.length === 1) plain = { ...others[0], ...rest };
    else if (others && !allOf) plain = { ...rest, anyOf: others };
    nullable ||= others?.length < choices?.length;
    if (!$ref && others?.length !== 1) break;
  }
  if (Array.isArray(plain.type)) {
    nullable ||= plain.type.includes("null");
    plain = { ...plain, type: plain.type.find((/** @type {string} */ one) => one !== "null") };
  }
  return { plain, nullable };
}

/** @param {string} reference @param {Schema} root @returns {Schema} */
function lookUp(reference, root) {
  /** @type {any} */
  let found = root;
  for (const part of reference.split("/").slice(1)) found = found?.[part.replaceAll("~1", "/").replaceAll("~0", "~")];
  return found ?? {};
}

/** The values among which one is chosen; none if the schema allows others. @param {Schema} schema @returns {Option[]} */
function optionsOf(schema) {
  /** @type {Schema[]} */
  const choices = schema.enum?.map((/** @type {unknown} */ one) => ({ const: one })) ?? schema.anyOf ?? [schema];
  const options = choices.map(({ const: value, enum: [only] = [value], title, description }) => ({
    value: only,
    label: (choices.length > 1 && title) || String(only),
    note: description,
  }));
  return options.some(({ value }) => value === undefined) ? [] : options;
}

/** "amount_in_cents" -> "Amount in cents". @param {string} name */
const labelOf = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

/** @param {Schema} schema @param {boolean} required */
function helpFor(schema, required) {
  if (schema.description) return schema.description;
  if (schema.type === "boolean" && "default" in schema) return `Default: ${schema.default ? "yes" : "no"}`;
  const limits = limitsOf(schema).map(({ words }, at) => (at ? words.toLowerCase() : words));
  return limits.join(", ") || (required ? "" : "Optional");
}

/**
 * What a reader typed into a control, as a value; undefined for a field that was left empty.
 * @param {Control} control
 * @param {string} typed
 * @returns {unknown}
 */
export function readTyped({ kind, schema, nullable, required }, typed) {
  const text = typed.trim();
  if (!text) return nullable && required ? null : undefined;
  if (kind === "number") return Number.isFinite(Number(text)) ? Number(text) : new Unreadable("Not a number");
  if (kind !== "json") return typed;
  try {
    return JSON.parse(text);
  } catch (fault) {
    // Where any value fits, words are an answer too, unless they begin as JSON does.
    if (!schema.type && !schema.anyOf && !/^[{["]/.test(text)) return text;
    return new Unreadable(`Not valid JSON: ${/** @type {Error} */ (fault).message}`);
  }
}

/**
 * What is wrong with a value, by path, in the order of the form; empty if nothing is.
 * @param {Control} control
 * @param {any} value
 * @param {Path} [path]
 * @returns {Fault[]}
 */
export function faultsOf(control, value, path = []) {
  if (value === undefined) return control.required && !("preset" in control) ? [{ path, message: "Required" }] : [];
  if (value === null && control.nullable) return [];
  const message = messageFor(control, value);
  const own = message ? [{ path, message }] : [];
  const inside = (/** @type {any} */ row, /** @type {Path} */ at) =>
    control.controls.flatMap((one) => faultsOf(one, row[one.name], [...at, one.name]));
  if (control.kind === "group") return inside(value, path);
  if (control.kind !== "rows") return own;
  return [...own, ...value.flatMap((/** @type {unknown} */ row, /** @type {number} */ at) => inside(row, [...path, at]))];
}

/** @param {Control} control @param {unknown} value */
function messageFor({ schema, options }, value) {
  if (value instanceof Unreadable) return value.message;
  if (options.length)
    return options.some((one) => JSON.stringify(one.value) === JSON.stringify(value)) ? "" : "Choose one of these";
  const type = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
  const wanted = schema.type === "integer" ? "number" : schema.type;
  if (wanted && wanted !== type) return `Must be ${/^[aeiou]/.test(wanted) ? "an" : "a"} ${wanted}`;
  if (schema.type === "integer" && !Number.isInteger(value)) return "A whole number";
  if (type !== "number" && type !== "string" && type !== "array") return "";
  // JSON Schema counts code points.
  const size = type === "number" ? Number(value) : [.../** @type {string} */ (value)].length;
  const broken = limitsOf(schema).find(({ keeps }) => !keeps(size));
  if (broken) return broken.words;
  return type === "string" && !matches(schema.pattern, /** @type {string} */ (value)) ? `Must match ${schema.pattern}` : "";
}

/** @param {string | undefined} pattern @param {string} value */
function matches(pattern, value) {
  try {
    return pattern === undefined || new RegExp(pattern, "u").test(value);
  } catch {
    return true; // a pattern of another dialect: the server checks it
  }
}
