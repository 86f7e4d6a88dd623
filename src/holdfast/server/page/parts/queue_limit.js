// The dialog that sets how many runs of a queue may be executed at the same time.

import { createKey } from "../shell/api.js";
import { openDialog } from "../shell/dialogs.js";
import { button, element } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createSchemaForm } from "./schema_form.js";

/**
 * @param {import("../shell/app.js").App} app
 * @param {import("../shapes.js").Queue} queue
 * @param {() => void} done
 */
export function openLimit(app, queue, done) {
  const key = createKey();
  const limit = {
    type: "integer",
    minimum: 0,
    title: "Runs at the same time",
    description: "Empty: no limit. 0: the queue is stopped, and none begins.",
    default: queue.limit ?? undefined,
  };
  const form = createSchemaForm({ type: "object", properties: { limit } });
  const banner = createBanner();
  const dialog = openDialog(
    "",
    ["Limit of queue ", element("code", {}, queue.name)],
    element(
      "form",
      { onsubmit: send },
      banner.element,
      form.element,
      element(
        "footer",
        {},
        button("button", () => dialog.close(), "Cancel"),
        element("button", { class: "button filled" }, "Set limit"),
      ),
    ),
  );

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    const read = form.read();
    if ("faults" in read) return;
    const { limit: given = null } = /** @type {{ limit?: number }} */ (read.value);
    const answer = await app.api.post(`queues/${encodeURIComponent(queue.name)}`, { limit: given }, { key });
    if (!answer.ok) return banner.update(problemBanner(answer.problem, () => void send(event)));
    dialog.close();
    done();
  }
}
