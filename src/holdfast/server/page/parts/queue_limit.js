// The dialog that sets how many runs of a queue may be executed at the same time.

import { button, element } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createSchemaForm } from "./schema_form.js";

const SCHEMA = {
  type: "object",
  properties: {
    limit: { type: "integer", minimum: 0, title: "Runs at the same time", description: "Empty: no limit. 0: none is started." },
  },
};

/**
 * @param {import("../shell/app.js").App} app
 * @param {import("../shapes.js").Queue} queue
 * @param {() => void} done
 */
export function openLimit(app, queue, done) {
  const key = crypto.randomUUID();
  const preset = { ...SCHEMA.properties.limit, ...(queue.limit === null ? {} : { default: queue.limit }) };
  const form = createSchemaForm({ ...SCHEMA, properties: { limit: preset } });
  const banner = createBanner();
  const dialog = element(
    "dialog",
    { class: "dialog", "aria-labelledby": "limit-title" },
    element(
      "form",
      { method: "dialog", onsubmit: send },
      element("header", {}, element("h2", { id: "limit-title" }, "Limit of queue ", element("code", {}, queue.name))),
      banner.element,
      form.element,
      element(
        "footer",
        {},
        button("button", () => dialog.close(), "Cancel"),
        element("button", { class: "button filled", type: "submit" }, "Set limit"),
      ),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    const read = form.read();
    if ("faults" in read) return;
    const { limit = null } = /** @type {{ limit?: number }} */ (read.value);
    const answer = await app.api.post(`queues/${encodeURIComponent(queue.name)}`, { limit }, { key });
    if (!answer.ok) return banner.update(problemBanner(answer.problem, () => void send(event)));
    dialog.close();
    done();
  }

  document.body.append(dialog);
  dialog.showModal();
}
