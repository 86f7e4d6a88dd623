// The files that the nodes of a run have written. The token is in a header, so a file is fetched and then saved, not linked.

import { button, element, glyph } from "../shell/elements.js";
import { createBanner, problemBanner } from "./banner.js";
import { createSlot } from "./slot.js";

/**
 * @typedef {{ kept: boolean, artifacts: Record<string, string[]> }} Files
 * @typedef {{ place: import("../pure/fragments.js").Place, files: Files | null }} FilesView
 */

/**
 * @param {import("../shell/app.js").App} app
 * @returns {import("../shell/elements.js").Part<FilesView>}
 */
export function createFilesView(app) {
  const problem = createBanner();
  let run = "";
  const hint = (/** @type {string} */ text) => [element("p", { class: "hint" }, text)];
  const list = createSlot("files", (/** @type {any} */ { kept, artifacts }) => {
    const all = Object.entries(artifacts);
    if (!all.length) return hint(kept ? "The nodes of this run have written no file." : "This server keeps no files.");
    return all.map(([node, names]) => {
      const files = names.map((/** @type {string} */ name) =>
        element("li", {}, createDownload(name, `artifacts/${node}/${name}`)),
      );
      return element("section", {}, element("h3", {}, element("code", {}, node)), element("ul", {}, ...files));
    });
  });

  /** @param {string} name @param {string} path */
  const createDownload = (name, path) =>
    button("link file", () => void save(name, path), glyph("file"), element("span", { dir: "auto" }, name));

  /** @param {string} name @param {string} path */
  async function save(name, path) {
    const encoded = path.split("/").map(encodeURIComponent).join("/");
    const response = await app.api.stream(`runs/${run}/${encoded}`, {}, new AbortController().signal);
    if (!(response instanceof Response)) return problem.update(problemBanner(response.problem, () => void save(name, path)));
    problem.update(null);
    const url = URL.createObjectURL(await response.blob());
    element("a", { href: url, download: name.split("/").at(-1) }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  return {
    element: element(
      "div",
      { class: "view-pad" },
      problem.element,
      list.element,
      element(
        "p",
        {},
        button("button", () => void save(`${run}.holdfast`, "archive"), "Download the archive"),
      ),
    ),
    update(next) {
      run = next.place.run ?? "";
      if (next.files) list.update(next.files);
    },
  };
}
