// A form for a value that a JSON Schema describes. `pure/schemas.js` decides which control each part gets and what is wrong; this
// part shows it. A wrong value is named at its field, and what a reader typed stays.

import { controlFor, faultsOf, readTyped } from "../pure/schemas.js";
import { button, element, glyph, setAttribute, setText } from "../shell/elements.js";

/**
 * @typedef {import("../pure/schemas.js").Control} Control
 * @typedef {import("../pure/schemas.js").Fault} Fault
 *
 * @typedef {object} SchemaForm
 * @property {HTMLElement} element
 * @property {() => { value: unknown } | { faults: Fault[] }} read  the value; if it is wrong, the form shows where
 * @property {(faults: Fault[]) => void} showFaults  those that the server found
 * @property {() => unknown} peek  the value as it is, which may be wrong; nothing is shown
 *
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {() => unknown} value
 * @property {(path: (string | number)[], message: string) => boolean} blame  whether the path was one of its own
 * @property {() => void} clear
 * @property {(path: (string | number)[]) => Fault[]} typed  what cannot even be read as a value
 */

let fieldCount = 0;

/**
 * @param {Record<string, any>} schema
 * @param {string} [label]  of a value that has no fields
 * @param {Record<string, string>} [notes]  option -> what choosing it means, shown on its card
 * @returns {SchemaForm}
 */
export function createSchemaForm(schema, label = "Answer", notes = {}) {
  const control = controlFor(schema);
  const named = { ...control, label: control.label || label };
  const field = control.kind === "cards" ? createCards(named, notes) : createField(named);
  /** @param {Fault[]} faults */
  const showFaults = (faults) => {
    field.clear();
    for (const fault of faults) field.blame(fault.path, fault.message);
    /** @type {HTMLElement | null} */ (field.element.querySelector("[aria-invalid]"))?.focus();
  };
  return {
    element: element("div", { class: "schema-form" }, field.element),
    showFaults,
    peek: field.value,
    read() {
      const value = field.value();
      const typed = field.typed([]);
      const faults = typed.length ? typed : faultsOf(control, value);
      showFaults(faults);
      return faults.length ? { faults } : { value };
    },
  };
}

/** @param {Control} control @returns {Field} */
function createField(control) {
  switch (control.kind) {
    case "group":
      return createGroup(control);
    case "rows":
      return createRows(control);
    case "cards":
      return createCards(control);
    default:
      return createLineField(control);
  }
}

/** A field with one input, its label, its help and its fault. @param {Control} control @returns {Field} */
function createLineField(control) {
  const id = `field-${(fieldCount += 1)}`;
  const input = createControl(control, id);
  const fault = createFault(id);
  const isBox = input instanceof HTMLInputElement && input.type === "checkbox";
  const label = element("label", { for: id }, control.label, control.required && !isBox ? createStar() : null);
  const help = element("p", { class: "hint" }, control.help);
  const host = element(
    "div",
    { class: `form-field ${control.kind}` },
    ...(isBox ? [input, label] : [label, input]),
    fault.element,
    help,
  );
  const read = () => {
    if (isBox) return { value: input.checked };
    if (control.kind === "select") return { value: control.options[Number(input.value)] };
    return readTyped(control, input.value);
  };
  return {
    element: host,
    value: () => /** @type {{ value?: unknown }} */ (read()).value,
    typed(path) {
      const found = read();
      return "message" in found ? [{ path, message: found.message }] : [];
    },
    blame(path, message) {
      if (path.length && control.kind !== "json") return false;
      fault.update(path.length ? `${path.join(".")}: ${message}` : message);
      setAttribute(input, "aria-invalid", "true");
      help.hidden = true;
      return true;
    },
    clear() {
      fault.update("");
      setAttribute(input, "aria-invalid", null);
      help.hidden = false;
    },
  };
}

/** @param {Control} control @param {string} id */
function createControl(control, id) {
  const common = { id, class: "field", "aria-describedby": `${id}-fault`, name: control.name };
  const preset = control.preset === undefined || control.preset === null ? "" : control.preset;
  switch (control.kind) {
    case "checkbox":
      return element("input", { ...common, class: "", type: "checkbox", checked: preset === true });
    case "select": {
      const empty = element("option", { value: "" }, control.required ? "Choose" : "None");
      const options = control.options.map((one, at) => element("option", { value: at, selected: one === preset }, String(one)));
      return element("select", common, empty, ...options);
    }
    case "area":
    case "json": {
      const area = element("textarea", { ...common, rows: control.kind === "json" ? 5 : 3, spellcheck: control.kind === "area" });
      if (control.kind === "json") area.classList.add("code");
      area.value =
        typeof preset === "string" && control.kind === "area" ? preset : preset === "" ? "" : JSON.stringify(preset, null, 2);
      return area;
    }
    default: {
      const field = element("input", {
        ...common,
        type: "text",
        inputmode: control.kind === "number" ? "decimal" : null,
        autocomplete: "off",
      });
      field.value = String(preset);
      return field;
    }
  }
}

