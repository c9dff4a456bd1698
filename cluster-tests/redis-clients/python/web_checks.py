"""Flask-Session, Flask-Caching, cachelib and fastapi-cache2."""

import asyncio
import time

import redis
import redis.asyncio
from flask import Flask, session

from results import Checks, Skipped, equal, names, refused, true

CHECKS = Checks()


@CHECKS.of("Flask-Session", "session store")
def flask_session(cluster):
    from flask_session import Session

    app = Flask("sessions")
    app.config.update(SESSION_TYPE="redis", SESSION_REDIS=redis.from_url(cluster.url(1)))
    Session(app)

    @app.get("/count")
    def count():
        session["count"] = session.get("count", 0) + 1
        return str(session["count"])

    @app.get("/login")
    def login():
        app.session_interface.regenerate(session)
        session["user"] = "someone"
        return str(session["count"])

    @app.get("/logout")
    def logout():
        session.clear()
        return ""

    for _ in range(12):
        browser = app.test_client()
        equal([browser.get("/count").text for _ in range(3)], ["1", "2", "3"])
        before = browser.get_cookie("session").value
        equal(browser.get("/login").text, "3")
        after = browser.get_cookie("session").value
        true(before != after, "a login changes the id of the session")
        equal(browser.get("/count").text, "4")
        browser.set_cookie("session", before)
        equal(browser.get("/count").text, "1")
        browser.set_cookie("session", after)
        browser.get("/logout")
        browser.set_cookie("session", after)
        equal(browser.get("/count").text, "1")


@CHECKS.of("Flask-Caching", "cache")
def flask_caching(cluster):
    from flask_caching import Cache

    app = Flask("caching")
    host, port = cluster.nodes[0]
    settings = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_HOST": host, "CACHE_REDIS_PORT": port}
    cache = Cache(app, config={**settings, "CACHE_KEY_PREFIX": "flask_cache_"})
    calls = []

    @cache.memoize(60)
    def doubled(number):
        calls.append(number)
        return number * 2

    with app.app_context():
        equal([doubled(at % 6) for at in range(12)], [at % 6 * 2 for at in range(12)])
        equal(len(calls), 6)
        cache.delete_memoized(doubled, 3)
        equal(doubled(3), 6)
        equal(len(calls), 7)
        exercise(cache, "fc")
        cache.clear()
        equal(doubled(3), 6)
        equal(len(calls), 8)


def exercise(cache, what):
    """Calls that Flask-Caching and cachelib have in common."""
    many = {name: {"at": at} for at, name in enumerate(names(what))}
    true(cache.set_many(many, timeout=60), "set_many")
    equal(cache.get_many(*many), list(many.values()))
    for name in many:
        equal(cache.add(name, "other"), False)
        equal(cache.has(name), True)
    cache.delete_many(*many)
    equal(cache.get_many(*many), [None] * len(many))
    equal(cache.add("m:new", 1, timeout=1), True)
    time.sleep(1.1)
    equal(cache.get("m:new"), None)


@CHECKS.of("cachelib", "cache")
def cachelib(cluster):
    from cachelib import RedisCache

    host, port = cluster.nodes[2]
    cache = RedisCache(host=host, port=port, key_prefix=None, db=3)
    exercise(cache, "cachelib")
    for name in names("cachelib-count"):
        cache.set(name, 0)
        equal(cache.inc(name, 5), 5)
        equal(cache.dec(name, 2), 3)
    true(cache.clear(), "FLUSHDB")
    equal(cache.get(names("cachelib-count")[0]), None)


@CHECKS.of("fastapi-cache2", "cache")
def fastapi_cache(cluster):
    asyncio.run(fastapi_run(cluster))


async def fastapi_run(cluster):
    from fastapi_cache import FastAPICache
    from fastapi_cache.backends.redis import RedisBackend
    from fastapi_cache.decorator import cache

    FastAPICache.reset()
    backend = RedisBackend(redis.asyncio.from_url(cluster.url(1)))
    FastAPICache.init(backend, prefix="fastapi-cache")
    calls = []

    @cache(expire=60)
    async def squared(number):
        calls.append(number)
        return {"square": number * number}

    start = time.time_ns()
    for at in range(24):
        number = start + at % 12
        equal(await squared(number), {"square": number * number})
    equal(len(calls), 12)
    for name in names("fastapi"):
        await backend.set(name, b"value", expire=60)
        ttl, value = await backend.get_with_ttl(name)
        equal((0 < ttl <= 60, value), (True, b"value"))
        equal(await backend.clear(key=name), 1)


@CHECKS.of("fastapi-cache2", "clear")
def fastapi_clear(cluster):
    from fastapi_cache.backends.redis import RedisBackend

    backend = RedisBackend(redis.asyncio.from_url(cluster.url(0)))
    text = refused(lambda: asyncio.run(backend.clear(namespace="fastapi-cache")), "script")
    raise Skipped(f"clear of a namespace sends a script: {text}")
