// Requests to the server. Problems are values, not exceptions: every caller has to say what it shows for one. Two are handled
// here: with an expired token the request waits until the reader has given another, and with too many requests as long as the
// server says. It is then sent again, so that nothing is lost.

import { formatQuery } from "../pure/fragments.js";

/**
 * @typedef {import("../shapes.js").Problem} Problem
 *
 * @typedef {object} Answered
 * @property {true} ok
 * @property {number} status
 * @property {any} value
 * @property {string | null} etag
 *
 * @typedef {{ ok: false, problem: Problem, retryAfter: number, value?: any }} Refused  `retryAfter`: seconds that the server
 *   asked for; `value`: the whole body, where a problem carries more, such as a new preview
 * @typedef {Answered | Refused} Answer
 *
 * @typedef {object} PostOptions
 * @property {string} key  the `Idempotency-Key`, made when the reader began: sent twice, the server acts once
 * @property {string} [match]  the ETag of the preview that the reader saw
 * @property {number} [wait]  seconds to wait for the outcome
 * @property {import("../pure/fragments.js").Query} [query]
 *
 * @typedef {object} Api
 * @property {(path: string, query?: import("../pure/fragments.js").Query, signal?: AbortSignal) => Promise<Answer>} get
 * @property {(path: string, body: unknown, options: PostOptions) => Promise<Answer>} post
 * @property {(path: string, headers: Record<string, string>, signal: AbortSignal) => Promise<Response | Refused>} stream
 */

/**
 * @param {() => string | null} token
 * @param {(problem: Problem) => Promise<void>} renewToken  asks the reader for a token, and resolves when there is one
 * @param {(problem: Problem, seconds: number) => Promise<void>} waitAsTold  says that the server is busy, and waits
 * @returns {Api}
 */
export function createApi(token, renewToken, waitAsTold) {
  const base = new URL("api/v1/", document.baseURI);

  /**
   * @param {string} path
   * @param {RequestInit & { headers: Record<string, string> }} request
   * @returns {Promise<Response | Refused>}
   */
  async function send(path, request) {
    for (;;) {
      const used = token();
      const headers = used ? { ...request.headers, Authorization: `Bearer ${used}` } : request.headers;
      let response;
      try {
        response = await fetch(new URL(path, base), { ...request, headers, cache: "no-store", credentials: "omit" });
      } catch (error) {
        if (request.signal?.aborted) throw error;
        return unreachable();
      }
      if (response.ok || response.status === 304) return response;
      const refused = await readProblem(response);
      if (response.status === 429) await waitAsTold(refused.problem, refused.retryAfter || 1);
      else if (response.status !== 401) return refused;
      else if (used === token()) await renewToken(refused.problem);
    }
  }

  /** @param {string} path @param {import("../pure/fragments.js").Query} query */
  const withText = (path, query) => [path, formatQuery(query)].filter(Boolean).join("?");

  return {
    get: async (path, query = {}, signal) => read(await send(withText(path, query), { headers: {}, signal })),
    async post(path, body, { key, match, wait, query = {} }) {
      const headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        ...(match && { "If-Match": match }),
        ...(wait && { Prefer: `wait=${wait}` }),
      };
      return read(await send(withText(path, query), { method: "POST", headers, body: JSON.stringify(body) }));
    },
    stream: (path, headers, signal) => send(path, { headers: { ...headers, Accept: "text/event-stream" }, signal }),
  };
}

/**
 * @param {Response | Refused} response
 * @returns {Promise<Answer>}
 */
async function read(response) {
  if (!(response instanceof Response)) return response;
  try {
    const value = response.status === 304 ? null : await response.json();
    return { ok: true, status: response.status, value, etag: response.headers.get("ETag") };
  } catch {
    return unreachable(); // the connection was cut in the middle of the answer
  }
}

/**
 * @param {Response} response
 * @returns {Promise<Refused>}
 */
async function readProblem(response) {
  const { status, statusText, headers } = response;
  const value = await response.json().catch(() => null);
  // What is not ours was answered by a proxy.
  const ours = typeof value?.title === "string" && value;
  const detail = `The answer was ${status} ${statusText}, which is not from Holdfast.`;
  const theirs = { type: "", title: "A proxy answered, not the server", status, detail, remedy: "" };
  return { ok: false, problem: ours || theirs, retryAfter: Math.min(60, Number(headers.get("Retry-After")) || 0), value };
}

/** A key for a request that begins. (`randomUUID` is not there without HTTPS.) */
export const createKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/**
 * Whether the server has decided not to do what was asked. Otherwise it may have done it: only the same request, with the same
 * key, may then be sent again.
 * @param {Problem} problem
 */
export const isRefusal = ({ status }) => status >= 400 && status < 500;

/** @returns {Refused} */
export function unreachable() {
  const problem = {
    type: "urn:holdfast:problem:unreachable",
    title: "The server does not answer",
    status: 0,
    detail: "It has stopped, or the network is down.",
    remedy: "Start it again with holdfast serve; this page then continues where it was.",
  };
  return { ok: false, problem, retryAfter: 0 };
}
