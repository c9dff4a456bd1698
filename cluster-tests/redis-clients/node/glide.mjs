// valkey-glide for Node: each family of commands.

import { Batch, GlideClient, TimeUnit } from "@valkey/valkey-glide";
import { equal, isTrue, names } from "./results.mjs";

export function connected(cluster, at = 0) {
  return GlideClient.createClient({ addresses: [cluster.node(at)], requestTimeout: 10000 });
}

// Declares a check that takes two clients, of different nodes.
function check(name, work) {
  const run = async (cluster) => {
    const [one, other] = [await connected(cluster, 0), await connected(cluster, 1)];
    try {
      return await work(one, other);
    } finally {
      one.close();
      other.close();
    }
  };
  return { client: "valkey-glide (node)", kind: "client", name, run };
}

async function strings(one, other) {
  for (const [at, name] of names("gn:s").entries()) {
    equal(await one.set(name, String(at), { expiry: { type: TimeUnit.Seconds, count: 60 } }), "OK");
    equal(await other.set(name, "x", { conditionalSet: "onlyIfDoesNotExist" }), null);
    equal(await other.incrBy(name, 5), at + 5);
    isTrue((await one.append(name, "tail")) >= 5);
    isTrue((await other.getdel(name)).endsWith("tail"));
  }
  const several = Object.fromEntries(names("gn:m").map((name) => [name, name.toUpperCase()]));
  equal(await one.mset(several), "OK");
  equal(await other.mget(Object.keys(several)), Object.values(several));
  equal(await one.del(Object.keys(several)), 12);
}

async function keys(one, other) {
  const moved = names("gn:moved").reverse();
  for (const [at, name] of names("gn:k").entries()) {
    await one.set(name, "v");
    equal(await other.expire(name, 60), true);
    equal(await one.rename(name, moved[at]), "OK");
    isTrue((await other.ttl(moved[at])) > 0);
    equal(await one.unlink([name, moved[at]]), 1);
  }
}

async function hashesAndSets(one, other) {
  for (const name of names("gn:h")) {
    equal(await one.hset(name, { a: "1", b: "2" }), 2);
    equal(await other.hincrBy(name, "a", 41), 42);
    equal(await one.hmget(name, ["a", "c"]), ["42", null]);
    equal(await one.hdel(name, ["a", "b"]), 2);
    equal(await one.sadd(name, ["a", "b"]), 2);
    equal([...(await other.smembers(name))].sort(), ["a", "b"]);
    equal(await one.srem(name, ["a", "b"]), 2);
  }
}

async function transactions(one, other) {
  const all = names("gn:t");
  const batch = new Batch(true);
  for (const [at, name] of all.entries()) {
    batch.set(name, String(at)).incr(name);
  }
  const replies = await one.exec(batch, true);
  equal(replies.filter((_, at) => at % 2 === 1), all.map((_, at) => at + 1));
  await one.watch(all);
  await other.set(all[9], "changed");
  equal(await one.exec(new Batch(true).set(all[0], "never"), true), null);
  equal(await one.get(all[0]), "1");
  equal(await one.unlink(all), all.length);
}

export const CHECKS = [
  check("strings", strings),
  check("keys", keys),
  check("hashes, sets", hashesAndSets),
  check("transactions", transactions),
];
