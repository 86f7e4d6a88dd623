import assert from "node:assert/strict";
import { test } from "node:test";

import { lookOfWorker, processesOf, queueWords, workersInWords } from "../../src/holdfast/server/page/pure/workers.js";

const engine = (id, name, changes = {}) => ({ id, name, is_worker: true, flows: ["order"], held: 1, ...changes });

test("the two engines of a server are one process", () => {
  const clerk = engine("b", "process 7 on box", { is_worker: false, flows: [], held: 2 });
  for (const engines of [
    [clerk, engine("a", "process 7 on box")],
    [engine("a", "process 7 on box"), clerk],
  ]) {
    const [one, ...others] = processesOf(engines);
    assert.deepEqual([one.id, one.held, one.flows, others], ["a", 3, ["order"], []]);
  }
  const queues = [{ offered: 1 }, { offered: 0 }];
  assert.equal(workersInWords(processesOf([clerk]), queues), "1 process is alive and executes 2 runs. 1 run waits for a worker.");
  assert.equal(workersInWords([], []), "No process is alive. 0 runs wait for a worker.");
});

test("a worker that was killed stays as gone, and is not counted as alive", () => {
  const gone = engine("b", "process 8 on box", { gone: true, held: 1 });
  const processes = processesOf([engine("a", "process 7 on box", { gone: false, held: 0 }), gone]);
  assert.deepEqual(
    processes.map((one) => lookOfWorker(one).word),
    ["takes runs", "gone; 1 run on offer"],
  );
  assert.equal(workersInWords(processes, []), "1 process is alive and executes 0 runs. 0 runs wait for a worker.");
});

test("a queue with the limit 0 is stopped", () => {
  assert.equal(queueWords({ held: 0, limit: 0 }), "stopped");
  assert.equal(queueWords({ held: 2, limit: 0 }), "stopped, 2 still executed");
  assert.equal(queueWords({ held: 2, limit: 5 }), "2 of 5");
  assert.equal(queueWords({ held: 2, limit: null }), "2, no limit");
});
