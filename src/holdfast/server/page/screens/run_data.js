// What the screen of a run knows, and how it stays up to date: it is read once, carried on by live events, and read again, at
// most once in a while, where an event says more than the page can tell.

import { mayOperate } from "../pure/actions.js";
import { beginConnection } from "../pure/connection.js";
import { byName } from "../pure/groups.js";
import { applyEvent } from "../pure/node_states.js";
import { lookOfRun } from "../pure/statuses.js";
import { joinTimelines } from "../pure/timelines.js";
import { createKey } from "../shell/api.js";
import { oncePerFrame } from "../shell/frames.js";
import { followLive } from "../shell/live.js";
import { createReader } from "../shell/reader.js";

/**
 * @typedef {import("../shapes.js").RunEvent} RunEvent
 * @typedef {import("../shapes.js").Problem} Problem
 * @typedef {import("../shell/app.js").App} App
 * @typedef {import("../pure/fragments.js").Query} Query
 *
 * @typedef {object} Heard  what live events are for besides the drawings
 * @property {() => void} changed
 * @property {(event: RunEvent) => void} event
 * @property {(chunk: any) => void} chunk
 *
 * @typedef {ReturnType<typeof createRunData>} RunData
 */

/** How long to wait between two readings of the same thing, in ms. The picture says most, and costs least. */
const RUN_READ_MS = 1000;
const PICTURE_MS = 250;
const FILES_MS = 5000;
/** A crash leaves no event, nor does a request: they are asked for so often, in seconds. */
const ROW_S = 5;
const RECENT = 500;
/** Of a run with more attempts than this, the first are drawn. */
const ATTEMPTS_MAX = 50_000;

/**
 * @param {App} app
 * @param {string} run
 * @param {Heard} heard
 */
