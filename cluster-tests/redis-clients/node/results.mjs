// Lines of results, which the harness reads, and names that lie in all regions.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

// The regions of the harness begin at some of these.
export const FIRST_BYTES = "0369bejmprvz";

// Packages of which the name is not that of the library.
const PACKAGES = { "node-redis": "redis", "valkey-glide (node)": "@valkey/valkey-glide" };

export const equal = assert.deepStrictEqual;
export const isTrue = assert.ok;
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A part of a library that a node refuses. The text is the reason.
export class Skipped extends Error {}

// Addresses of the nodes. The first one is never killed.
export class Cluster {
  constructor(text) {
    this.nodes = text.split(",").map((address) => {
      const at = address.lastIndexOf(":");
      return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
    });
  }

  node(at = 0) {
    return this.nodes[at % this.nodes.length];
  }

  url(at = 0) {
    return `redis://${this.node(at).host}:${this.node(at).port}`;
  }
}

// Returns names without tags that lie in all regions.
export function names(what, count = FIRST_BYTES.length) {
  return Array.from({ length: count }, (_, at) => `${FIRST_BYTES[at % FIRST_BYTES.length]}:${what}:${at}`);
}

export function line(client, kind, check, outcome, text) {
  const path = new URL(`node_modules/${PACKAGES[client] ?? client}/package.json`, import.meta.url);
  const { version } = JSON.parse(readFileSync(path, "utf8"));
  console.log(JSON.stringify({ client, version, kind, check, outcome, text }));
}

// Runs a check, which returns a text or nothing, and prints its result.
export async function report({ client, kind, name, run }, cluster) {
  try {
    line(client, kind, name, "passed", (await run(cluster)) ?? "");
  } catch (error) {
    if (!(error instanceof Skipped)) {
      console.error(error);
    }
    const text = error instanceof Skipped ? error.message : `${error.name}: ${error.message}`;
    line(client, kind, name, error instanceof Skipped ? "skipped" : "failed", text);
  }
}

// Runs what a node refuses by name. Returns the error's text.
export async function refused(run, word) {
  try {
    await run();
  } catch (error) {
    if (!String(error.message).includes(word)) {
      throw error;
    }
    return error.message;
  }
  throw new Error("this was not refused");
}
