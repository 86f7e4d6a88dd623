// The page: finds the token, asks the server who it is, and shows the screen that the address names.

import { formatFragment, withQuery } from "./pure/fragments.js";
import { createTopBar } from "./parts/top_bar.js";
import { askForToken } from "./parts/sign_in.js";
import { createDoctorScreen } from "./screens/doctor.js";
import { createRunsScreen } from "./screens/runs.js";
import { createUnknownScreen } from "./screens/unknown.js";
import { createWorkersScreen } from "./screens/workers.js";
import { createAnnouncer } from "./shell/announcer.js";
import { createApi } from "./shell/api.js";
import { createClock } from "./shell/clock.js";
import { button, element } from "./shell/elements.js";
import { createFeed } from "./shell/feed.js";
import { createKeyboard } from "./shell/keyboard.js";
import { createRouter } from "./shell/router.js";
import { applyTheme, switchTheme } from "./shell/theme.js";
import { openTokens } from "./shell/tokens.js";

/**
 * @typedef {import("./shell/app.js").App} App
 * @typedef {import("./shell/app.js").Screen} Screen
 */

/**
 * The screens that are there.
 * @type {Partial<Record<import("./pure/fragments.js").ScreenName, import("./shell/app.js").CreateScreen>>}
 */
const SCREENS = {
  runs: createRunsScreen,
  workers: createWorkersScreen,
  doctor: createDoctorScreen,
  unknown: createUnknownScreen,
};

async function begin() {
  applyTheme();
  const tokens = await openTokens();
  const clock = createClock();
  const api = createApi(tokens.current, createRenewal(tokens));
  const askedAt = Date.now() / 1000;
  const answer = await api.get("meta");
  if (!answer.ok) return showUnreachable(answer.problem);
  /** @type {import("./shapes.js").Meta} */
  const meta = answer.value;
  clock.sync(meta.now, askedAt);

  const announcer = createAnnouncer(clock);
  const router = createRouter(show);
  const feed = createFeed(api, changed);
  const find = (/** @type {string} */ text) => router.go(withQuery({ screen: "runs", query: {} }, { find: text }));
  const bar = createTopBar({ screens: /** @type {any[]} */ (Object.keys(SCREENS)), find, switchTheme });
  const keyboard = createKeyboard([{ keys: ["/"], words: "find a run", act: bar.focusSearch }]);
  /** @type {App} */
  const app = { api, clock, router, feed, announce: announcer.announce, meta: () => meta, focusSearch: bar.focusSearch };
  /** @type {Map<string, Screen>} */
  const made = new Map();
  /** @type {Screen | null} */
  let current = null;
  // A button, because the fragment of a link would be another place.
  bar.element.prepend(button("skip-link", () => current?.element.focus(), "Skip to content"));
  document.body.replaceChildren(bar.element, announcer.element);

  /** @param {import("./pure/fragments.js").Place} place */
  function show(place) {
    const name = SCREENS[place.screen] ? place.screen : "unknown";
    const screen = made.get(name) ?? /** @type {import("./shell/app.js").CreateScreen} */ (SCREENS[name])(app);
    made.set(name, screen);
    if (screen !== current) {
      current?.hide();
      if (current) current.element.replaceWith(screen.element);
      else bar.element.after(screen.element);
      current = screen;
      if (name !== "runs") feed.watch({}, null);
    }
    screen.show(place);
    keyboard.setScreenKeys(screen.keys);
    document.title = `${screen.title()} · Holdfast`;
    changed();
  }

  function changed() {
    bar.update({ screen: router.place().screen, board: feed.board(), meta, connection: feed.connection() });
    current?.changed();
  }

  if (!location.hash) history.replaceState(null, "", formatFragment({ screen: "runs", query: {} }));
  show(router.place());
}

/**
 * Asks the reader for another token; requests that wait for it share one question.
 * @param {import("./shell/tokens.js").Tokens} tokens
 */
function createRenewal(tokens) {
  /** @type {Promise<void> | null} */
  let asking = null;
  return (/** @type {import("./shapes.js").Problem} */ problem) => {
    asking ??= askForToken(problem, tokens.current() !== null).then((token) => {
      asking = null;
      tokens.keep(token);
    });
    return asking;
  };
}

/** @param {import("./shapes.js").Problem} problem */
function showUnreachable(problem) {
  const again = element("button", { type: "button", class: "button filled", onclick: () => location.reload() }, "Try again");
  document.body.replaceChildren(
    element(
      "main",
      { class: "screen alone" },
      element("h1", {}, problem.title),
      element("p", {}, `${problem.detail} ${problem.remedy}`),
      again,
    ),
  );
}

void begin();
