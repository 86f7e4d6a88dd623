import assert from "node:assert/strict";
import { test } from "node:test";

import {
  answerBody,
  answerCommand,
  closingWords,
  consequences,
  faultsIn,
  isAboutCrash,
  keyOfAsked,
  orderQuestions,
  receiveQuestions,
  reorder,
  schemaOf,
  whenWords,
} from "../../src/holdfast/server/page/pure/questions.js";
import { showRequests } from "../../src/holdfast/server/page/pure/requests.js";

const ask = (run, more = {}) => ({
  run_id: run,
  flow: "f",
  question: { key: "k", node: "n", text: "?", options: [], asked_at: 10, ...more },
});
const ids = (all) => all.map((one) => one.run_id);

test("the soonest deadline comes first, then the oldest question", () => {
  const all = [
    ask("young", { asked_at: 30 }),
    ask("later", { until: 90 }),
    ask("old", { asked_at: 5 }),
    ask("soon", { until: 60 }),
  ];
  assert.deepEqual(ids(orderQuestions(all)), ["soon", "later", "old", "young"]);
});

test("no question moves while a reader looks: new ones wait and closed ones stay", () => {
  const first = receiveQuestions(null, [ask("a"), ask("b", { asked_at: 11 })]);
  const next = receiveQuestions(first, [ask("b", { asked_at: 11 }), ask("c", { until: 20 })]);
  assert.deepEqual([ids(next.shown), [...next.closed], ids(next.fresh)], [["a", "b"], [keyOfAsked(ask("a"))], ["c"]]);
  const after = reorder(next);
  assert.deepEqual([ids(after.shown), after.closed.size, after.fresh], [["c", "b"], 0, []]);
});

test("the schema of an answer is its own, or the options, or anything", () => {
  assert.deepEqual(schemaOf(ask("a", { options: ["x"] }).question), { enum: ["x"] });
  assert.deepEqual(schemaOf(ask("a", { answer_schema: { type: "integer" } }).question), { type: "integer" });
  assert.deepEqual(schemaOf(ask("a").question), {});
  assert.ok(isAboutCrash(ask("a").question));
  assert.ok(!isAboutCrash(ask("a", { about: "gate" }).question));
});

test("a question says how long it waits, and until when it wants an answer", () => {
  assert.equal(whenWords(ask("a").question, 190), "asked 3 min ago");
  assert.match(whenWords(ask("a", { until: 500 }).question, 190), /^asked 3 min ago\nuntil \d\d:/);
  assert.equal(whenWords(ask("a", { until: 100 }).question, 190), "asked 3 min ago\ntime is up");
});

test("an answer given elsewhere names who gave it", () => {
  const closing = { how: "answered", at: null, answer: "air", by: "grace", reason: "fast" };
  assert.equal(closingWords(closing, 0), "Answered by grace: “air”. Reason: “fast”.");
  assert.equal(closingWords({ ...closing, answer: { a: 1 }, reason: null }, 0), 'Answered by grace: {"a":1}.');
  assert.equal(closingWords({ ...closing, how: "timed out" }, 0), "No answer came in time.");
});

test("answers with the same consequence are one line", () => {
  const outcome = (answer, words, once = []) => ({ answer, words, once, effect: "", nodes: [] });
  assert.deepEqual(consequences([outcome("air", "mail begins"), outcome("sea", "mail begins")]), [
    { answers: [], words: "mail begins", once: [] },
  ]);
  assert.deepEqual(
    consequences([outcome("yes", "pay begins", ["pay"]), outcome("no", "it fails")]).map((row) => row.answers),
    [["yes"], ["no"]],
  );
});

test("the command gives the same answer", () => {
  const command = (given) => answerCommand("holdfast", "r1", answerBody({ key: "n.1.1" }, { reason: "", ...given }));
  assert.equal(command({ answer: "approve" }), "holdfast answer r1 n.1.1 approve");
  assert.equal(command({ answer: "it's", reason: "so be it" }), `holdfast answer r1 n.1.1 --reason 'so be it' 'it'"'"'s'`);
  assert.equal(command({ answer: { a: 1 } }), `holdfast answer r1 n.1.1 '{"a":1}'`);
  assert.equal(command({ answer: "42" }), `holdfast answer r1 n.1.1 '"42"'`);
  assert.equal(command({ answer: -1 }), "holdfast answer r1 n.1.1 -- -1");
});

test("each step in doubt is a choice, which is sent as the answer that it has happened", () => {
  const in_doubt = [{ step: "charge" }, { step: "ship", item: 2 }];
  const question = { key: "n.1.1", options: ["retry"], partial: { in_doubt } };
  assert.deepEqual(schemaOf(question), { enum: ["retry", "charge has happened", "ship (item 2) has happened"] });
  const sent = (answer) => JSON.parse(JSON.stringify(answerBody(question, { answer, result: null, reason: "so" })));
  const said = { question: "n.1.1", answer: "happened", result: null, reason: "so" };
  assert.deepEqual(sent("charge has happened"), { ...said, step: "charge" });
  assert.deepEqual(sent("ship (item 2) has happened"), { ...said, step: "ship", item: 2 });
  assert.deepEqual(sent("retry"), { question: "n.1.1", answer: "retry", reason: "so" });
});

test("faults of the server are those of the fields of the form", () => {
  const errors = [
    { path: "answer.lines.1.sku", message: "wrong" },
    { path: "answer", message: "no" },
    { path: "answers", message: "other" },
  ];
  assert.deepEqual(faultsIn({ errors }, "answer"), [
    { path: ["lines", "1", "sku"], message: "wrong" },
    { path: [], message: "no" },
  ]);
});

const RUN = { id: "r", flow: "order", held_by: null, updated_at: 100, remedies: [] };
const WORK = { verb: "work", arguments: {}, words: "", command: "holdfast worker shop.py" };
const SKIP = { verb: "skip", arguments: {}, words: "", command: "" };
const request = (more) => ({
  id: "1",
  verb: "resume",
  about: null,
  by: "ada",
  reason: null,
  status: "waiting",
  at: 100,
  ...more,
});

test("a request that waits says how long, and after ten seconds why", () => {
  const early = showRequests([request()], { ...RUN, remedies: [WORK] }, 106);
  assert.deepEqual(early.waiting, [{ key: "1", words: "Resume asked 6 s ago", title: "by ada" }]);
  assert.deepEqual([early.note, early.command], ["", ""]);
  const late = showRequests([request()], { ...RUN, remedies: [WORK] }, 111);
  assert.equal(late.note, "No worker that knows flow order has claimed it yet. The request is kept.");
  assert.equal(late.command, "holdfast worker shop.py");
  const held = showRequests([request()], { ...RUN, held_by: "w1", remedies: [WORK] }, 111);
  assert.deepEqual([held.note.slice(0, 11), held.command], ["w1 executes", ""]);
});

test("a refusal has its reason and other ways, until the run moves on", () => {
  const refused = request({ status: "refused", refused: "it has changed", refused_at: 100 });
  const shown = showRequests([refused], { ...RUN, remedies: [WORK, SKIP] }, 101).refused;
  assert.deepEqual([shown.title, shown.reason, shown.remedies], ["The resume was refused.", "it has changed", [SKIP]]);
  assert.equal(showRequests([refused], { ...RUN, updated_at: 101 }, 102).refused, null);
  assert.equal(showRequests([refused, request({ at: 101 })], RUN, 102).refused, null);
});
