"""aiocache, dogpile.cache, cashews, pottery and throttled-py."""

import asyncio
import time

import redis

from results import Checks, Skipped, equal, names, refused, true

CHECKS = Checks()
# By default cashews waits 1 s, which a busy machine exceeds, and hides the error.
PATIENT = {"socket_timeout": 10}


def aio(cluster, at):
    from aiocache import RedisCache
    from aiocache.serializers import JsonSerializer

    host, port = cluster.nodes[at]
    return RedisCache(endpoint=host, port=port, serializer=JsonSerializer())


@CHECKS.of("aiocache", "cache")
def aiocache(cluster):
    async def run():
        cache, other = aio(cluster, 0), aio(cluster, 1)
        many = [(name, at) for at, name in enumerate(names("aio"))]
        equal(await cache.multi_set(many, ttl=60), True)
        equal(await other.multi_get([name for name, _ in many]), [at for _, at in many])
        for name, at in many:
            equal(await other.increment(name, 2), at + 2)
            equal(await cache.exists(name), True)
            equal(await cache.expire(name, 50), True)
            try:
                await cache.add(name, 1)
                raise AssertionError("the name exists")
            except ValueError:
                pass
            equal(await cache.delete(name), 1)
            equal(await cache.set(name, "short", ttl=0.2), True)
        await asyncio.sleep(0.3)
        equal(await cache.get(many[0][0]), None)
        prefixed = [(f"m:space:{at}", at) for at in range(5)]
        await cache.multi_set(prefixed)
        equal(await cache.clear(namespace="m:space"), True)
        equal(await cache.get("m:space:1"), None)
        await cache.close()
        await other.close()

    asyncio.run(run())


@CHECKS.of("aiocache", "lock")
def aiocache_lock(cluster):
    from aiocache.lock import OptimisticLock, OptimisticLockError, RedLock

    async def run():
        cache, inside = aio(cluster, 1), []
        for name in names("aio-lock"):

            async def enter():
                async with RedLock(cache, name, lease=10):
                    inside.append(name)
                    await asyncio.sleep(0.02)

            await asyncio.gather(enter(), enter())
            await cache.set(name, "seen")
            async with OptimisticLock(cache, name) as lock:
                equal(await lock.cas("changed"), True)
            try:
                async with OptimisticLock(cache, name) as lock:
                    await cache.set(name, "by another")
                    await lock.cas("never")
                raise AssertionError("the value has changed")
            except OptimisticLockError:
                equal(await cache.get(name), "by another")
        equal(len(inside), 2 * len(names("aio-lock")))
        await cache.close()

    asyncio.run(run())


def region(cluster, at, **words):
    from dogpile.cache import make_region

    arguments = {**cluster.keywords(at), "redis_expiration_time": 60, **words}
    return make_region().configure("dogpile.cache.redis", arguments=arguments)


@CHECKS.of("dogpile.cache", "cache")
def dogpile(cluster):
    from dogpile.cache.api import NO_VALUE

    cache, other = region(cluster, 0), region(cluster, 2)
    many = {name: {"at": at} for at, name in enumerate(names("dogpile"))}
    cache.set_multi(many)
    equal(other.get_multi(list(many)), list(many.values()))
    calls = []

    @cache.cache_on_arguments()
    def doubled(number):
        calls.append(number)
        return number * 2

    doubled.invalidate(4)
    equal([doubled(4), doubled(4), len(calls)], [8, 8, 1])
    doubled.refresh(4)
    equal(len(calls), 2)
    cache.delete_multi(list(many))
    equal(other.get(next(iter(many))), NO_VALUE)
    equal(cache.get_or_create_multi(list(many), lambda *keys: list(keys)), list(many))
    cache.delete_multi(list(many))


@CHECKS.of("dogpile.cache", "lock")
def dogpile_lock(cluster):
    cache = region(cluster, 1, distributed_lock=True, thread_local_lock=False)
    for name in names("dogpile-lock"):
        cache.delete(name)
        equal(cache.get_or_create(name, lambda: "made"), "made")
        lock = cache.backend.get_mutex(name)
        equal([lock.acquire(False), cache.backend.get_mutex(name).acquire(False)], [True, False])
        lock.release()


@CHECKS.of("cashews", "cache")
def cashews(cluster):
    async def run():
        from cashews import Cache

        cache, calls = Cache(), []
        cache.setup(cluster.url(1), client_side=False, **PATIENT)
        many = {name: {"at": at} for at, name in enumerate(names("cashews"))}
        await cache.set_many(many, expire=60)
        equal(await cache.get_many(*many), tuple(many.values()))
        true(0 < await cache.get_expire(next(iter(many))) <= 60, "the expiry is kept")
        found = [key async for key in cache.scan("*:cashews:*")]
        equal(set(found), set(many))
        for name in many:
            equal(await cache.set(name, 1, exist=False), False)
            equal(await cache.exists(name), True)
        await cache.delete_many(*many)
        equal(await cache.incr("m:cashews-count"), 1)
        await cache.delete_match("m:cashews-*")
        equal(await cache.exists("m:cashews-count"), False)

        @cache(ttl="10m", key="z:cashews-called:{number}")
        async def doubled(number):
            calls.append(number)
            return number * 2

        await cache.delete("z:cashews-called:4")
        equal([await doubled(4), await doubled(4), len(calls)], [8, 8, 1])
        await cache.ping()
        await cache.close()

    asyncio.run(run())


