// Forms from JSON Schema: which control each value gets, what a reader typed as a value, and what is wrong with it, by path. The
// server checks every answer again; this check is for naming a mistake at its field before anything is sent.

/**
 * @typedef {Record<string, any>} Schema
 * @typedef {(string | number)[]} Path
 * @typedef {{ path: Path, message: string }} Fault
 *
 * @typedef {"cards" | "select" | "checkbox" | "number" | "line" | "area" | "group" | "rows" | "json"} ControlKind
 *
 * @typedef {object} Control
 * @property {ControlKind} kind
 * @property {string} name  the last part of its path; "" for the value as a whole
 * @property {string} label
 * @property {string} help
 * @property {boolean} required
 * @property {boolean} nullable
 * @property {unknown} [preset]  the default
 * @property {unknown[]} options  of cards and select
 * @property {boolean} integer
 * @property {Control[]} controls  of a group, or of each row
 * @property {Schema} schema  without references
 */

const CARDS_MAX = 4;
const LINE_MAX = 80;

/**
 * The control for a schema.
 * @param {Schema} schema
 * @param {{ name?: string, required?: boolean, root?: Schema }} [at]
 * @returns {Control}
 */
export function controlFor(schema, { name = "", required = true, root = schema } = {}) {
  const { plain, nullable } = resolve(schema, root);
  const options = plain.enum ?? (plain.const === undefined ? plain.anyOf?.map(constOf) : [plain.const]) ?? [];
  const known = options.every((/** @type {unknown} */ one) => one !== undefined) ? options : [];
  const kind = kindOf(plain, known, root);
  const inner = kind === "rows" ? resolve(plain.items, root).plain : plain;
  return {
    kind,
    name,
    label: plain.title && name && plain.title !== name ? plain.title : words(name),
    help: helpFor(plain, required),
    required,
    nullable,
    ...("default" in schema || "default" in plain ? { preset: schema.default ?? plain.default } : {}),
    options: known,
    integer: plain.type === "integer",
    controls: kind === "group" || kind === "rows" ? controlsOf(inner, root) : [],
    schema: plain,
  };
}

/**
 * @param {Schema} schema
 * @param {Schema} root
 */
function controlsOf(schema, root) {
  return Object.entries(schema.properties ?? {}).map(([name, of]) =>
    controlFor(/** @type {Schema} */ (of), { name, required: (schema.required ?? []).includes(name), root }),
  );
}

/**
 * @param {Schema} schema
 * @param {unknown[]} options
 * @param {Schema} root
 * @returns {ControlKind}
 */
function kindOf(schema, options, root) {
  if (options.length) return options.length <= CARDS_MAX ? "cards" : "select";
  switch (schema.type) {
    case "boolean":
      return "checkbox";
    case "integer":
    case "number":
      return "number";
    case "string":
      return (schema.maxLength ?? 0) > LINE_MAX ? "area" : "line";
    case "object":
      return schema.properties ? "group" : "json";
    case "array":
      return schema.items && resolve(schema.items, root).plain.properties ? "rows" : "json";
    default:
      return "json";
  }
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
    const choices = plain.anyOf ?? plain.oneOf;
    const others = choices?.filter((/** @type {Schema} */ one) => one.type !== "null");
    if (typeof plain.$ref === "string") plain = { ...lookUp(plain.$ref, root), ...without(plain, "$ref") };
    else if (others && others.length < choices.length) {
      nullable = true;
      plain = others.length === 1 ? { ...others[0], ...without(plain, "anyOf", "oneOf") } : { ...plain, anyOf: others };
    } else if (plain.allOf?.length === 1) plain = { ...plain.allOf[0], ...without(plain, "allOf") };
    else break;
  }
  if (Array.isArray(plain.type) && plain.type.includes("null")) {
    nullable = true;
    plain = { ...plain, type: plain.type.find((/** @type {string} */ one) => one !== "null") };
  }
  return { plain, nullable };
}