/**
 * Up to four options as cards, which one sees all at once.
 * @param {Control} control
 * @param {Record<string, string>} [notes]
 * @returns {Field}
 */
function createCards(control, notes = {}) {
  const id = `field-${(fieldCount += 1)}`;
  const fault = createFault(id);
  const inputs = control.options.map((option) =>
    element("input", { type: "radio", name: id, checked: option === control.preset }),
  );
  const cards = inputs.map((input, at) => {
    const option = String(control.options[at]);
    const note = Object.hasOwn(notes, option) && element("span", { class: "hint" }, notes[option]);
    return element("label", { class: "card" }, input, element("span", {}, option, note));
  });
  const legend = element("legend", {}, control.label, control.required ? createStar() : null);
  const host = element(
    "fieldset",
    { class: "form-field cards", "aria-describedby": `${id}-fault` },
    legend,
    element("div", { class: "card-row" }, ...cards),
    fault.element,
  );
  return {
    element: host,
    value: () => control.options[inputs.findIndex((input) => input.checked)],
    typed: () => [],
    blame(path, message) {
      if (path.length) return false;
      fault.update(message);
      setAttribute(inputs[0], "aria-invalid", "true");
      return true;
    },
    clear() {
      fault.update("");
      setAttribute(inputs[0], "aria-invalid", null);
    },
  };
}

/** @param {Control} control @returns {Field} */
function createGroup(control) {
  const fields = control.controls.map((inner) => /** @type {const} */ ([inner, createField(inner)]));
  const inside = fields.map(([, field]) => field.element);
  const host = control.name
    ? element("fieldset", { class: "form-group" }, element("legend", {}, control.label), ...inside)
    : element("div", { class: "form-group" }, ...inside);
  return {
    element: host,
    value() {
      const pairs = fields.map(([inner, field]) => [inner.name, field.value()]).filter(([, value]) => value !== undefined);
      return pairs.length || control.required ? Object.fromEntries(pairs) : undefined;
    },
    typed: (path) => fields.flatMap(([inner, field]) => field.typed([...path, inner.name])),
    blame: ([first, ...rest], message) => fields.some(([inner, field]) => inner.name === first && field.blame(rest, message)),
    clear: () => fields.forEach(([, field]) => field.clear()),
  };
}

/** Rows of one form each, which can be added and taken away. @param {Control} control @returns {Field} */
function createRows(control) {
  /** @type {Field[]} */
  let rows = [];
  const fault = createFault(`field-${(fieldCount += 1)}`);
  const list = element("div", { class: "form-rows" });
  const add = () => {
    const row = createGroup({ ...control, kind: "group", name: "", required: true });
    const take = button(
      "icon-button",
      () => {
        rows = rows.filter((one) => one !== row);
        line.remove();
      },
      glyph("close"),
      element("span", { class: "unseen" }, "Take this row away"),
    );
    const line = element("div", { class: "form-row" }, row.element, take);
    rows.push(row);
    list.append(line);
  };
  for (let at = 0; at < (control.schema.minItems ?? 0); at += 1) add();
  return {
    element: element(
      "fieldset",
      { class: "form-field rows" },
      element("legend", {}, control.label, control.required ? createStar() : null),
      list,
      fault.element,
      button("button small", add, "Add a row"),
    ),
    value: () => (rows.length || control.required ? rows.map((row) => row.value()) : undefined),
    typed: (path) => rows.flatMap((row, at) => row.typed([...path, at])),
    blame([at, ...rest], message) {
      if (at === undefined) fault.update(message);
      return at === undefined || Boolean(rows[Number(at)]?.blame(rest, message));
    },
    clear() {
      fault.update("");
      for (const row of rows) row.clear();
    },
  };
}

const createStar = () => element("span", { class: "star", "aria-label": "required" }, " *");

/** @param {string} id @returns {import("../shell/elements.js").Part<string>} */
function createFault(id) {
  const text = element("span", {});
  const host = element("p", { class: "fault", id: `${id}-fault`, role: "alert", hidden: true }, glyph("failed"), text);
  return {
    element: host,
    update(message) {
      setText(text, message);
      host.hidden = !message;
    },
  };
}
