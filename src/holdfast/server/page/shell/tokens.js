// The token of this tab. It is read once from the fragment, then kept in `sessionStorage`, which no other site and no cookie
// sees. A new tab, opened by Ctrl-click on a run, asks the open ones over a `BroadcastChannel` and asks the reader only if none
// answers.

import { tokenIn } from "../pure/fragments.js";

const ANSWER_MS = 400;

/**
 * @typedef {object} Tokens
 * @property {() => string | null} current
 * @property {(token: string) => void} keep
 */

/**
 * Find the token, and answer tabs that ask for it from then on.
 * @returns {Promise<Tokens>}
 */
export async function openTokens() {
  // Several servers may be mounted below prefixes of one site.
  const name = `holdfast ${new URL(".", document.baseURI).pathname}`;
  const channel = new BroadcastChannel(name);
  let token = takeFromAddress() ?? sessionStorage.getItem(name) ?? (await askOtherTabs(channel));
  if (token) sessionStorage.setItem(name, token);
  // A link with another token, opened in this tab, changes only the fragment.
  addEventListener("hashchange", () => tokenIn(location.hash) && location.reload());
  channel.onmessage = ({ data }) => {
    if (data?.ask && token) channel.postMessage({ token });
  };
  return {
    current: () => token,
    keep(given) {
      token = given;
      sessionStorage.setItem(name, given);
    },
  };
}

/** Take the token out of the address, so that it is in no bookmark, screenshot or history. */
function takeFromAddress() {
  const found = tokenIn(location.hash);
  if (found) history.replaceState(null, "", location.pathname + location.search);
  return found;
}

/**
 * @param {BroadcastChannel} channel
 * @returns {Promise<string | null>}
 */
function askOtherTabs(channel) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(null), ANSWER_MS);
    channel.onmessage = ({ data }) => {
      if (typeof data?.token !== "string") return;
      clearTimeout(timer);
      resolve(data.token);
    };
    channel.postMessage({ ask: true });
  });
}
