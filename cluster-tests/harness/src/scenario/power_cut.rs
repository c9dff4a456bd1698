use super::kill::{change_shape, check, choose, wait};
use super::three;
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::cluster::power::{FileSystem, PowerDisk};
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result};
use std::time::Instant;
use stele_types::Prng;

const FULL_ROUNDS: u64 = 24;
const SHORT_ROUNDS: u64 = 3;
const WRITERS: usize = 3;
const DISK_BYTES: u64 = 1 << 30;
/// Flushes, and with them runs, manifests and checkpoints, are frequent.
const SETTINGS: [(&str, &str); 2] = [("reserved_bytes", "64MiB"), ("memtable_bytes_max", "1MiB")];

/// A cluster and the disks below it; the nodes go first.
struct World {
    cluster: Cluster,
    ledger: Ledger,
    checker: Checker,
    disks: Vec<PowerDisk>,
    /// Seconds from the power's return until all nodes were ready.
    recoveries: Vec<f64>,
}

// Catalogue: 1, 3, 9, 22.
/// Every node has a disk of its own, whose power can be cut ([`PowerDisk`] says what is lost then and
/// what is not). Each round: load, the power of one, two or all disks is cut at a random moment, their
/// nodes die, the disks come back with what was flushed, the nodes are started again, sometimes to lose
/// power once more while they recover. Then everything is compared.
pub async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, SHORT_ROUNDS);
    let checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let kinds = FileSystem::available()?;
    let mut spec = three(setup, &SETTINGS);
    let mut disks = Vec::new();
    for node in 0..spec.nodes {
        let kind = kinds[node % kinds.len()];
        let disk = PowerDisk::create(setup.work(), &format!("disk{node}"), kind, DISK_BYTES)?;
        report.demand(disk.forgets()?, format!("disk {node} kept what was never flushed"));
        spec.stores.insert(node, disk.path().join("store"));
        disks.push(disk);
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    println!("file systems: {}", names.join(", "));
    report.figure("file_systems", names);
    let cluster = Cluster::start(spec).await?;
    let ledger = Ledger::new(WRITERS);
    let mut world = World { cluster, ledger, checker, disks, recoveries: Vec::new() };
    let mut prng = Prng::new(setup.seed);
    let (mut cuts, mut done) = ([0u64; 3], 0);
    for round in 0..rounds {
        let count = 1 + round as usize % 3;
        cuts[count - 1] += 1;
        let text = format!("round {round}, the power of {count} cut");
        done += world.round(round, count, prng.draw()).await.context(text)?;
        if !world.checker.violations.is_empty() || world.checker.unknown > 0 {
            break;
        }
    }
    report.figure("rounds", rounds);
    report.figure("one_two_all_cut", cuts.to_vec());
    report.figure("acknowledged_writes", world.ledger.acknowledged());
    report.figure("operations_done", done);
    report.figure("recovery_median_s", rounded(percentile(&world.recoveries, 0.5)));
    report.figure("recovery_max_s", rounded(percentile(&world.recoveries, 1.0)));
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
        self.cut(&victims)?;
        wait(&mut prng, 0, 1_000).await;
        self.restore(&victims)?;
        if prng.below(3) == 0 {
            // Again, while they recover.
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
        let verdict = self.checker.check(&name, recorded.records).await?;
        verify::everything(&mut self.cluster, &self.ledger, 3).await?;
        println!(
            "round {round}: power of {victims:?} cut, {} operations, {} ambiguous, {}; {} \
             acknowledged in all",
            verdict.operations,
            verdict.ambiguous,
            verdict.result,
            self.ledger.acknowledged()
        );
        Ok(recorded.done)
    }

    /// First the disks, all within a moment: what a node still does then it does in vain.
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
