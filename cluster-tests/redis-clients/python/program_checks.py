"""redis-cli and redis-benchmark, as the system has them."""

import subprocess
import time

from results import Checks, equal, names, true

CHECKS = Checks()


def cli(cluster, *words, at=0, given=None):
    host, port = cluster.nodes[at % len(cluster.nodes)]
    command = ["redis-cli", "-h", host, "-p", str(port), *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    equal((done.returncode, done.stderr), (0, ""))
    return done.stdout.splitlines()


@CHECKS.of("redis-cli", "strings, keys, hashes, sets", "client")
def one_by_one(cluster):
    for at, name in enumerate(names("cli", 10)):
        equal(cli(cluster, "set", name, "value", "EX", "60", at=at), ["OK"])
        equal(cli(cluster, "-3", "get", name, at=at + 1), ["value"])
    moved = "z:cli:moved"
    equal(cli(cluster, "rename", names("cli")[0], moved), ["OK"])
    equal(cli(cluster, "-e", "ttl", moved, at=1)[0].isdigit(), True)
    lines = [f"hset {name}:h a 1 b 2\nhgetall {name}:h\nsadd {name}:s x\nscard {name}:s" for name in names("cli")]
    equal(cli(cluster, given="\n".join(lines) + "\n")[:7], ["2", "a", "1", "b", "2", "1", "1"])


@CHECKS.of("redis-cli", "transactions", "client")
def transactions(cluster):
    words = [f"set {name} v" for name in names("cli-t")]
    lines = ["multi", *words, "exec", "mget " + " ".join(names("cli-t"))]
    out = cli(cluster, given="\n".join(lines) + "\n")
    equal(out[-12:], ["v"] * 12)


@CHECKS.of("redis-cli", "scan", "client")
def scan(cluster):
    written = [f"{name}:{at}" for name in names("cli-scan") for at in range(10)]
    # Mass insertion: requests as bytes, without waiting for replies.
    encoded = [["SET", name, "v"] for name in written]
    bulk = "".join(
        f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        for words in encoded
    )
    out = cli(cluster, "--pipe", given=bulk)
    true(any("errors: 0, replies: 120" in text for text in out), out)
    equal(set(cli(cluster, "--scan", "--pattern", "*:cli-scan:*", at=1)), set(written))
    equal(cli(cluster, "unlink", *written), ["120"])


@CHECKS.of("redis-benchmark", "strings, hashes, sets, MSET", "client")
def benchmark(cluster):
    host, port = cluster.nodes[0]
    for pipeline in ("1", "16"):
        command = ["redis-benchmark", "-h", host, "-p", str(port), "-t", "set,get,incr,sadd,hset,mset"]
        command += ["-n", "200", "-c", "10", "-r", "1000", "-P", pipeline, "-q"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        equal(done.returncode, 0)
        true("Error" not in done.stdout + done.stderr, done.stdout + done.stderr)
        true(done.stdout.count("requests per second") == 6, done.stdout)


class Prompt:
    """One redis-cli that reads commands and prints a line for each."""

    def __init__(self, cluster):
        host, port = cluster.nodes[0]
        self.process = subprocess.Popen(
            ["redis-cli", "-h", host, "-p", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, command):
        self.process.stdin.write(command + "\n")
        line = self.process.stdout.readline().strip()
        # An empty line follows an error.
        if line.split(" ")[0].isupper() and line != "OK":
            self.process.stdout.readline()
            raise RuntimeError(line)
        return line

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


def benchmark_until(cluster, seconds):
    """Runs SET by redis-benchmark for this time, or until it ends by itself. Returns how it ended."""
    host, port = cluster.nodes[0]
    command = ["redis-benchmark", "-h", host, "-p", str(port), "-t", "set", "-n", "100000000"]
    command += ["-c", "1", "-r", "100000", "-q"]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "no error ends it"
    printed = (done.stderr or done.stdout).replace("\r", "\n").strip().splitlines()
    return f"the first error ends it, after {time.monotonic() - started:.0f} s: {printed[-1]}"