@CHECKS.of("cashews", "lock")
def cashews_lock(cluster):
    async def run():
        from cashews import Cache

        cache, inside = Cache(), []
        cache.setup(cluster.url(0), client_side=False, **PATIENT)
        for name in names("cashews-lock"):

            async def enter():
                async with cache.lock(name, expire="10s"):
                    inside.append(name)

            await asyncio.gather(enter(), enter())
        equal(len(inside), 2 * len(names("cashews-lock")))
        await cache.close()

    asyncio.run(run())


@CHECKS.of("cashews", "rate limiter")
def cashews_rate_limit(cluster):
    async def run():
        from cashews import Cache, RateLimitError

        cache = Cache()
        cache.setup(cluster.url(2), client_side=False, **PATIENT)

        @cache.rate_limit(limit=3, period="1m", ttl="1m", key="{who}:cashews-limit")
        async def limited(who):
            return who

        for first in (name[0] for name in names("cashews-limit")):
            await cache.delete_match(f"{first}*:cashews-limit")
            who = f"{first}{time.time_ns()}"
            for _ in range(3):
                equal(await limited(who), who)
            try:
                await limited(who)
                raise AssertionError("the limit is three")
            except RateLimitError:
                pass
        await cache.close()

    asyncio.run(run())


@CHECKS.of("cashews", "sliding rate limiter")
def cashews_slices(cluster):
    async def run():
        from cashews import Cache

        cache = Cache()
        cache.setup(cluster.url(2), client_side=False, suppress=False, **PATIENT)
        await cache.slice_incr("m:cashews-slices", 0, time.time(), maxvalue=3, expire=60)

    text = refused(lambda: asyncio.run(run()), "script")
    raise Skipped(f"slice_rate_limit sends a script: {text}")


@CHECKS.of("pottery", "dictionary")
def pottery_dict(cluster):
    from pottery import RedisDict

    client = redis.from_url(cluster.url(1))
    for name in names("pottery"):
        client.delete(name)
        values = RedisDict({"tel": 1, "fax": 2}, redis=client, key=name)
        values["tel"] = 3
        equal(dict(values), {"tel": 3, "fax": 2})
        del values["fax"]
        equal(("fax" in values, len(values)), (False, 1))
        client.delete(name)


@CHECKS.of("pottery", "lock")
def pottery_lock(cluster):
    from pottery import Redlock

    client = redis.from_url(cluster.url(0))
    for name in names("pottery-lock"):
        lock = Redlock(key=name, masters={client}, auto_release_time=10)
        true(lock.acquire(), "the lock is free")
        true(lock.locked() > 0, "the lock is held")
        lock.extend()
        other = Redlock(key=name, masters={client}, auto_release_time=10)
        equal(other.acquire(blocking=False), False)
        lock.release()
        true(other.acquire(blocking=False), "the lock was released")
        other.release()


@CHECKS.of("pottery", "next id")
def pottery_next_id(cluster):
    from pottery import NextID
    from pottery.exceptions import QuorumIsImpossible

    masters = {redis.from_url(cluster.url(2))}
    try:
        next(NextID(key="m:pottery", masters=masters, raise_on_redis_errors=True, num_tries=1))
    except QuorumIsImpossible as error:
        raise Skipped(f"NextID sends a script: {[str(it) for it in error.redis_errors]}")
    raise AssertionError("this was not refused")


@CHECKS.of("throttled-py", "rate limiter")
def throttled(cluster):
    from throttled import RateLimiterType, Throttled, rate_limiter, store

    def limiter(kind):
        return Throttled(
            using=kind,
            quota=rate_limiter.per_hour(3),
            store=store.RedisStore(server=cluster.url(1)),
        )

    fixed = limiter(RateLimiterType.FIXED_WINDOW.value)
    for name in names("throttled"):
        who = f"{name}:{time.time_ns()}"
        equal([fixed.limit(who).limited for _ in range(5)], [False, False, False, True, True])


@CHECKS.of("throttled-py", "other algorithms")
def throttled_others(cluster):
    from throttled import RateLimiterType, Throttled, rate_limiter, store

    text = ""
    for kind in RateLimiterType:
        if kind is RateLimiterType.FIXED_WINDOW:
            continue
        backend = store.RedisStore(server=cluster.url(1))
        limiter = Throttled(using=kind.value, quota=rate_limiter.per_hour(3), store=backend)
        text = refused(lambda: limiter.limit("m:throttled"), "script")
    raise Skipped(f"they send scripts: {text}")
