"""Runs every raw call of TiKV's own, unmodified Python client against the cluster at ADDR.

usage: compatibility.py ADDR
"""

import json
import os
import sys

from tikv_client import RawClient

PREFIX = b"python/"
COUNT = 300


def key(number):
    return PREFIX + b"%05d" % number


def value(number):
    return bytes([number % 256]) * (1 + number % 700)


def pairs(result):
    return [(bytes(k), bytes(v)) for k, v in result]


def single_keys(client):
    client.put(key(0), value(0))
    assert client.get(key(0)) == value(0)
    client.put(key(0), b"")
    assert client.get(key(0)) == b""
    client.delete(key(0))
    assert client.get(key(0)) is None


def batches(client):
    client.batch_put({key(n): value(n) for n in range(COUNT)})
    found = dict(pairs(client.batch_get([key(n) for n in range(COUNT + 5)])))
    assert found == {key(n): value(n) for n in range(COUNT)}
    client.batch_delete([key(n) for n in range(0, COUNT, 3)])
    assert len(pairs(client.batch_get([key(n) for n in range(COUNT)]))) == COUNT - COUNT // 3
    client.batch_put({key(n): value(n) for n in range(0, COUNT, 3)})


def scans(client):
    found = pairs(client.scan(key(10), key(60), 1000))
    assert found == [(key(n), value(n)) for n in range(10, 60)], len(found)
    assert len(pairs(client.scan(key(10), key(60), 7))) == 7
    inclusive = pairs(client.scan(key(0), key(5), 100, include_start=False, include_end=True))
    assert [k for k, _ in inclusive] == [key(n) for n in range(1, 6)]
    assert [bytes(k) for k in client.scan_keys(key(0), key(5), 10)] == [key(n) for n in range(5)]


def column_families(client):
    client.put(key(7), b"other", cf="write")
    assert client.get(key(7)) == value(7)
    assert client.get(key(7), cf="write") == b"other"
    client.delete(key(7), cf="write")


def delete_range(client):
    client.delete_range(key(20), key(40))
    assert len(pairs(client.scan(key(0), key(60), 1000))) == 40
    client.delete_range(PREFIX, b"python0")
    assert pairs(client.batch_get([key(n) for n in range(COUNT)])) == []


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    client = RawClient.connect([sys.argv[1]])
    checks = [single_keys, batches, scans, column_families, delete_range]
    for check in checks:
        check(client)
    print(json.dumps({"client": "python tikv-client 0.0.4", "checks": len(checks), "errors": 0}), flush=True)
    # The library's threads crash an interpreter that shuts down normally.
    os._exit(0)


main()
