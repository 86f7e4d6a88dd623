import assert from "node:assert/strict";
import { test } from "node:test";

import { beginAnnouncements, noteMessage, sayNow } from "../../src/holdfast/server/page/pure/announcements.js";
import { backoff, beginConnection, connect } from "../../src/holdfast/server/page/pure/connection.js";
import { createEventReader } from "../../src/holdfast/server/page/pure/sse.js";

test("events are read from pieces that are cut anywhere", () => {
  const stream = ': beat\n\nid: 7\nevent: row\ndata: {"a":\ndata: 1}\n\ndata:x\r\n\r\nid: 8\n\n';
  for (const size of [1, 2, 3, 7, stream.length]) {
    const read = createEventReader();
    const events = [];
    for (let at = 0; at < stream.length; at += size) events.push(...read(stream.slice(at, at + size)));
    assert.deepEqual(events, [
      { event: "row", data: '{"a":\n1}', id: "7" },
      { event: "message", data: "x", id: null },
    ]);
  }
});

test("the next try waits longer each time, up to half a minute", () => {
  assert.deepEqual([1, 2, 3, 4, 5, 6, 60].map(backoff), [1, 2, 4, 8, 16, 30, 30]);
});

test("a connection is lost, tried again and live again", () => {
  let now = connect(beginConnection(0), { kind: "opened", at: 1 });
  now = connect(now, { kind: "failed", at: 30 });
  assert.deepEqual([now.state, now.heardAt, now.retryAt], ["lost", 1, 31]);
  now = connect(connect(now, { kind: "retry", at: 31 }), { kind: "failed", at: 31, wait: 9 });
  assert.deepEqual([now.failures, now.retryAt], [2, 40]);
  now = connect(now, { kind: "opened", at: 40 });
  assert.deepEqual([now.state, now.failures], ["live", 0]);
});

test("a hidden tab is closed, which is not a loss", () => {
  const hidden = connect(connect(beginConnection(0), { kind: "opened", at: 1 }), { kind: "hidden", at: 2 });
  assert.equal(connect(hidden, { kind: "failed", at: 3 }).state, "hidden");
  assert.equal(connect(hidden, { kind: "shown", at: 4 }).state, "connecting");
});

test("a screen reader is told one message in five seconds, the latest of each subject", () => {
  let all = noteMessage(noteMessage(beginAnnouncements(), "r1", "r1 is running"), "r1", "r1 failed");
  let said;
  [said, all] = sayNow(all, 100);
  assert.equal(said, "r1 failed");
  for (let count = 0; count < 9; count += 1) all = noteMessage(all, `r${count}`, `r${count} completed`);
  [said, all] = sayNow(all, 104);
  assert.equal(said, null);
  [said, all] = sayNow(all, 105);
  assert.equal(said, "r0 completed. r1 completed. and 7 more changes");
});