export function createRunData(app, run, heard) {
  const path = `runs/${run}`;
  /** @type {{ row: import("../shapes.js").Row | null, run: import("../shapes.js").ShownRun | null, picture: any,
   *   geometry: any, checkpoints: any[], timeline: any, requests: any[], files: any,
   *   again: Set<string>, problems: Record<string, Problem | null> }} `again`: nodes that a resume from here would run again */
  const known = {
    row: null,
    run: null,
    picture: null,
    geometry: null,
    checkpoints: [],
    timeline: null,
    requests: [],
    files: null,
    again: new Set(),
    problems: {},
  };
  /** @type {number | undefined} */
  let at;
  /** Boxes that were opened, as the geometry has them. @type {Query} */
  let opened = {};
  /** @type {import("../pure/node_states.js").NodeStates} */
  let states = { seq: 0, nodes: {}, stale: false };
  /** Events that the picture may not have. @type {RunEvent[]} */
  let recent = [];
  /** The last event of each node that came live, and how often everything was read: events may have been missed before. */
  let [heardOf, readings] = [/** @type {Record<string, number>} */ ({}), 0];
  /** The pages of a timeline that have been read, if there are more. @type {import("../shapes.js").Timeline | null} */
  let pages = null;
  /** The last checkpoint that is known to be as it was; 0 after the run went back. */
  let lastPlace = 0;
  let connection = beginConnection(Date.now() / 1000);
  /** Closed while the run is over. @type {import("../shell/live.js").Stream | null} */
  let stream = null;
  let stopped = false;

  const changed = oncePerFrame(() => stopped || heard.changed());

  /** A larger run is read less often. */
  const attempts = () => known.timeline?.attempts.length ?? 0;

  /**
   * @param {string} name
   * @param {() => string} from
   * @param {() => Query} query
   * @param {(value: any, query: Query) => void} take
   */
  const reader = (name, from, query, take, pause = () => RUN_READ_MS) =>
    createReader(pause, async () => {
      const asked = query();
      const answer = await app.api.get(from(), asked);
      if (stopped) return;
      // While the server does not answer, the banner of the connection says so, and what is known stays.
      if (answer.ok || answer.problem.status || !known.row) known.problems[name] = answer.ok ? null : answer.problem;
      if (answer.ok) take(answer.value, asked);
      changed();
    });

  /** @type {(part: string) => () => string} */
  const of = (part) => () => `${path}/${part}`;
  const none = () => /** @type {Query} */ ({});
  const readers = {
    row: reader(
      "row",
      () => "runs",
      () => ({ id: [run] }),
      takeRow,
    ),
    picture: reader("picture", of("picture"), placed, takePicture, () => Math.min(RUN_READ_MS, Math.max(PICTURE_MS, attempts()))),
    run: reader(
      "run",
      () => path,
      () => ({ brief: ["true"] }),
      takeRun,
    ),
    places: reader("places", of("checkpoints"), () => ({ limit: ["1000"], after: [String(lastPlace)] }), takePlaces),
    timeline: reader(
      "timeline",
      of("timeline"),
      () => ({ limit: ["5000"], after: [String(pages?.next ?? 0)] }),
      takeTimeline,
      () => Math.max(RUN_READ_MS, attempts()),
    ),
    requests: reader("requests", of("requests"), none, (value) => (known.requests = value.requests)),
    files: reader(
      "files",
      of("artifacts"),
      none,
      (value) => (known.files = value),
      () => FILES_MS,
    ),
  };
  const geometry = reader(
    "geometry",
    () => `pictures/${known.picture.fingerprint}`,
    () => opened,
    (value) => (known.geometry = { ...value, nodes: byName(value.nodes) }),
  );

  /** @param {import("../shapes.js").Timeline} page */
  function takeTimeline(page) {
    pages = pages ? joinTimelines(pages, page) : page;
    if (page.next !== null && pages.attempts.length < ATTEMPTS_MAX) return readers.timeline.ask(true);
    [known.timeline, pages] = [pages, null];
  }

  /** @returns {Query} */
  function placed() {
    return at === undefined ? {} : { at: [String(at)] };
  }

  /** @param {import("../shapes.js").RunPage} page */
  function takeRow({ runs: [row] }) {
    const was = known.row;
    known.row = row ?? null;
    if (!was && row) readRest();
    if (was && row?.seq > was.seq) follow(was.seq); // it was over, and goes on
    if (!row || !was || (was.reason === row.reason && was.status === row.status)) return;
    if (row.asks > was.asks) app.announce(run, `${run} asks a question`);
    else app.announce(run, `${run} is ${lookOfRun(row).word}`);
    for (const one of [readers.run, readers.requests, readers.timeline, readers.picture]) one.ask();
  }

  /** @param {import("../shapes.js").ShownRun} value */
  function takeRun(value) {
    known.run = value;
    follow(value.seq);
  }

  /** @param {{ checkpoints: any[], next: number | null }} page @param {Query} query */
  function takePlaces({ checkpoints, next }, { after: [after] }) {
    if (Number(after) !== lastPlace) return readers.places.ask(true); // the run went back meanwhile
    known.checkpoints = [...known.checkpoints.filter((one) => one.seq <= lastPlace), ...checkpoints];
    lastPlace = known.checkpoints.at(-1)?.seq ?? 0;
    if (next !== null) readers.places.ask(true);
  }

  /** @param {any} picture @param {Query} query */
  function takePicture(picture, query) {
    for (const name of ["nodes", "chosen"]) picture[name] = byName(picture[name]);
    if (query.at?.[0] !== placed().at?.[0]) return; // another place was chosen meanwhile
    known.picture = picture;
    if (at === undefined) {
      // Events that came while it was read are in it, or are carried on from it.
      recent = recent.filter((event) => event.seq > picture.seq);
      states = recent.reduce(applyEvent, { seq: picture.seq, nodes: picture.nodes, stale: false });
      if (states.stale) readers.picture.ask();
    }
    follow(picture.end);
    if (known.geometry?.fingerprint !== picture.fingerprint) geometry.ask(true);
  }

  /** What a resume from the place that is shown would run again: the server's own preview of it. */
  async function readAgain() {
    known.again = new Set();
    if (at === undefined || !mayOperate(app.meta().role)) return;
    const options = { key: createKey(), query: { preview: ["1"] } };
    const asked = at;
    const answer = await app.api.post(`${path}/resume`, { checkpoint: at, force: true }, options);
    if (stopped || asked !== at || !answer.ok) return;
    known.again = new Set(answer.value.rerun.map((/** @type {{ node: string }} */ one) => one.node));
    changed();
  }

  /** @param {number} seq */
  function follow(seq) {
    if (stream || stopped) return;
    const listener = {
      onEvent: receive,
      onChange(/** @type {typeof connection} */ next) {
        connection = next;
        changed();
      },
      onOpen: (/** @type {boolean} */ again) => again && readAll(),
    };
    stream = followLive(app.api, `live?run=${run}`, listener, String(seq));
  }

  /** @param {import("../pure/sse.js").ServerEvent} news */
  function receive({ event, data }) {
    const value = JSON.parse(data);
    if (event === "chunk") return heard.chunk(value);
    if (event === "event") receiveEvent(value);
    else if (event === "reset") {
      lastPlace = 0;
      readAll();
    } else {
      // "over", or "problem"
      if (event === "problem") known.problems.run = value;
      stream?.stop();
      stream = null;
    }
    changed();
  }

  /** @param {RunEvent} event */
  function receiveEvent(event) {
    recent = [...recent.slice(-RECENT), event];
    states = applyEvent(states, event);
    if (event.kind === "RunRewound") lastPlace = 0;
    if (event.node) heardOf = Object.assign(byName(heardOf), { [event.node]: event.seq });
    if (at === undefined) readers.picture.ask();
    for (const one of [readers.row, readers.places, readers.timeline]) one.ask();
    if (known.requests.length || event.kind.endsWith("Refused")) readers.requests.ask();
    if (event.kind === "NodeCompleted") readers.files.ask();
    heard.event(event);
  }

  /** Of a run that is not known to be there, only what says so is read: each other part would be an error in the console. */
  function readAll() {
    readings += 1;
    for (const one of [readers.row, readers.run]) one.ask(true);
    if (known.row) readRest();
  }

  function readRest() {
    for (const one of Object.values(readers)) if (one !== readers.row && one !== readers.run) one.ask(true);
    void readAgain();
  }

  const currentNodes = () => (at === undefined ? states.nodes : (known.picture?.nodes ?? {}));
  const currentConnection = () => (stream ? connection : app.feed.connection());
  const stopTicks = app.clock.onTick(() => {
    if (currentConnection().state !== "live" || Math.round(app.clock.now()) % ROW_S) return;
    readers.row.ask();
    readers.requests.ask();
  });
  return {
    known,
    readAll,
    connection: currentConnection,
    retry: () => (stream ?? app.feed).retry(),
    /**
     * Whatever can change what the server says about a visit of a node: what is known of the node and of its child runs, and, of
     * the present, its events.
     * @param {string} node
     */
    signsOf: (node) => ({
      mark: currentNodes()[node],
      children: known.run?.children.filter((one) => one.node === node),
      event: at === undefined ? heardOf[node] : undefined,
      readings,
    }),
    /** The nodes at the place that is shown. */
    nodes: currentNodes,
    /** @param {number | undefined} next */
    setPlace(next) {
      if (known.picture && next === at) return;
      at = next;
      if (!known.row) return; // it is read when the run is known
      readers.picture.ask(true);
      void readAgain();
    },
    /** @param {Query} next  parameters of the geometry */
    setOpened(next) {
      opened = next;
      if (known.picture) geometry.ask(true);
    },
    stop() {
      stopped = true;
      stopTicks();
      stream?.stop();
      for (const one of [...Object.values(readers), geometry]) one.stop();
    },
  };
}
