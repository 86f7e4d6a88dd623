// The screens that the list of runs need not wait for. They and what only they need are sent as a script of their own.

import { createCompareScreen } from "./screens/compare.js";
import { createDoctorScreen } from "./screens/doctor.js";
import { createQuestionsScreen } from "./screens/questions.js";
import { createRunScreen } from "./screens/run.js";
import { createUnknownScreen } from "./screens/unknown.js";
import { createWorkersScreen } from "./screens/workers.js";

/** @typedef {import("./shell/app.js").CreateScreen} CreateScreen */

/** @type {Record<Exclude<import("./pure/fragments.js").ScreenName, "runs">, CreateScreen>} */
export const LATER_SCREENS = {
  run: createRunScreen,
  questions: createQuestionsScreen,
  compare: createCompareScreen,
  workers: createWorkersScreen,
  doctor: createDoctorScreen,
  unknown: createUnknownScreen,
};
