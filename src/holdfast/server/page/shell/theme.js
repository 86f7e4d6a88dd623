// The theme: the system's, unless the reader chose the other one.

const KEY = "holdfast.theme";
const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

/** Show the theme that was chosen before. */
export function applyTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

/** Show the other theme. Choosing the system's again follows the system from then on. */
export function switchTheme() {
  const next = (localStorage.getItem(KEY) ?? system()) === "dark" ? "light" : "dark";
  if (next === system()) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  applyTheme();
}
