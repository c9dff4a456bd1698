// Writes of each client while the node that leads most regions is killed.

import { randomBytes } from "node:crypto";
import { connected as glide } from "./glide.mjs";
import { connected as ioredis } from "./ioredis.mjs";
import { connected as nodeRedis } from "./node_redis.mjs";
import { FIRST_BYTES, line, pause } from "./results.mjs";

const WRITES_PER_SECOND = 100;
// Names are written several times, so that later writes replace earlier ones.
const NAMES = 400;

const OPENERS = { "node-redis": nodeRedis, ioredis, "valkey-glide (node)": glide };

async function write(name, open, cluster, seconds) {
  const client = await open(cluster, 0);
  const run = randomBytes(4).toString("hex");
  const [acknowledged, errors] = [new Map(), new Map()];
  const start = performance.now();
  let [longest, last] = [0, start];
  for (let at = 0; performance.now() < start + seconds * 1000; at += 1) {
    await pause(Math.max(0, start + (at * 1000) / WRITES_PER_SECOND - performance.now()));
    const key = `${FIRST_BYTES[(at % NAMES) % FIRST_BYTES.length]}:${run}:${at % NAMES}`;
    try {
      await client.set(key, String(at));
      acknowledged.set(key, at);
      const now = performance.now();
      [longest, last] = [Math.max(longest, now - last), now];
    } catch (error) {
      const text = `${error.name}: ${error.message}`.replace(/\d+/g, "N").slice(0, 160);
      errors.set(text, (errors.get(text) ?? 0) + 1);
    }
  }
  // A later write without an acknowledgement may have taken effect: values count up.
  let lost = 0;
  for (const [key, value] of acknowledged) {
    lost += Number((await client.get(key)) ?? -1) < value ? 1 : 0;
  }
  const seen = [...errors].map(([text, number]) => `${number} x ${text}`).join("; ") || "none";
  const text = `errors: ${seen}; longest pause ${longest.toFixed(0)} ms; names ${acknowledged.size}, lost ${lost}`;
  line(name, "client", "leader killed", lost || !acknowledged.size ? "failed" : "passed", text);
}

// Runs all clients at the same time.
export async function run(cluster, seconds, only) {
  const chosen = Object.entries(OPENERS).filter(([name]) => only === undefined || only === name);
  await Promise.all(chosen.map(([name, open]) => write(name, open, cluster, seconds)));
}
