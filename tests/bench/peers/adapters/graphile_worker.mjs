// graphile-worker at the configuration that its page on performance measures.

import { BULK, main, payload, require } from "./common.mjs";

const { run, runMigrations, makeWorkerUtils, Logger, WorkerPreset } = require("graphile-worker");
const { Pool } = require("pg");

// worker.graphile.org/docs/performance: 24 jobs at a time, a pool of 25, a local queue of
// 500, endings in batches without delay; it advises to grow the queue with the rate.
const CONCURRENCY = 24;
const logger = new Logger(() => () => {});

main((url, handle) => {
  let pool;
  let utils;
  return {
    name: "graphile-worker",
    packages: ["graphile-worker", "pg"],
    setting:
      "concurrentJobs 24, maxPoolSize 25, localQueue size 500, completeJobBatchDelay 0, failJobBatchDelay 0",
    source: "https://worker.graphile.org/docs/performance",
    history: "none kept",
    remaining: "select count(*) from graphile_worker._private_jobs",
    setup: () => runMigrations({ connectionString: url, logger }),
    async open(clients) {
      pool = new Pool({ connectionString: url, max: clients });
      utils = await makeWorkerUtils({ pgPool: pool, logger });
    },
    enqueue: (number) => utils.addJob("count", payload(number)),
    async enqueueMany(numbers) {
      for (let first = 0; first < numbers.length; first += BULK) {
        const chunk = numbers.slice(first, first + BULK);
        await utils.addJobs(chunk.map((n) => ({ identifier: "count", payload: payload(n) })));
      }
    },
    async work(slots) {
      const concurrentJobs = slots ?? CONCURRENCY;
      const runner = await run({
        taskList: { count: (job) => handle(job.number) },
        preset: {
          extends: [WorkerPreset],
          worker: {
            connectionString: url,
            concurrentJobs,
            maxPoolSize: concurrentJobs + 1,
            localQueue: { size: 500 },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          },
        },
        logger,
        noHandleSignals: true,
      });
      await runner.promise;
    },
    async close() {
      await utils.release();
      await pool.end();
    },
  };
});
