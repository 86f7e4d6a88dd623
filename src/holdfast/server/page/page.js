// The page: finds the token, asks the server who it is, and shows the screen that the address names.

import { formatFragment, withQuery } from "./pure/fragments.js";
import { createBanner } from "./parts/banner.js";
import { createTopBar } from "./parts/top_bar.js";
import { askForToken } from "./parts/sign_in.js";
import { createCompareScreen } from "./screens/compare.js";
import { createDoctorScreen } from "./screens/doctor.js";
import { createQuestionsScreen } from "./screens/questions.js";
import { createRunScreen } from "./screens/run.js";
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
import { createServer } from "./shell/server.js";
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
  run: createRunScreen,
  questions: createQuestionsScreen,
  compare: createCompareScreen,
  workers: createWorkersScreen,
  doctor: createDoctorScreen,
  unknown: createUnknownScreen,
};

async function begin() {
  applyTheme();
  const tokens = await openTokens();
  const clock = createClock();
  let begun = false;
  const renewed = () => begun && void server.ask();
  const api = createApi(tokens.current, createRenewal(tokens, renewed));
  const server = createServer(api, clock, changed);
  const problem = await server.ask();
  if (problem) return showUnreachable(problem);

  const announcer = createAnnouncer(clock);
  const router = createRouter(show);
  const feed = createFeed(api, changed, () => void server.ask());
  const find = (/** @type {string} */ text) => router.go(withQuery({ screen: "runs", query: {} }, { find: text }));
  const bar = createTopBar({ screens: /** @type {any[]} */ (Object.keys(SCREENS)), find, switchTheme });
  const keyboard = createKeyboard([{ keys: ["/"], words: "find a run", act: bar.focusSearch }]);
  const banner = createBanner();
  const stage = createStage({
    api,
    clock,
    router,
    feed,
    announce: announcer.announce,
    meta: server.meta,
    focusSearch: bar.focusSearch,
  });
  // A button, because the fragment of a link would be another place.
  bar.element.prepend(button("skip-link", () => stage.current()?.element.focus(), "Skip to content"));
  document.body.replaceChildren(bar.element, banner.element, stage.element, announcer.element);

  /** @param {import("./pure/fragments.js").Place} place */
  function show(place) {
    const screen = stage.show(place);
    if (place.screen !== "runs") feed.watch({}, null);
    keyboard.setScreenKeys(screen.keys);
    document.title = `${screen.title()} · Holdfast`;
    changed();
  }

  function changed() {
    bar.update({ screen: router.place().screen, board: feed.board(), meta: server.meta(), connection: feed.connection() });
    banner.update(server.isNewer() ? newerBanner(server.meta().version) : null);
    stage.current()?.changed();
  }

  if (!location.hash) history.replaceState(null, "", formatFragment({ screen: "runs", query: {} }));
  begun = true;
  show(router.place());
}

/**
 * Where the screens are shown, one at a time. Each is made once, and scrolled where it was left.
 * @param {App} app
 */
function createStage(app) {
  const host = element("div", { class: "stage" });
  /** @type {Map<string, { screen: Screen, scrolled: number }>} */
  const made = new Map();
  /** @type {{ screen: Screen, scrolled: number } | null} */
  let current = null;
  return {
    element: host,
    current: () => current?.screen ?? null,
    /** @param {import("./pure/fragments.js").Place} place */
    show(place) {
      const create = SCREENS[place.screen] ?? createUnknownScreen;
      const name = SCREENS[place.screen] ? place.screen : "unknown";
      const next = made.get(name) ?? { screen: create(app), scrolled: 0 };
      made.set(name, next);
      if (next === current) {
        next.screen.show(place);
        return next.screen;
      }
      if (current) {
        current.scrolled = scrollY;
        current.screen.hide();
      }
      host.replaceChildren(next.screen.element);
      next.screen.show(place);
      scrollTo(0, next.scrolled);
      if (current) next.screen.element.focus({ preventScroll: true }); // so that a screen reader begins with it
      current = next;
      return next.screen;
    },
  };
}

/** @param {string} version @returns {import("./parts/banner.js").BannerText} */
const newerBanner = (version) => ({
  tone: "accent",
  glyph: "retry",
  title: `The server is now version ${version}; this page is of another one.`,
  action: { words: "Reload", act: () => location.reload() },
});

/**
 * Asks the reader for another token; requests that wait for it share one question.
 * @param {import("./shell/tokens.js").Tokens} tokens
 * @param {() => void} renewed
 */
function createRenewal(tokens, renewed) {
  /** @type {Promise<void> | null} */
  let asking = null;
  return (/** @type {import("./shapes.js").Problem} */ problem) => {
    asking ??= askForToken(problem, tokens.current() !== null).then((token) => {
      asking = null;
      tokens.keep(token);
      renewed();
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
