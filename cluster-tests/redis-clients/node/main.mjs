// Clients of Redis and frameworks for Node, unmodified, on a cluster whose names lie in many regions.

import { parseArgs } from "node:util";
import { CHECKS as frameworks } from "./frameworks.mjs";
import { CHECKS as glide } from "./glide.mjs";
import { CHECKS as ioredis } from "./ioredis.mjs";
import { run as kill } from "./kill_phase.mjs";
import { CHECKS as nodeRedis } from "./node_redis.mjs";
import { Cluster, report } from "./results.mjs";

const options = {
  nodes: { type: "string" },
  phase: { type: "string" },
  seconds: { type: "string", default: "20" },
  only: { type: "string" },
};
const { nodes, phase, seconds, only } = parseArgs({ options }).values;
const cluster = new Cluster(nodes);
if (phase === "kill") {
  await kill(cluster, Number(seconds), only);
} else {
  for (const check of [...nodeRedis, ...ioredis, ...glide, ...frameworks]) {
    if (only === undefined || only === check.client) {
      await report(check, cluster);
    }
  }
}
process.exit(0);
