// node-redis: each family of commands.

import { createClient, WatchError } from "redis";
import { Skipped, equal, isTrue, names, refused } from "./results.mjs";

export async function connected(cluster, at = 0) {
  const client = createClient({ url: cluster.url(at) });
  // Without a listener, an error of a connection ends the process.
  client.on("error", () => {});
  await client.connect();
  return client;
}

// Declares a check that takes two clients, of different nodes.
function check(name, work) {
  const run = async (cluster) => {
    const [one, other] = [await connected(cluster, 0), await connected(cluster, 1)];
    try {
      return await work(one, other);
    } finally {
      one.destroy();
      other.destroy();
    }
  };
  return { client: "node-redis", kind: "client", name, run };
}

async function strings(one, other) {
  for (const [at, name] of names("nr:s").entries()) {
    equal(await one.set(name, at, { expiration: { type: "EX", value: 60 } }), "OK");
    equal(await other.set(name, "x", { condition: "NX" }), null);
    equal(await other.incrBy(name, 5), at + 5);
    equal(await one.incrByFloat(name, 0.5), String(at + 5.5));
    isTrue((await other.append(name, "tail")) >= 7);
    isTrue((await one.getEx(name, { type: "PERSIST" })).endsWith("tail"));
    equal(await other.ttl(name), -1);
    equal(await other.setRange(name, 0, "9"), await one.strLen(name));
    isTrue((await one.getDel(name)).startsWith("9"));
    equal(await one.get(name), null);
  }
  const several = Object.fromEntries(names("nr:m").map((name) => [name, name.toUpperCase()]));
  equal(await one.mSet(several), "OK");
  equal(await other.mGet(Object.keys(several)), Object.values(several));
  equal(await other.mSetNX(several), 0);
  equal(await one.del(Object.keys(several)), 12);
}

async function keys(one, other) {
  const moved = names("nr:moved").reverse();
  for (const [at, name] of names("nr:k").entries()) {
    await one.set(name, "v");
    equal(await other.expire(name, 60), 1);
    equal(await one.rename(name, moved[at]), "OK");
    isTrue((await other.pTTL(moved[at])) > 0);
    equal(await other.persist(moved[at]), 1);
    equal(await other.copy(moved[at], name), 1);
    equal(await one.renameNX(name, moved[at]), 0);
    equal(await one.type(name), "string");
    equal(await one.exists([name, moved[at]]), 2);
    equal(await other.unlink([name, moved[at]]), 2);
  }
}

async function hashesAndSets(one, other) {
  for (const name of names("nr:h")) {
    equal(await one.hSet(name, { a: "1", b: "2" }), 2);
    equal({ ...(await other.hGetAll(name)) }, { a: "1", b: "2" });
    equal(await other.hIncrBy(name, "a", 41), 42);
    equal(await one.hmGet(name, ["a", "c"]), ["42", null]);
    equal((await one.hScan(name, "0")).entries.length, 2);
    equal(await one.hDel(name, ["a", "b"]), 2);
    equal(await one.sAdd(name, ["a", "b", "c"]), 3);
    equal([...(await other.sMembers(name))].sort(), ["a", "b", "c"]);
    equal(await other.smIsMember(name, ["a", "x"]), [1, 0]);
    equal(await one.sRem(name, ["a", "b", "c"]), 3);
    equal(await one.exists(name), 0);
  }
}

async function transactions(one, other) {
  const all = names("nr:t");
  const multi = one.multi();
  for (const [at, name] of all.entries()) {
    multi.set(name, at).incr(name);
  }
  const replies = await multi.exec();
  equal(replies.filter((_, at) => at % 2 === 1), all.map((_, at) => at + 1));
  await one.watch(all);
  await other.set(all[9], "changed");
  try {
    await one.multi().set(all[0], "never").exec();
    throw new Error("the watch saw no change");
  } catch (error) {
    isTrue(error instanceof WatchError, String(error));
  }
  equal(await one.get(all[0]), "1");
  // A pipeline: commands that are sent without waiting.
  await Promise.all(all.map((name) => one.set(name, "p")));
  equal(await one.mGet(all), all.map(() => "p"));
  equal(await one.unlink(all), all.length);
}

async function scan(one, other) {
  const written = names("nr:scan").flatMap((name) => Array.from({ length: 10 }, (_, at) => `${name}:${at}`));
  await one.mSet(written.map((name) => [name, "v"]));
  const found = new Set();
  for await (const page of other.scanIterator({ MATCH: "*:nr:scan:*", COUNT: 50 })) {
    page.forEach((name) => found.add(name));
  }
  equal([...found].sort(), [...written].sort());
  equal((await one.keys("b:nr:scan:*")).length, 10);
  await one.unlink(written);
}

async function scripts(one) {
  throw new Skipped(await refused(() => one.eval("return 1", { keys: [], arguments: [] }), "script"));
}

async function rateLimiter(one, other) {
  for (const name of names("nr:rate")) {
    const counts = [];
    for (const client of [one, other, one]) {
      counts.push((await client.multi().incr(name).expire(name, 10, "NX").exec())[0]);
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
