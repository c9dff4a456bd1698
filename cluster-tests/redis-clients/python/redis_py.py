"""redis-py: each family of commands, its pipelines and its lock."""

import asyncio
import time

import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, ResponseError, WatchError

from results import Checks, Skipped, equal, names, refused, true

CHECKS = Checks()
NAME = "redis-py"


def client(cluster, at=0, **words):
    return redis.Redis(**cluster.keywords(at), decode_responses=True, **words)


@CHECKS.of(NAME, "strings", "client")
def strings(cluster):
    one, other = client(cluster, 0), client(cluster, 1, protocol=2)
    for at, name in enumerate(names("py:s")):
        equal(one.set(name, at, px=60000), True)
        equal(other.set(name, "x", nx=True), None)
        equal(other.set(name, at + 1, xx=True, keepttl=True, get=True), str(at))
        true(0 < one.pttl(name) <= 60000, "the expiry was lost")
        equal(one.incrby(name, 4), at + 5)
        equal(one.incrbyfloat(name, 0.5), at + 5.5)
        equal(one.append(name, "tail"), len(other.get(name)))
        equal(one.setrange(name, 0, "9"), other.strlen(name))
        equal(other.getrange(name, 0, 0), "9")
        true(one.getex(name, persist=True).endswith("tail"), "another value")
        equal(other.getdel(name)[-4:], "tail")
        equal(one.get(name), None)
    several = {name: name.upper() for name in names("py:several")}
    equal(one.mset(several), True)
    equal(other.mget(list(several)), list(several.values()))
    equal(other.msetnx({**several, "zz:py:new": "1"}), False)
    equal(one.exists("zz:py:new"), 0)
    equal(one.delete(*several), len(several))
    equal(one.msetnx(several), True)
    equal(one.unlink(*several), len(several))


@CHECKS.of(NAME, "keys", "client")
def keys(cluster):
    one, other = client(cluster, 1), client(cluster, 2)
    all_names = names("py:k")
    one.mset(dict.fromkeys(all_names, "v"))
    equal(other.exists(*all_names), len(all_names))
    equal(other.touch(*all_names), len(all_names))
    for from_name, to_name in zip(all_names, reversed(names("py:moved"))):
        equal(one.expire(from_name, 100), True)
        equal(one.expire(from_name, 50, gt=True), False)
        equal(one.rename(from_name, to_name), True)
        equal(other.type(to_name), "string")
        true(0 < other.ttl(to_name) <= 100, "RENAME keeps the expiry")
        equal(other.persist(to_name), True)
        equal(other.copy(to_name, from_name), True)
        equal(other.renamenx(to_name, from_name), False)
    soon = names("py:soon")[5]
    one.set(soon, "v", px=150)
    time.sleep(0.2)
    equal(other.get(soon), None)
    one.delete(*all_names, *names("py:moved"))


@CHECKS.of(NAME, "hashes", "client")
def hashes(cluster):
    one, other = client(cluster, 0), client(cluster, 2)
    for name in names("py:h"):
        equal(one.hset(name, mapping={"a": "1", "b": "2"}), 2)
        equal(other.hgetall(name), {"a": "1", "b": "2"})
        equal(other.hincrby(name, "a", 41), 42)
        equal(other.hincrbyfloat(name, "b", 0.5), 2.5)
        equal(one.hmget(name, "a", "b", "c"), ["42", "2.5", None])
        equal(one.hsetnx(name, "a", "x"), False)
        equal(one.hlen(name), 2)
        equal(sorted(one.hkeys(name)), ["a", "b"])
        equal(sorted(one.hvals(name)), ["2.5", "42"])
        equal(one.hstrlen(name, "a"), 2)
        equal(dict(one.hscan_iter(name)), {"a": "42", "b": "2.5"})
        equal(one.hdel(name, "a", "b"), 2)
        equal(one.exists(name), 0)
    one.set("m:py:wrong", "v")
    text = refused(lambda: one.hget("m:py:wrong", "a"), "WRONGTYPE")
    one.delete("m:py:wrong")
    true("wrong kind" in text, text)


@CHECKS.of(NAME, "sets", "client")
def sets(cluster):
    one, other = client(cluster, 0), client(cluster, 1)
    for name in names("py:set"):
        equal(one.sadd(name, "a", "b", "c"), 3)
        equal(other.smembers(name), {"a", "b", "c"})
        equal(other.sismember(name, "b"), 1)
        equal(other.smismember(name, ["a", "x"]), [1, 0])
        equal(other.srem(name, "a", "x"), 1)
        equal(one.scard(name), 2)
        equal(set(one.sscan_iter(name)), {"b", "c"})
        one.delete(name)


