"""Writes, reads and scans some keys with tikv-python, a client in Python that has TLS.

usage: round.py ADDR

The variables TLS_CA, TLS_CERT and TLS_KEY name the files of TLS. The last line is one JSON object.
"""

import json
import os
import sys

from tikv import RawClient, TLSConfig


def key(number):
    return b"round/python/%d" % number


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ca, cert, private = (os.environ.get(name) for name in ("TLS_CA", "TLS_CERT", "TLS_KEY"))
    tls = TLSConfig(ca=ca, cert=cert, key=private) if ca else None
    with RawClient([sys.argv[1]], tls=tls) as client:
        for number in range(10):
            client.put(key(number), key(number))
            assert client.get(key(number)) == key(number)
        rows = len(list(client.scan(key(0), b"round/python0", limit=100)))
    assert rows == 10, rows
    print(json.dumps({"error": "", "rows": rows, "seconds": 0}), flush=True)


main()
