//! Scenarios, each run against a new cluster.

mod backup;
mod bytes_written;
mod changed_addresses;
mod clients;
mod clock;
mod device_failure;
mod disk_full;
mod failed_sync;
mod failover;
mod graceful_restart;
mod history;
mod hostile;
mod hostile_tls;
mod idle;
pub(crate) mod kill;
mod learner;
mod memory;
mod partition;
mod pause;
mod power_cut;
mod replace;
mod resize;
mod sessions;
mod shape;
mod slow_disk;
mod slow_store;
mod small_deletes;
mod stale_reads;
mod start;
mod upgrade;
mod ycsb;

use crate::args::Setup;
use crate::cluster::Spec;
use crate::report::Report;
use anyhow::Result;
use std::collections::BTreeMap;
use std::pin::Pin;

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

#[derive(Debug)]
pub(crate) struct Scenario {
    pub name: &'static str,
    pub what: &'static str,
    pub run: for<'a> fn(&'a Setup, &'a mut Report) -> Running<'a>,
}

macro_rules! scenarios {
    ($($module:ident $name:literal $what:literal)*) => {
        /// All scenarios.
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: $name,
            what: $what,
            run: |setup, report| Box::pin($module::run(setup, report)),
        }),*];
    };
}

scenarios! {
    start "start" "time from the start of three nodes to the first acknowledged put"
    kill "kill" "kill -9 of one, two, three nodes under load; nothing acknowledged is lost, histories are linearizable"
    history "history" "all kinds of operations under all kinds of faults; histories are linearizable, nothing refused takes effect"
    sessions "sessions" "increments of sessions with unknown outcomes, under kills, stops and moves of leaders; each counts once"
    partition "partition" "symmetric, one-way and flapping partitions; the minority writes nothing"
    pause "pause" "a leader is stopped for longer than its lease; no stale read when it resumes"
    changed_addresses "changed-addresses" "all nodes restart on other ports, with join in a ring, at once and one by one; they find each other and lose nothing"
    failover "failover" "the gap in writes after kill -9 of a leader"
    graceful_restart "graceful-restart" "SIGTERM and a restart of the node with most leaders under load; no write waits longer than 100 ms"
    power_cut "power-cut" "the power of one, two, three disks is cut under load; nothing acknowledged is lost"
    failed_sync "failed-sync" "a sync fails on one node: its store stops, the others continue, a restart recovers it"
    device_failure "device-failure" "a node of two stores loses one device, by failure, a failed sync or a hang; its replicas are rebuilt elsewhere and nothing else moves"
    clock "clock" "wall clocks jump by hours, monotonic clocks drift apart; histories stay linearizable"
    disk_full "disk-full" "small disks of one node, a follower or all stores become full: reads and deletes go on, space is reclaimed, replicas come back"
    replace "replace" "a node is lost with its disk and comes back with an empty one"
    learner "learner" "a follower that is too far behind catches up by a snapshot while writes continue"
    resize "resize" "three nodes become five and three again, under load"
    shape "shape" "manual splits, transfers, moves and merges; nothing is lost, all replicas are equal"
    idle "idle" "processor time of a thousand idle regions"
    slow_disk "slow-disk" "latency of puts and gets while the syncs of the leader's log take ten times as long"
    slow_store "slow-store" "a store becomes ten times slower under load: its leaders leave, the throughput stays, they return when it is fast"
    small_deletes "small-deletes" "latency of gets beside a flood of small deletes; no leader leaves"
    bytes_written "bytes-written" "bytes that each node writes per byte of payload"
    memory "memory" "requests and answers that need more memory than a node has for them; each is whole or refused"
    hostile "hostile" "garbage, oversized and hostile bytes on the port"
    hostile_tls "hostile-tls" "attacks on a cluster with certificates: wrong ones, silent and giant handshakes, garbage within TLS; a client is served meanwhile"
    upgrade "upgrade" "three nodes of the oldest supported version are upgraded one by one under load, one goes back and forth, then the level is raised; needs --former"
    backup "backup" "a backup under load, while nodes and the backup are killed and regions split and merge; restored at random moments, each has a beginning of what each writer wrote"
    ycsb "ycsb" "go-ycsb load and workloads A to F, also during a kill, a split and a transfer, and while all nodes restart on other ports"
    clients "clients" "TiKV's own clients: every raw call, and what their users see of other answers than success"
}

/// Configures three nodes with default settings except those given.
fn three(setup: &Setup, settings: &[(&'static str, &str)]) -> Spec {
    let own = |(key, value): &(&'static str, &str)| (*key, (*value).to_owned());
    Spec {
        stele: setup.stele.clone(),
        work: setup.work().to_owned(),
        nodes: 3,
        settings: settings.iter().map(own).collect(),
        namespaces: false,
        stores: BTreeMap::new(),
        certificates: None,
    }
}
