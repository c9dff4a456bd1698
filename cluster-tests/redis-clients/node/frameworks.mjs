// Session stores, a cache and lock libraries.

import { createRequire } from "node:module";
import Keyv from "keyv";
import KeyvRedis from "@keyv/redis";
import { Redlock as SesameRedlock } from "@sesamecare-oss/redlock";
import { RedisStore } from "connect-redis";
import express from "express";
import expressSession from "express-session";
import Koa from "koa";
import koaSession from "koa-generic-session";
import { connected as ioredis } from "./ioredis.mjs";
import { connected as nodeRedis } from "./node_redis.mjs";
import { equal, isTrue, names, pause } from "./results.mjs";

const require = createRequire(import.meta.url);
const koaRedis = require("koa-redis");
const Redlock = require("redlock");

// Serves a site while `work` sends requests to it.
async function served(handler, work) {
  const server = await new Promise((resolve) => {
    const started = handler.listen(0, "127.0.0.1", () => resolve(started));
  });
  try {
    return await work(`http://127.0.0.1:${server.address().port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

// A browser that keeps the cookies.
class Browser {
  constructor(site) {
    this.site = site;
    this.cookies = new Map();
  }

  async get(path) {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const reply = await fetch(this.site + path, { headers: cookie ? { cookie } : {} });
    for (const set of reply.headers.getSetCookie()) {
      const [name, value] = set.split(";")[0].split("=");
      this.cookies.set(name, value);
    }
    const text = await reply.text();
    equal([reply.status, text.length > 0], [200, true], text);
    return text;
  }
}

// Visits a site of which each session counts visits and changes its id at a login.
async function visit(site) {
  for (let number = 0; number < 12; number += 1) {
    const browser = new Browser(site);
    equal(await browser.get("/count"), "count 1");
    equal(await browser.get("/count"), "count 2");
    const before = new Map(browser.cookies);
    equal(await browser.get("/login"), "count 0");
    isTrue(JSON.stringify([...before]) !== JSON.stringify([...browser.cookies]), "the id changes");
    equal(await browser.get("/count"), "count 1");
    const former = new Browser(site);
    former.cookies = before;
    equal(await former.get("/count"), "count 1");
    const kept = new Map(browser.cookies);
    equal(await browser.get("/logout"), "left");
    browser.cookies = kept;
    equal(await browser.get("/count"), "count 1");
  }
}

async function connectRedis(cluster) {
  const client = await nodeRedis(cluster, 1);
  const store = new RedisStore({ client });
  const app = express();
  app.use(expressSession({ store, resave: false, saveUninitialized: false, secret: "of a test" }));
  app.get("/count", (request, reply) => {
    request.session.count = (request.session.count ?? 0) + 1;
    reply.send(`count ${request.session.count}`);
  });
  app.get("/login", (request, reply, next) => {
    request.session.regenerate((error) => {
      if (error) return next(error);
      request.session.count = 0;
      return reply.send("count 0");
    });
  });
  app.get("/logout", (request, reply, next) => {
    request.session.destroy((error) => (error ? next(error) : reply.send("left")));
  });
  await store.clear();
  await served(app, visit);
  // Each visit leaves the session that begins after the login's id was gone, and one after the logout.
  isTrue((await store.length()) >= 12, "sessions are counted");
  equal((await store.all()).length, await store.length());
  equal((await store.ids()).length, await store.length());
  await store.clear();
  equal(await store.length(), 0);
  client.destroy();
}

async function koaRedisStore(cluster) {
  const client = ioredis(cluster, 2);
  const app = new Koa();
  app.keys = ["of a test"];
  app.use(koaSession({ store: koaRedis({ client }) }));
  app.use(async (context) => {
    if (context.path === "/login") {
      await context.regenerateSession();
      context.session.count = 0;
      context.body = "count 0";
    } else if (context.path === "/logout") {
      context.session = null;
      context.body = "left";
    } else {
      context.session.count = (context.session.count ?? 0) + 1;
      context.body = `count ${context.session.count}`;
    }
  });
  await served(app, visit);
  client.disconnect();
}

async function keyv(cluster) {
  // Without a namespace, names are those that the caller gives.
  const store = new KeyvRedis(cluster.url(0), { noNamespaceAffectsAll: false });
  const cache = new Keyv(store, { useKeyPrefix: false });
  const many = names("keyv").map((key, at) => ({ key, value: { at }, ttl: 60000 }));
  await cache.setMany(many);
  equal(await cache.getMany(many.map(({ key }) => key)), many.map(({ value }) => value));
  for (const { key } of many) {
    equal(await cache.has(key), true);
    await cache.set(key, "short", 200);
  }
  await pause(300);
  equal(await cache.get(many[0].key), undefined);
  await cache.setMany(many);
  equal(await cache.deleteMany(many.map(({ key }) => key)), true);
  equal(await cache.get(many[3].key), undefined);
  const spaced = new Keyv(new KeyvRedis(cluster.url(1)), { namespace: "mspace" });
  await spaced.setMany(many);
  const found = [];
  for await (const [key] of spaced.iterator()) {
    found.push(key);
  }
  equal(found.sort(), many.map(({ key }) => key).sort());
  await spaced.clear();
  equal(await spaced.get(many[0].key), undefined);
  await cache.disconnect();
  await spaced.disconnect();
}

async function redlock(cluster) {
  const client = ioredis(cluster, 0);
  const locks = new Redlock([client], { retryCount: 0 });
  for (const name of names("redlock")) {
    let lock = await locks.lock(name, 10000);
    await locks.lock(name, 10000).then(() => Promise.reject(new Error("locked twice")), refusedLock);
    lock = await lock.extend(20000);
    isTrue((await client.pttl(name)) > 10000, "the lock was extended");
    await lock.unlock();
  }
  const several = await locks.lock(names("redlock-many"), 10000);
  await locks.lock(names("redlock-many")[5], 10000).then(() => Promise.reject(new Error("locked twice")), refusedLock);
  await several.unlock();
  client.disconnect();
}

function refusedLock(error) {
  isTrue(error.name === "LockError" || error.name === "ExecutionError", `${error.name}: ${error.message}`);
}

async function sesameRedlock(cluster) {
  const client = ioredis(cluster, 1);
  const locks = new SesameRedlock([client], { retryCount: 0 });
  let lock = await locks.acquire(names("sesame"), 10000);
  for (const name of names("sesame")) {
    await locks.acquire([name], 10000).then(() => Promise.reject(new Error("locked twice")), refusedLock);
  }
  lock = await lock.extend(20000);
  await lock.release();
  let entered = false;
  await locks.using([names("sesame")[3]], 5000, async () => {
    entered = true;
  });
  equal(entered, true);
  client.disconnect();
}

const framework = (client, name, run) => ({ client, kind: "framework", name, run });

export const CHECKS = [
  framework("connect-redis", "session store", connectRedis),
  framework("koa-redis", "session store", koaRedisStore),
  framework("@keyv/redis", "cache", keyv),
  framework("redlock", "lock", redlock),
  framework("@sesamecare-oss/redlock", "lock", sesameRedlock),
];
