// Dialogs: each has a title, is in the document while it is open, and gives the focus back to its opener.

import { element } from "./elements.js";

/**
 * Open a dialog.
 * @param {string} look  further classes
 * @param {import("./elements.js").Child[]} title
 * @param {...import("./elements.js").Child} children
 */
export function openDialog(look, title, ...children) {
  const dialog = element(
    "dialog",
    { class: `dialog ${look}`, "aria-labelledby": `title-${look}`, onclose: () => dialog.remove() },
    element("header", {}, element("h2", { id: `title-${look}` }, ...title)),
    ...children,
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
