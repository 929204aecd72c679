// What the adapters for Node share: one process, one verb; the twin of common.py.
//
//     node ADAPTER.mjs VERB URL [ARGUMENT ...]
//
// Moments are CLOCK_MONOTONIC nanoseconds, the same clock for all processes of a machine.

import fs from "node:fs";
import { createRequire } from "node:module";

export const BULK = 1000;
const PAD = "0123456789abcdef".repeat(8).slice(0, 72);

// Packages stand in the cache folder, not beside this file.
export const require = createRequire(process.env.BENCH_MODULES + "/");

export const payload = (number) => ({ number, pad: PAD });
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const version = (name) =>
  JSON.parse(fs.readFileSync(`${process.env.BENCH_MODULES}/${name}/package.json`)).version;

const now = () => process.hrtime.bigint();
const tell = (...words) => fs.writeSync(1, words.join(" ") + "\n");

function tally(each) {
  let count = 0;
  let told = 0;
  if (!each) {
    setInterval(() => {
      if (count !== told) tell("h", (told = count), now());
    }, 20);
  }
  return (number) => {
    count += 1;
    if (each) tell("s", number, now());
    else if (count === 1) tell("h", 0, now());
  };
}

async function single(peer, clients, seconds) {
  await peer.open(clients);
  let done = 0;
  for (let n = 0; n < 2 * clients; n++) await peer.enqueue(n);
  const begun = performance.now();
  const end = begun + seconds * 1000;
  const one = async () => {
    while (performance.now() < end) {
      await peer.enqueue(done);
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: clients }, one));
  const passed = (performance.now() - begun) / 1000;
  await peer.close();
  return { count: done, seconds: passed };
}

async function bulk(peer, count) {
  await peer.open(1);
  const begun = performance.now();
  await peer.enqueueMany(Array.from({ length: count }, (_, n) => n));
  const passed = (performance.now() - begun) / 1000;
  await peer.close();
  return { count, seconds: passed };
}

async function produce(peer, count, gap, steady) {
  await peer.open(8);
  const underWay = [];
  const send = (number) => {
    tell("e", number, now());
    return peer.enqueue(number);
  };
  let due = performance.now();
  for (let number = 0; number < count; number++) {
    if (steady) {
      due += gap;
      await sleep(Math.max(0, due - performance.now()));
      underWay.push(send(number));
    } else {
      await send(number);
      await sleep((0.5 + Math.random()) * gap);
    }
  }
  await Promise.all(underWay);
  await peer.close();
  return null;
}

export async function main(make) {
  const [verb, url, ...rest] = process.argv.slice(2);
  const working = verb === "work" || verb === "echo";
  const handled = working ? tally(verb === "echo") : () => {};
  const pause = working ? Number(rest[1]) : 0;
  const handle = async (number) => {
    handled(number);
    if (pause) await sleep(pause);
  };
  const peer = make(url, handle);
  let answer = null;
  if (verb === "describe") {
    const { name, packages, setting, source, history, remaining } = peer;
    const versions = Object.fromEntries(packages.map((each) => [each, version(each)]));
    answer = { name, versions, runtime: `Node ${process.versions.node}`, setting, source, history, remaining };
  } else if (verb === "setup") await peer.setup();
  else if (verb === "single") answer = await single(peer, Number(rest[0]), Number(rest[1]));
  else if (verb === "bulk") answer = await bulk(peer, Number(rest[0]));
  else if (verb === "produce") await produce(peer, Number(rest[0]), Number(rest[1]), rest[2] === "steady");
  else if (working) {
    process.on("SIGTERM", () => process.exit(0));
    // Say that all is loaded, wait for the word, and work until SIGTERM.
    tell("r", 0, 0);
    await new Promise((resolve) => process.stdin.once("data", resolve));
    process.stdin.destroy();
    await peer.work(Number(rest[0]) || null);
    return;
  } else throw new Error(`no verb ${verb}`);
  tell(JSON.stringify(answer));
  process.exit(0);
}
