use super::kill::{change_shape, check, choose, wait};
use super::three;
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::cluster::power::{FileSystem, PowerDisk};
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};
use stele_types::Prng;

const FULL_ROUNDS: u64 = 24;
const SHORT_ROUNDS: u64 = 3;
const WRITERS: usize = 3;
/// What a sync takes longer on disks that are slow before their power is cut.
const SYNC_DELAY: Duration = Duration::from_millis(50);
const DISK_BYTES: u64 = 1 << 30;
/// Small memtables, for frequent flushes and with them runs, manifests and checkpoints.
const SETTINGS: [(&str, &str); 2] = [("reserved_bytes", "64MiB"), ("memtable_bytes_max", "1MiB")];

/// A cluster and its disks. Declared first, the cluster is dropped first.
struct World {
    cluster: Cluster,
    ledger: Ledger,
    checker: Checker,
    disks: Vec<PowerDisk>,
    /// Seconds from each restoration of power until all nodes were ready.
    recoveries: Vec<f64>,
}

// Catalogue: 1, 3, 9, 22.
/// Every node has a disk of its own with power that can be cut ([`PowerDisk`] describes the loss).
/// Each round: under load, the power of one, two or all disks is cut at a random moment, their
/// nodes are killed, the disks are restored with what was flushed, and the nodes are restarted;
/// sometimes they lose power once more while they recover. Then everything is compared.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, SHORT_ROUNDS);
    let checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let kinds = FileSystem::available()?;
    let mut spec = three(setup, &SETTINGS);
    let mut disks = Vec::new();
    for node in 0..spec.nodes {
        let kind = kinds[node % kinds.len()];
        let disk = PowerDisk::create(setup.work(), &format!("disk{node}"), kind, DISK_BYTES)?;
        report.require(
            disk.loses_unflushed_writes()?,
            format!("disk {node} must lose what was never flushed"),
        );
        spec.stores.insert(node, vec![disk.path().join("store")]);
        disks.push(disk);
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    println!("file systems: {}", names.join(", "));
    report.record("file_systems", names);
    let cluster = Cluster::start(spec).await?;
    let ledger = Ledger::new(WRITERS);
    let mut world = World { cluster, ledger, checker, disks, recoveries: Vec::new() };
    let mut prng = Prng::new(setup.seed);
    let (mut cuts, mut done) = ([0u64; 3], 0);
    for round in 0..rounds {
        let count = 1 + round as usize % 3;
        cuts[count - 1] += 1;
        let text = format!("round {round}, power of {count} disks cut");
        done += world.round(round, count, prng.draw()).await.context(text)?;
        if !world.checker.violations.is_empty() || world.checker.unknown > 0 {
            break;
        }
    }
    report.record("rounds", rounds);
    report.record("one_two_all_cut", cuts.to_vec());
    report.record("acknowledged_writes", world.ledger.acknowledged());
    report.record("operations_done", done);
    report.record("recovery_median_s", rounded(percentile(&world.recoveries, 0.5)));
    report.record("recovery_max_s", rounded(percentile(&world.recoveries, 1.0)));
    check(&world.checker, report);
    Ok(())
}

impl World {
    async fn round(&mut self, round: u64, count: usize, seed: u64) -> Result<u64> {
        let mut prng = Prng::new(seed);
        let options = LoadOptions { writers: WRITERS, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), self.cluster.addresses());
        let load = Load::start(&self.cluster.channels, &nodes, &options, &name, seed, &self.ledger);
        wait(&mut prng, 300, 1_500).await;
        change_shape(&self.cluster, &mut prng).await;
        let victims = choose(&mut prng, self.cluster.nodes.len(), count);
        if prng.coin() {
            // Writes of a leader among them are answered before its own sync.
            for victim in &victims {
                self.cluster.nodes[*victim].slow_syncs(SYNC_DELAY).await?;
            }
            wait(&mut prng, 100, 500).await;
        }
        self.cut(&victims)?;
        wait(&mut prng, 0, 1_000).await;
        self.restore(&victims)?;
        if prng.below(3) == 0 {
            // Cuts the power again while they recover.
            wait(&mut prng, 0, 150).await;
            self.cut(&victims)?;
            self.restore(&victims)?;
        }
        let started = Instant::now();
        self.cluster.wait_ready().await?;
        self.recoveries.push(started.elapsed().as_secs_f64());
        wait(&mut prng, 300, 1_000).await;
        let recorded = load.stop(&mut self.ledger).await?;
        self.cluster.check_alive()?;
        let verdict = self.checker.check(&name, &recorded).await?;
        verify::everything(&mut self.cluster, &self.ledger, 3).await?;
        println!(
            "round {round}: power of {victims:?} cut, {} operations, {} ambiguous, {}; {} \
             acknowledged in total",
            verdict.operations,
            verdict.ambiguous,
            verdict.result,
            self.ledger.acknowledged()
        );
        Ok(recorded.done)
    }

    /// Cuts all disks first, in quick succession, then kills the nodes: later writes of a node have
    /// no effect.
    fn cut(&mut self, victims: &[usize]) -> Result<()> {
        for victim in victims {
            self.disks[*victim].cut()?;
        }
        for victim in victims {
            self.cluster.nodes[*victim].kill()?;
        }
        Ok(())
    }

    fn restore(&mut self, victims: &[usize]) -> Result<()> {
        for victim in victims {
            self.disks[*victim].restore().with_context(|| format!("disk {victim}"))?;
            self.cluster.nodes[*victim].restart()?;
        }
        Ok(())
    }
}
