"""Makes one call of TiKV's own, unmodified Python client and prints what its user sees.

usage: answers.py ADDR CALL DIR

It connects, so that it knows the regions, creates DIR/ready, waits for DIR/go, and makes the call. The last line
is one JSON object.
"""

import json
import os
import sys
import time

from tikv_client import RawClient

CALLS = {
    "put": lambda client: client.put(b"answers/python", b"1"),
    "long-key": lambda client: client.put(bytes(9000), b"1"),
    "scan": lambda client: client.scan(b"answers/", b"answers0", 10),
}


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    address, call, directory = sys.argv[1:]
    client = RawClient.connect([address])
    client.get(b"answers/warm")
    open(os.path.join(directory, "ready"), "w").close()
    while not os.path.exists(os.path.join(directory, "go")):
        time.sleep(0.01)
    started, error, rows = time.monotonic(), "", 0
    try:
        rows = len(CALLS[call](client) or [])
    except Exception as failure:
        error = str(failure)
    seconds = time.monotonic() - started
    print(json.dumps({"error": error, "rows": rows, "seconds": seconds}), flush=True)
    # The library's threads crash an interpreter that shuts down normally.
    os._exit(0)


main()
