// The page: finds the token, asks the server who it is, and shows the screen that the address names.

import { formatFragment, withQuery } from "./pure/fragments.js";
import { createAlone } from "./parts/alone.js";
import { connectionBanner, createBanner } from "./parts/banner.js";
import { createTopBar } from "./parts/top_bar.js";
import { askForToken } from "./parts/sign_in.js";
import { createRunsScreen } from "./screens/runs.js";
import { createAnnouncer } from "./shell/announcer.js";
import { createApi, unreachable } from "./shell/api.js";
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

/** @type {Partial<Record<import("./pure/fragments.js").ScreenName, import("./shell/app.js").CreateScreen>>} */
const SCREENS = { runs: createRunsScreen }; // and the others when they have been loaded

async function begin() {
  applyTheme();
  const tokens = await openTokens();
  const clock = createClock();
  const banner = createBanner();
  /** @type {import("./parts/banner.js").BannerText | null} */
  let waiting = null;
  const renewToken = createRenewal(tokens, () => void server.ask());
  const api = createApi(tokens.current, renewToken, waitAsTold);
  const server = createServer(api, clock, changed);
  const asked = server.ask();
  const announcer = createAnnouncer(clock);
  const router = createRouter(show);
  const later = answeredAfter(asked, api);
  const feed = createFeed(later, changed, () => void server.ask());
  const find = (/** @type {string} */ text) =>
    router.go(withQuery({ screen: "runs", query: {} }, { [text.includes("=") ? "label" : "find"]: text }));
  const bar = createTopBar({ find, switchTheme });
  const keyboard = createKeyboard([{ keys: ["/"], words: "find a run", act: bar.focusSearch }]);
  const { announce } = announcer;
  const meta = () => /** @type {import("./shapes.js").Meta} */ (server.meta());
  const stage = createStage({ api: later, clock, router, feed, announce, meta, focusSearch: bar.focusSearch });
  // A button, because the fragment of a link would be another place.
  bar.element.prepend(button("skip-link", () => stage.current()?.element.focus(), "Skip to content"));
  document.body.replaceChildren(bar.element, banner.element, stage.element, announcer.element);

  /** @param {import("./pure/fragments.js").Place} place */
  function show(place) {
    if (!server.meta()) return; // screens ask who the reader is; this place is shown when that is known
    if (!SCREENS[place.screen]) return void loadScreens().then(() => show(router.place()), fail);
    const screen = stage.show(place);
    if (place.screen !== "runs") feed.watch({}, null);
    bar.showFound(place.query.find?.[0] ?? "");
    keyboard.setScreenKeys(screen.keys);
    document.title = `${screen.title()} · Holdfast`;
    changed();
  }

  function changed() {
    if (feed.connection().state === "live") loadScreens().catch(() => {}); // the first rows are there, so there is time
    bar.update({ screen: router.place().screen, board: feed.board(), meta: server.meta(), connection: feed.connection() });
    sayWhatIsWrong();
    if (server.meta()) stage.current()?.changed?.();
  }

  function sayWhatIsWrong() {
    const lost = connectionBanner(stage.current()?.stream?.() ?? feed);
    banner.update(server.isNewer() ? newerBanner(meta().version) : (waiting ?? lost));
  }

  /** @param {import("./shapes.js").Problem} problem @param {number} seconds */
  async function waitAsTold({ title }, seconds) {
    const said = (waiting = { tone: "ask", glyph: "waiting", title: `${title}. Trying again in ${seconds} s.` });
    changed();
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    if (waiting === said) waiting = null;
    changed();
  }

  clock.onTick(() => {
    stage.current()?.tick?.();
    sayWhatIsWrong();
  });
  if (!location.hash) history.replaceState(null, "", formatFragment({ screen: "runs", query: {} }));
  if (SCREENS[router.place().screen])
    stage.show(router.place()); // its first request need not wait for who asks
  else loadScreens().catch(() => {}); // nor need the other screens
  const problem = await asked;
  if (problem) fail(problem);
  else show(router.place());
}

/** Load the screens that the first script does not have. @type {() => Promise<void>} */
async function loadScreens() {
  if (!SCREENS.unknown) Object.assign(SCREENS, (await import("./later.js")).LATER_SCREENS);
}

/** Say why there is no page. @param {import("./shapes.js").Problem | Error} problem */
function fail(problem) {
  const again = button("button filled", () => location.reload(), "Try again");
  const { title, detail, remedy } = problem instanceof Error ? unreachable().problem : problem;
  document.body.replaceChildren(createAlone(title, `${detail} ${remedy}`, again));
}

/**
 * An API whose requests are sent at once, and answered when the server has said who asks: then screens know what to offer.
 * @param {Promise<unknown>} asked  resolves with a problem if the server does not say so
 * @param {import("./shell/api.js").Api} api
 * @returns {import("./shell/api.js").Api}
 */
const answeredAfter = (asked, api) => ({
  ...api,
  async get(...request) {
    const [answer, problem] = await Promise.all([api.get(...request), asked]);
    return problem ? new Promise(() => {}) : answer;
  },
});

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
    current: () => current?.screen,
    /** @param {import("./pure/fragments.js").Place} place */
    show(place) {
      const create = /** @type {import("./shell/app.js").CreateScreen} */ (SCREENS[place.screen]);
      const next = made.get(place.screen) ?? { screen: create(app), scrolled: 0 };
      const { screen } = next;
      made.set(place.screen, next);
      if (next === current) screen.show(place);
      else {
        if (current) current.scrolled = scrollY;
        current?.screen.hide?.();
        host.replaceChildren(screen.element);
        screen.show(place);
        scrollTo(0, next.scrolled);
        if (current) screen.element.focus({ preventScroll: true }); // so that a screen reader begins with it
        current = next;
      }
      return screen;
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

void begin();
