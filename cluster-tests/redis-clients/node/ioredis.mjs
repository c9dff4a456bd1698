// ioredis: each family of commands.

import Redis from "ioredis";
import { Skipped, equal, isTrue, names, refused } from "./results.mjs";

export function connected(cluster, at = 0) {
  const client = new Redis(cluster.node(at));
  client.on("error", () => {});
  return client;
}

// Declares a check that takes two clients, of different nodes.
function check(name, work) {
  const run = async (cluster) => {
    const [one, other] = [connected(cluster, 0), connected(cluster, 1)];
    try {
      return await work(one, other);
    } finally {
      one.disconnect();
      other.disconnect();
    }
  };
  return { client: "ioredis", kind: "client", name, run };
}

async function strings(one, other) {
  for (const [at, name] of names("io:s").entries()) {
    equal(await one.set(name, at, "EX", 60), "OK");
    equal(await other.set(name, "x", "NX"), null);
    equal(await other.set(name, at + 1, "KEEPTTL", "GET"), String(at));
    equal(await one.incrby(name, 4), at + 5);
    equal(await one.incrbyfloat(name, 0.5), String(at + 5.5));
    isTrue((await other.append(name, "tail")) >= 7);
    equal(await other.setrange(name, 0, "9"), await one.strlen(name));
    equal(await other.getrange(name, 0, 0), "9");
    isTrue((await one.getdel(name)).endsWith("tail"));
    equal(await one.get(name), null);
  }
  const several = Object.fromEntries(names("io:m").map((name) => [name, name.toUpperCase()]));
  equal(await one.mset(several), "OK");
  equal(await other.mget(Object.keys(several)), Object.values(several));
  equal(await other.msetnx(several), 0);
  equal(await one.del(Object.keys(several)), 12);
}

async function keys(one, other) {
  const moved = names("io:moved").reverse();
  for (const [at, name] of names("io:k").entries()) {
    await one.set(name, "v");
    equal(await other.pexpire(name, 60000), 1);
    equal(await one.rename(name, moved[at]), "OK");
    isTrue((await other.ttl(moved[at])) > 0);
    equal(await other.persist(moved[at]), 1);
    equal(await other.copy(moved[at], name), 1);
    equal(await one.type(name), "string");
    equal(await other.unlink(name, moved[at]), 2);
  }
}

async function hashesAndSets(one, other) {
  for (const name of names("io:h")) {
    equal(await one.hset(name, { a: "1", b: "2" }), 2);
    equal(await other.hgetall(name), { a: "1", b: "2" });
    equal(await other.hincrby(name, "a", 41), 42);
    equal(await one.hmget(name, "a", "c"), ["42", null]);
    equal(await one.hdel(name, "a", "b"), 2);
    equal(await one.sadd(name, "a", "b", "c"), 3);
    equal([...(await other.smembers(name))].sort(), ["a", "b", "c"]);
    equal(await one.srem(name, "a", "b", "c"), 3);
    equal(await one.exists(name), 0);
  }
}

async function transactions(one, other) {
  const all = names("io:t");
  const multi = one.multi();
  for (const [at, name] of all.entries()) {
    multi.set(name, at).incr(name);
  }
  const replies = await multi.exec();
  equal(replies.filter((_, at) => at % 2 === 1), all.map((_, at) => [null, at + 1]));
  await one.watch(all);
  await other.set(all[9], "changed");
  equal(await one.multi().set(all[0], "never").exec(), null);
  equal(await one.get(all[0]), "1");
  const pipeline = one.pipeline();
  for (const name of all) {
    pipeline.set(name, "p").get(name);
  }
  equal(await pipeline.exec(), all.flatMap(() => [[null, "OK"], [null, "p"]]));
  equal(await one.unlink(all), all.length);
}

async function scan(one, other) {
  const written = names("io:scan").flatMap((name) => Array.from({ length: 10 }, (_, at) => `${name}:${at}`));
  await one.mset(written.flatMap((name) => [name, "v"]));
  const found = new Set();
  for await (const page of other.scanStream({ match: "*:io:scan:*", count: 50 })) {
    page.forEach((name) => found.add(name));
  }
  equal([...found].sort(), [...written].sort());
  equal((await one.keys("b:io:scan:*")).length, 10);
  await one.unlink(written);
}

async function scripts(one) {
  throw new Skipped(await refused(() => one.eval("return 1", 0), "script"));
}

async function rateLimiter(one, other) {
  for (const name of names("io:rate")) {
    const counts = [];
    for (const client of [one, other, one]) {
      counts.push((await client.multi().incr(name).expire(name, 10, "NX").exec())[0][1]);
    }
    equal(counts, [1, 2, 3]);
    await one.del(name);
  }
}

export const CHECKS = [
  check("strings", strings),
  check("keys", keys),
  check("hashes, sets", hashesAndSets),
  check("transactions", transactions),
  check("scan", scan),
  check("scripts", scripts),
  check("rate limiter", rateLimiter),
];
