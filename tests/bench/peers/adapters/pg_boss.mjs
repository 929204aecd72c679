// pg-boss: batches per fetch, notifications, polling on as long as batches are full.

import { main, payload, require } from "./common.mjs";

const { PgBoss } = require("pg-boss");

// pgboss.io/api/workers: a larger batchSize for throughput, burstWhenBatchFull to fetch on
// while there is more, notify on the queue and useListenNotify for latency.
const BATCH = 500;
const CONCURRENCY = 2;
const CHUNK = 1000;

main((url, handle) => {
  let boss;
  const start = async (options) => {
    const made = new PgBoss({ connectionString: url, useListenNotify: true, ...options });
    made.on("error", () => {});
    await made.start();
    return made;
  };
  return {
    name: "pg-boss",
    packages: ["pg-boss", "pg"],
    setting: `batchSize ${BATCH}, localConcurrency ${CONCURRENCY}, burstWhenBatchFull, useListenNotify with notify on the queue`,
    source: "https://pgboss.io/api/workers",
    history: "finished jobs, until deleted",
    remaining: "select count(*) from pgboss.job where name = 'bench' and state < 'completed'",
    async setup() {
      const made = await start();
      await made.createQueue("bench", { notify: true });
      await made.stop({ graceful: false });
    },
    async open(clients) {
      boss = await start({ max: clients, supervise: false, schedule: false });
    },
    enqueue: (number) => boss.send("bench", payload(number)),
    async enqueueMany(numbers) {
      for (let first = 0; first < numbers.length; first += CHUNK) {
        const chunk = numbers.slice(first, first + CHUNK);
        await boss.insert("bench", chunk.map((n) => ({ data: payload(n) })));
      }
    },
    async work(slots) {
      const made = await start();
      // One at a time and as many workers, where the number of slots is given.
      const shape = slots
        ? { batchSize: 1, localConcurrency: slots }
        : { batchSize: BATCH, localConcurrency: CONCURRENCY, burstWhenBatchFull: true };
      await made.work("bench", { pollingIntervalSeconds: 0.5, ...shape }, (jobs) =>
        Promise.all(jobs.map((job) => handle(job.data.number))),
      );
    },
    close: () => boss.stop({ graceful: false }),
  };
});