/** @param {string} reference @param {Schema} root @returns {Schema} */
function lookUp(reference, root) {
  /** @type {any} */
  let found = root;
  for (const part of reference.replace(/^#\/?/, "").split("/")) found = found?.[part.replace(/~1/g, "/").replace(/~0/g, "~")];
  return found ?? {};
}

/** @param {Schema} schema @param {...string} names */
const without = (schema, ...names) => Object.fromEntries(Object.entries(schema).filter(([name]) => !names.includes(name)));

/** @param {Schema} schema */
const constOf = (schema) => schema.const ?? (schema.enum?.length === 1 ? schema.enum[0] : undefined);

/** "amount_in_cents" -> "Amount in cents". @param {string} name */
const words = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

/** @param {Schema} schema @param {boolean} required */
function helpFor(schema, required) {
  if (schema.description) return String(schema.description);
  if (schema.type === "string" && schema.maxLength) return `Up to ${schema.maxLength} characters`;
  const { least, most } = boundsOf(schema);
  if (least !== undefined && most !== undefined) return `${least} to ${most}`;
  if (most !== undefined) return `At most ${most}`;
  if (least !== undefined) return `At least ${least}`;
  if (schema.type === "boolean" && "default" in schema) return `Default: ${schema.default ? "yes" : "no"}`;
  return required ? "" : "Optional";
}

/** @param {Schema} schema */
const boundsOf = (schema) => ({
  least: schema.minimum ?? schema.exclusiveMinimum,
  most: schema.maximum ?? schema.exclusiveMaximum,
});

/**
 * What a reader typed into a control, as a value; undefined for a field that was left empty.
 * @param {Control} control
 * @param {string} typed
 * @returns {{ value: unknown } | { message: string }}
 */
export function readTyped(control, typed) {
  const text = control.kind === "line" || control.kind === "area" ? typed : typed.trim();
  if (text === "") return { value: control.nullable && control.required ? null : undefined };
  if (control.kind === "number") {
    const value = Number(text);
    if (!Number.isFinite(value)) return { message: "Not a number" };
    return control.integer && !Number.isInteger(value) ? { message: "A whole number" } : { value };
  }
  if (control.kind !== "json") return { value: text };
  try {
    return { value: JSON.parse(text) };
  } catch (fault) {
    // Where any value fits, words are an answer too, unless they begin as JSON does.
    if (!control.schema.type && !control.schema.anyOf && !/^[{["]/.test(text)) return { value: text };
    return { message: `Not valid JSON: ${/** @type {Error} */ (fault).message}` };
  }
}

/**
 * What is wrong with a value, by path, in the order of the form; empty if nothing is.
 * @param {Control} control
 * @param {unknown} value
 * @param {Path} [path]
 * @returns {Fault[]}
 */
export function faultsOf(control, value, path = []) {
  if (value === undefined) return control.required && !("preset" in control) ? [{ path, message: "Required" }] : [];
  if (value === null && control.nullable) return [];
  if (control.kind === "group") {
    const given = /** @type {Record<string, unknown>} */ (isObject(value) ? value : {});
    return control.controls.flatMap((one) => faultsOf(one, given[one.name], [...path, one.name]));
  }
  if (control.kind === "rows" && Array.isArray(value)) {
    const group = /** @type {Control} */ ({ ...control, kind: "group", required: true });
    return [...lengthFaults(control.schema, value, path), ...value.flatMap((row, at) => faultsOf(group, row, [...path, at]))];
  }
  const message = messageFor(control, value);
  return message ? [{ path, message }] : [];
}

/** @param {Control} control @param {unknown} value */
function messageFor({ kind, schema, options, integer }, value) {
  if (kind === "cards" || kind === "select") {
    return options.some((one) => JSON.stringify(one) === JSON.stringify(value)) ? "" : "Choose one of these";
  }
  if (kind === "checkbox") return typeof value === "boolean" ? "" : "Yes or no";
  if (kind === "number") return typeof value === "number" ? numberFault(schema, value, integer) : "Not a number";
  if (kind === "line" || kind === "area") return typeof value === "string" ? textFault(schema, value) : "Not a text";
  const type = Array.isArray(value) ? "array" : isObject(value) ? "object" : value === null ? "null" : typeof value;
  const wanted = schema.type === "integer" ? "number" : schema.type;
  return wanted && wanted !== type ? `Must be ${/^[aeiou]/.test(wanted) ? "an" : "a"} ${wanted}` : "";
}

/** @param {Schema} schema @param {number} value @param {boolean} integer */
function numberFault(schema, value, integer) {
  if (integer && !Number.isInteger(value)) return "A whole number";
  if (schema.minimum !== undefined && value < schema.minimum) return `At least ${schema.minimum}`;
  if (schema.maximum !== undefined && value > schema.maximum) return `At most ${schema.maximum}`;
  if (schema.exclusiveMinimum !== undefined && value <= schema.exclusiveMinimum) return `More than ${schema.exclusiveMinimum}`;
  if (schema.exclusiveMaximum !== undefined && value >= schema.exclusiveMaximum) return `Less than ${schema.exclusiveMaximum}`;
  if (schema.multipleOf && value % schema.multipleOf !== 0) return `A multiple of ${schema.multipleOf}`;
  return "";
}

/** @param {Schema} schema @param {string} value */
function textFault(schema, value) {
  const length = [...value].length; // JSON Schema counts code points
  if (schema.minLength !== undefined && length < schema.minLength) return `At least ${schema.minLength} characters`;
  if (schema.maxLength !== undefined && length > schema.maxLength) return `At most ${schema.maxLength} characters`;
  if (schema.pattern === undefined) return "";
  try {
    return new RegExp(schema.pattern, "u").test(value) ? "" : `Must match ${schema.pattern}`;
  } catch {
    return ""; // a pattern of another dialect: the server checks it
  }
}

/** @param {Schema} schema @param {unknown[]} value @param {Path} path @returns {Fault[]} */
function lengthFaults(schema, value, path) {
  if (schema.minItems !== undefined && value.length < schema.minItems) return [{ path, message: `At least ${schema.minItems}` }];
  if (schema.maxItems !== undefined && value.length > schema.maxItems) return [{ path, message: `At most ${schema.maxItems}` }];
  return [];
}

/** @param {unknown} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
