"""valkey-glide: each family of commands."""

import asyncio

from results import Checks, equal, names, true

CHECKS = Checks()
NAME = "valkey-glide"


async def connected(cluster, at=0):
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    host, port = cluster.nodes[at]
    return await GlideClient.create(
        GlideClientConfiguration([NodeAddress(host, port)], request_timeout=10000)
    )


def checked(name):
    """Declares a check that takes two clients, of different nodes."""

    def declare(work):
        def run(cluster):
            async def both():
                one, other = await connected(cluster, 0), await connected(cluster, 1)
                await work(one, other)
                await one.close()
                await other.close()

            asyncio.run(both())

        CHECKS.of(NAME, name, "client")(run)

    return declare


@checked("strings")
async def strings(one, other):
    from glide import ConditionalChange, ExpirySet, ExpiryType

    for at, name in enumerate(names("glide:s")):
        equal(await one.set(name, str(at), expiry=ExpirySet(ExpiryType.SEC, 60)), "OK")
        exists = ConditionalChange.ONLY_IF_DOES_NOT_EXIST
        equal(await other.set(name, "x", conditional_set=exists), None)
        equal(await other.incrby(name, 5), at + 5)
        equal(await one.incrbyfloat(name, 0.5), at + 5.5)
        true(await other.append(name, "tail") >= 7, "APPEND returns the length")
        equal((await one.getdel(name))[-4:], b"tail")
    several = {name: name.upper() for name in names("glide:m")}
    equal(await one.mset(several), "OK")
    equal(await other.mget(list(several)), [value.encode() for value in several.values()])
    equal(await other.msetnx(several), False)
    equal(await one.delete(list(several)), len(several))


@checked("keys")
async def keys(one, other):
    for name, moved in zip(names("glide:k"), reversed(names("glide:moved"))):
        await one.set(name, "v")
        equal(await other.expire(name, 60), True)
        equal(await one.rename(name, moved), "OK")
        true(0 < await other.ttl(moved) <= 60, "RENAME keeps the expiry")
        equal(await other.persist(moved), True)
        equal(await other.copy(moved, name), True)
        equal(await one.type(name), b"string")
        equal(await one.unlink([name, moved]), 2)


@checked("hashes and sets")
async def hashes_and_sets(one, other):
    for name in names("glide:h"):
        equal(await one.hset(name, {"a": "1", "b": "2"}), 2)
        equal(await other.hincrby(name, "a", 41), 42)
        equal(await other.hgetall(name), {b"a": b"42", b"b": b"2"})
        equal(await one.hdel(name, ["a", "b"]), 2)
        equal(await one.sadd(name, ["a", "b"]), 2)
        equal(await other.smembers(name), {b"a", b"b"})
        equal(await other.sismember(name, "b"), True)
        equal(await one.srem(name, ["a", "b"]), 2)
        equal(await one.exists([name]), 0)


@checked("transactions")
async def transactions(one, other):
    from glide import Batch

    all_names = names("glide:t")
    batch = Batch(is_atomic=True)
    for at, name in enumerate(all_names):
        batch.set(name, str(at))
        batch.incr(name)
    replies = await one.exec(batch, raise_on_error=True)
    equal(replies[1::2], list(range(1, len(all_names) + 1)))
    await one.watch(all_names)
    await other.set(all_names[9], "changed")
    batch = Batch(is_atomic=True)
    batch.mset(dict.fromkeys(all_names, "never"))
    equal(await one.exec(batch, raise_on_error=True), None)
    equal(await other.get(all_names[0]), b"1")
    await one.delete(all_names)


@checked("scan")
async def scan(one, other):
    written = {f"{name}:{at}".encode() for name in names("glide:scan") for at in range(10)}
    await one.mset({name.decode(): "v" for name in written})
    cursor, found = b"0", set()
    while True:
        cursor, page = await other.scan(cursor, match="*:glide:scan:*", count=100)
        found.update(page)
        if cursor == b"0":
            break
    equal(found, written)
    await one.delete([name.decode() for name in written])
