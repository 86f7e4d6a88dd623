// Runs all tests of the pure modules in one process, which takes a fifth of the time of one process for each file.

import { readdirSync } from "node:fs";

for (const name of readdirSync(new URL(".", import.meta.url)).sort()) {
  if (name.endsWith(".test.js")) await import(`./${name}`);
}
