"""Lines of results, which the harness reads, and names that lie in all regions."""

import json
import re
import subprocess
import sys
import threading
import traceback
from importlib.metadata import PackageNotFoundError, version

# The regions of the harness begin at some of these.
FIRST_BYTES = "0369bejmprvz"
PRINTING = threading.Lock()
# Packages of which the name is not that of the library.
PACKAGES = {"redis-py": "redis", "redis-py asyncio": "redis"}


class Skipped(Exception):
    """A part of a library that a node refuses. The text is the reason."""


class Check:
    """A check of one library. `run` takes the cluster, and returns a text or nothing."""

    def __init__(self, client, kind, name, run):
        self.client, self.kind, self.name, self.run = client, kind, name, run

    def report(self, cluster):
        try:
            text = self.run(cluster)
            outcome = "passed"
        except Skipped as reason:
            outcome, text = "skipped", str(reason)
        except Exception as error:
            outcome, text = "failed", f"{type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stderr)
        line(self.client, self.kind, self.name, outcome, text or "")


class Checks(list):
    """Checks in the order in which they are declared."""

    def of(self, client, name, kind="framework"):
        def declare(run):
            self.append(Check(client, kind, name, run))
            return run

        return declare


class Cluster:
    """Addresses of the nodes, as (host, port). The first one is never killed."""

    def __init__(self, text):
        pairs = [address.rsplit(":", 1) for address in text.split(",")]
        self.nodes = [(host, int(port)) for host, port in pairs]

    def url(self, at=0, database=0):
        host, port = self.nodes[at % len(self.nodes)]
        return f"redis://{host}:{port}/{database}"

    def keywords(self, at=0):
        host, port = self.nodes[at % len(self.nodes)]
        return {"host": host, "port": port}


def names(what, count=len(FIRST_BYTES)):
    """Names without tags that lie in all regions."""
    return [f"{FIRST_BYTES[at % len(FIRST_BYTES)]}:{what}:{at}" for at in range(count)]


def version_of(client):
    """Returns the version of a package, or of a program of the system."""
    try:
        return version(PACKAGES.get(client, client))
    except PackageNotFoundError:
        printed = subprocess.run([client, "--version"], capture_output=True, text=True, check=True)
        return printed.stdout.split()[1]


def line(client, kind, check, outcome, text):
    result = {"client": client, "version": version_of(client), "kind": kind}
    result |= {"check": check, "outcome": outcome, "text": text}
    with PRINTING:
        print(json.dumps(result), flush=True)


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def true(found, what):
    if not found:
        raise AssertionError(what)


def refused(run, word):
    """Runs what a node refuses by name. Returns the text of the first error that has the word."""
    try:
        run()
    except Exception as error:
        cause = error
        while cause is not None:
            if word in str(cause):
                return str(cause)
            cause = cause.__cause__ or cause.__context__
        raise
    raise AssertionError("this was not refused")


def plain(text):
    """Replaces the numbers of an error, so that equal ones are counted together."""
    return re.sub(r"\d+", "N", text)[:160]