@CHECKS.of(NAME, "transactions", "client")
def transactions(cluster):
    one, other = client(cluster, 0), client(cluster, 1)
    all_names = names("py:t")
    one.delete(*all_names)
    with one.pipeline(transaction=True) as pipe:
        for at, name in enumerate(all_names):
            pipe.set(name, at).incr(name)
        replies = pipe.execute()
    equal(replies[1::2], list(range(1, len(all_names) + 1)))
    with one.pipeline() as pipe:
        pipe.watch(*all_names)
        other.set(all_names[7], "changed")
        pipe.multi()
        pipe.mset(dict.fromkeys(all_names, "never"))
        try:
            pipe.execute()
            raise AssertionError("the watch saw no change")
        except WatchError:
            pass
    equal(one.get(all_names[0]), "1")

    def moves(pipe):
        total = int(pipe.get(all_names[0])) + int(pipe.get(all_names[1]))
        pipe.multi()
        pipe.set(all_names[0], 0).set(all_names[1], total)

    one.transaction(moves, all_names[0], all_names[1])
    equal(one.mget(all_names[:2]), ["0", "3"])
    with one.pipeline(transaction=False) as pipe:
        for name in all_names:
            pipe.set(name, "p").get(name)
        equal(pipe.execute(), [True, "p"] * len(all_names))
    one.delete(*all_names)


@CHECKS.of(NAME, "scan", "client")
def scan(cluster):
    one, other = client(cluster, 0), client(cluster, 2)
    written = {f"{name}:{at}" for name in names("py:scan") for at in range(20)}
    one.mset(dict.fromkeys(written, "v"))
    equal(set(other.scan_iter(match="*:py:scan:*", count=50)), written)
    equal(set(other.keys("b:py:scan:*")), {name for name in written if name.startswith("b")})
    true(other.dbsize() >= len(written), "DBSIZE counts too few")
    # A scan continues through another node.
    cursor, page = one.scan(match="*:py:scan:*", count=100)
    found, through = set(page), 1
    while cursor:
        cursor, page = client(cluster, through).scan(cursor, match="*:py:scan:*", count=100)
        found, through = found | set(page), through + 1
    equal(found, written)
    one.delete(*written)


@CHECKS.of(NAME, "scripts", "client")
def scripts(cluster):
    text = refused(lambda: client(cluster).eval("return 1", 0), "script")
    raise Skipped(f"scripts other than those of lock libraries: {text}")


@CHECKS.of("redis-py asyncio", "strings, transactions", "client")
def asyncio_client(cluster):
    async def run():
        one = redis.asyncio.Redis(**cluster.keywords(1), decode_responses=True)
        all_names = names("py:async")
        await asyncio.gather(*(one.set(name, at) for at, name in enumerate(all_names)))
        equal(await one.mget(all_names), [str(at) for at in range(len(all_names))])
        async with one.pipeline(transaction=True) as pipe:
            for name in all_names:
                pipe.incr(name)
            equal(await pipe.execute(), list(range(1, len(all_names) + 1)))
        await one.delete(*all_names)
        await one.aclose()

    asyncio.run(run())


@CHECKS.of(NAME, "lock", "client")
def lock(cluster):
    one, other = client(cluster, 0), client(cluster, 1)
    for name in names("py:lock"):
        held = one.lock(name, timeout=20)
        true(held.acquire(), "the lock is free")
        waiting = other.lock(name, timeout=20, blocking=False)
        equal(waiting.acquire(), False)
        equal(held.extend(10), True)
        equal(held.reacquire(), True)
        held.release()
        true(waiting.acquire(), "the lock was released")
        try:
            held.local.token = b"another"
            held.release()
            raise AssertionError("another client released the lock")
        except (LockNotOwnedError, LockError):
            waiting.release()


@CHECKS.of(NAME, "rate limiter", "client")
def rate_limiter(cluster):
    """A fixed window by INCR and EXPIRE in one transaction, as the documentation of INCR shows."""
    one = client(cluster, 0)
    for name in names("py:rate"):
        counts = []
        for at in range(5):
            with client(cluster, at).pipeline(transaction=True) as pipe:
                counts.append(pipe.incr(name).expire(name, 10, nx=True).execute()[0])
        equal(counts, [1, 2, 3, 4, 5])
        true(0 < one.ttl(name) <= 10, "the window ends")
        one.delete(name)
