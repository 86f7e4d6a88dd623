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
 * @property {() => unknown} value  `Unreadable` if that is what was typed
 * @property {(faults: Fault[]) => void} show  what is wrong in it, by the path from here
 */

let fieldCount = 0;

/**
 * @param {Record<string, any>} schema
 * @param {string} [label]  of a value that has no fields
 * @returns {SchemaForm}
 */
export function createSchemaForm(schema, label = "Answer") {
  const control = controlFor(schema);
  const field = createField({ ...control, label: control.label || label });
  /** @param {Fault[]} faults */
  const showFaults = (faults) => {
    field.show(faults);
    /** @type {HTMLElement | null} */ (field.element.querySelector("[aria-invalid]"))?.focus();
  };
  return {
    element: element("div", { class: "schema-form" }, field.element),
    showFaults,
    peek: field.value,
    read() {
      const value = field.value();
      const faults = faultsOf(control, value);
      showFaults(faults);
      return faults.length ? { faults } : { value };
    },
  };
}

/** @param {Control} control @returns {Field} */
function createField(control) {
  if (control.kind === "group") return createGroup(control);
  if (control.kind === "rows") return createRows(control);
  return createControlField(control);
}

/** A field for one value, with its label, its help and its fault. @param {Control} control @returns {Field} */
function createControlField(control) {
  const id = `field-${(fieldCount += 1)}`;
  const { element: input, value, first = input } = createInput(control, id);
  const isCards = control.kind === "cards";
  const label = element(isCards ? "legend" : "label", isCards ? {} : { for: id }, control.label, createStar(control));
  const help = element("p", { class: "hint" }, control.help);
  const fault = createFault(id);
  const parts = control.kind === "checkbox" ? [input, label] : [label, input];
  return {
    element: element(isCards ? "fieldset" : "div", { class: `form-field ${control.kind}` }, ...parts, fault.element, help),
    value,
    show([wrong]) {
      fault.update(wrong ? [wrong.path.join("."), wrong.message].filter(Boolean).join(": ") : "");
      setAttribute(first, "aria-invalid", wrong && "true");
      help.hidden = Boolean(wrong) || !control.help;
    },
  };
}

/**
 * What a value is typed into or chosen with. `first`: what gets the focus, if that is a part of it.
 * @param {Control} control
 * @param {string} id
 * @returns {{ element: HTMLElement, value: () => unknown, first?: HTMLElement }}
 */
function createInput(control, id) {
  const { kind, options, preset } = control;
  const common = { id, class: "field", "aria-describedby": `${id}-fault` };
  if (kind === "checkbox") {
    const box = element("input", { ...common, class: "", type: "checkbox", checked: preset === true });
    return { element: box, value: () => box.checked };
  }
  if (kind === "cards") {
    const inputs = options.map(({ value }) =>
      element("input", { type: "radio", name: id, "aria-describedby": `${id}-fault`, checked: value === preset }),
    );
    const cards = options.map(({ label, note }, at) => {
      const words = note ? [element("strong", {}, label), element("span", { class: "hint" }, note)] : [label];
      return element("label", { class: "card" }, inputs[at], element("span", {}, ...words));
    });
    return {
      element: element("div", { class: "card-row" }, ...cards),
      value: () => options[inputs.findIndex((input) => input.checked)]?.value,
      first: inputs[0],
    };
  }
  if (kind === "select") {
    const empty = element("option", { value: "" }, control.required ? "Choose" : "None");
    const all = options.map(({ value, label }) => element("option", { selected: value === preset }, label));
    const select = element("select", common, empty, ...all);
    return { element: select, value: () => options[select.selectedIndex - 1]?.value };
  }
  const isJson = kind === "json";
  const text =
    isJson || kind === "area"
      ? element("textarea", { ...common, class: `field ${kind}`, rows: isJson ? 8 : 3, spellcheck: !isJson })
      : element("input", { ...common, inputmode: kind === "number" && "decimal", autocomplete: "off" });
  const shown = preset ?? "";
  text.value = isJson && shown !== "" ? JSON.stringify(shown, null, 2) : String(shown);
  return { element: text, value: () => readTyped(control, text.value) };
}

/** @param {Control} control @returns {Field} */
function createGroup(control) {
  const fields = control.controls.map((inner) => /** @type {const} */ ([inner.name, createField(inner)]));
  const legend = control.name && element("legend", {}, control.label);
  return {
    element: element("fieldset", { class: "form-group" }, legend, ...fields.map(([, field]) => field.element)),
    value() {
      const pairs = fields.map(([name, field]) => [name, field.value()]).filter(([, value]) => value !== undefined);
      return pairs.length || control.required ? Object.fromEntries(pairs) : undefined;
    },
    show: (faults) => fields.forEach(([name, field]) => field.show(faultsAt(faults, name))),
  };
}

/** Rows of one form each, which can be added and taken away. @param {Control} control @returns {Field} */
function createRows(control) {
  /** @type {Field[]} */
  let rows = [];
  const fault = createFault(`field-${(fieldCount += 1)}`);
  const list = element("div", { class: "form-rows" });
  const add = () => {
    const row = createGroup({ ...control, name: "", required: true });
    const take = () => {
      rows = rows.filter((one) => one !== row);
      line.remove();
    };
    const words = element("span", { class: "unseen" }, "Remove this row");
    const line = element("div", { class: "form-row" }, row.element, button("icon-button", take, glyph("close"), words));
    rows.push(row);
    list.append(line);
  };
  for (let at = 0; at < (control.schema.minItems ?? 0); at += 1) add();
  return {
    element: element(
      "fieldset",
      { class: "form-field rows" },
      element("legend", {}, control.label, createStar(control)),
      list,
      fault.element,
      button("button small", add, "Add a row"),
    ),
    value: () => (rows.length || control.required ? rows.map((row) => row.value()) : undefined),
    show(faults) {
      fault.update(faults.find((one) => !one.path.length)?.message ?? "");
      rows.forEach((row, at) => row.show(faultsAt(faults, at)));
    },
  };
}

/** The faults in one part, by the path from there. @param {Fault[]} faults @param {string | number} name */
const faultsAt = (faults, name) =>
  faults.filter(({ path }) => String(path[0]) === String(name)).map(({ path, message }) => ({ path: path.slice(1), message }));

/** @param {Control} control */
const createStar = (control) =>
  control.required &&
  !("preset" in control) &&
  control.kind !== "checkbox" &&
  element("span", { class: "star", "aria-label": "required" }, " *");

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
