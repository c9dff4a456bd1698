"""Writes of each client while the node that leads most regions is killed."""

import asyncio
import collections
import os
import threading
import time

import redis
import redis.asyncio

from program_checks import Prompt, benchmark_until
from results import FIRST_BYTES, equal, line, plain

WRITES_PER_SECOND = 100


class Record:
    """Writes of one client, with their outcomes."""

    def __init__(self, client):
        self.client = client
        self.run = os.urandom(4).hex()
        self.acknowledged, self.errors = {}, collections.Counter()
        self.longest_s, self.last = 0.0, time.monotonic()

    def name(self, at):
        # Names are written several times, so that later writes replace earlier ones.
        number = at % 400
        return f"{FIRST_BYTES[number % len(FIRST_BYTES)]}:{self.run}:{number}"

    def succeeded(self, name, value):
        self.acknowledged[name] = value
        now = time.monotonic()
        self.longest_s, self.last = max(self.longest_s, now - self.last), now

    def failed(self, name, value, error):
        self.errors[plain(f"{type(error).__name__}: {error}")] += 1

    def report(self, read):
        """Compares what `read` returns for the names with what was acknowledged. A later write without
        an acknowledgement may have taken effect: values count up."""
        lost = [
            name
            for name, value in self.acknowledged.items()
            if read[name] in (None, "", b"") or int(read[name]) < value
        ]
        pairs = self.errors.most_common()
        errors = "; ".join(f"{number} x {text}" for text, number in pairs) or "none"
        text = (
            f"errors: {errors}; longest pause {self.longest_s * 1000:.0f} ms; "
            f"names {len(self.acknowledged)}, lost {len(lost)}"
        )
        outcome = "failed" if lost or not self.acknowledged else "passed"
        line(self.client, "client", "leader killed", outcome, text)


def times(seconds):
    """Numbers of writes, at most WRITES_PER_SECOND a second, with the pause before each."""
    start, at = time.monotonic(), 0
    while time.monotonic() < start + seconds:
        yield at, max(0.0, start + at / WRITES_PER_SECOND - time.monotonic())
        at += 1


def redis_py(cluster, seconds):
    client, record = redis.Redis(**cluster.keywords(), decode_responses=True), Record("redis-py")
    for at, pause_s in times(seconds):
        time.sleep(pause_s)
        name = record.name(at)
        try:
            client.set(name, at)
            record.succeeded(name, at)
        except Exception as error:
            record.failed(name, at, error)
    record.report({name: client.get(name) for name in record.acknowledged})


def redis_py_asyncio(cluster, seconds):
    async def run():
        client = redis.asyncio.Redis(**cluster.keywords(), decode_responses=True)
        record = Record("redis-py asyncio")
        for at, pause_s in times(seconds):
            await asyncio.sleep(pause_s)
            name = record.name(at)
            try:
                await client.set(name, at)
                record.succeeded(name, at)
            except Exception as error:
                record.failed(name, at, error)
        record.report({name: await client.get(name) for name in record.acknowledged})
        await client.aclose()

    asyncio.run(run())


def valkey_glide(cluster, seconds):
    from glide_checks import connected

    async def run():
        client, record = await connected(cluster), Record("valkey-glide")
        for at, pause_s in times(seconds):
            await asyncio.sleep(pause_s)
            name = record.name(at)
            try:
                await client.set(name, str(at))
                record.succeeded(name, at)
            except Exception as error:
                record.failed(name, at, error)
        record.report({name: await client.get(name) for name in record.acknowledged})
        await client.close()

    asyncio.run(run())


def django(cluster, seconds):
    """Django's own cache. It fails with the errors of redis-py."""
    from django_checks import cache

    store, record = cache(cluster, "default"), Record("Django")
    for at, pause_s in times(seconds):
        time.sleep(pause_s)
        name = record.name(at)
        try:
            store.set(name, at, timeout=600)
            record.succeeded(name, at)
        except Exception as error:
            record.failed(name, at, error)
    record.report({name: store.get(name) for name in record.acknowledged})


def redis_cli(cluster, seconds):
    prompt, record = Prompt(cluster), Record("redis-cli")
    for at, pause_s in times(seconds):
        time.sleep(pause_s)
        name = record.name(at)
        try:
            equal(prompt.run(f"set {name} {at}"), "OK")
            record.succeeded(name, at)
        except RuntimeError as error:
            record.failed(name, at, error)
    record.report({name: prompt.run(f"get {name}") for name in record.acknowledged})
    prompt.end()


def redis_benchmark(cluster, seconds):
    """It counts nothing: its first error ends it."""
    line("redis-benchmark", "client", "leader killed", "passed", benchmark_until(cluster, seconds))


CLIENTS = {
    "redis-cli": redis_cli,
    "redis-benchmark": redis_benchmark,
    "redis-py": redis_py,
    "redis-py asyncio": redis_py_asyncio,
    "valkey-glide": valkey_glide,
    "Django": django,
}


def run(cluster, seconds, only):
    """Runs all clients at the same time."""
    threads = [
        threading.Thread(target=work, args=(cluster, seconds))
        for name, work in CLIENTS.items()
        if only in (None, name)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
