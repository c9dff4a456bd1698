use super::three;
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::cluster::control::Known;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::Report;
use crate::verify;
use anyhow::{Context, Result};
use std::time::Duration;
use stele_types::{Prng, RegionKind};

const FULL_ROUNDS: u64 = 51;
const WRITERS: usize = 3;

// Catalogue: 1, 3.
/// Each round: under load, one, two or all nodes are killed at a random moment and restarted after
/// a random time; often one is killed once more while it recovers. Then everything is compared.
pub(crate) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, 4);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut ledger = Ledger::new(WRITERS);
    let mut killed = [0u64; 3];
    let mut done = 0;
    for round in 0..rounds {
        let count = 1 + round as usize % 3;
        killed[count - 1] += 1;
        let text = format!("round {round}, {count} killed");
        let seed = prng.draw();
        done += one_round(&mut cluster, &mut ledger, &mut checker, round, count, seed)
            .await
            .context(text)?;
        if !checker.violations.is_empty() || checker.unknown > 0 {
            break;
        }
    }
    report.record("rounds", rounds);
    report.record("one_two_all_killed", killed.to_vec());
    report.record("acknowledged_writes", ledger.acknowledged());
    report.record("operations_done", done);
    check(&checker, report);
    Ok(())
}

pub(crate) fn check(checker: &Checker, report: &mut Report) {
    report.record("histories", checker.histories);
    report.record("history_operations", checker.operations);
    report.record("ambiguous", checker.ambiguous);
    report
        .require(checker.violations.is_empty(), format!("linearizable: {:?}", checker.violations));
    report.require(checker.unknown == 0, format!("{} histories undecided", checker.unknown));
}

async fn one_round(
    cluster: &mut Cluster,
    ledger: &mut Ledger,
    checker: &mut Checker,
    round: u64,
    count: usize,
    seed: u64,
) -> Result<u64> {
    let mut prng = Prng::new(seed);
    let options = LoadOptions { writers: WRITERS, ..LoadOptions::default() };
    let name = format!("{round:04}");
    let nodes: Vec<String> = cluster.addresses();
    let load = Load::start(&cluster.channels, &nodes, &options, &name, seed, ledger);
    wait(&mut prng, 300, 1_500).await;
    change_shape(cluster, &mut prng).await;
    let victims = choose(&mut prng, cluster.nodes.len(), count);
    for victim in &victims {
        cluster.nodes[*victim].kill()?;
    }
    wait(&mut prng, 0, 1_500).await;
    for victim in &victims {
        cluster.nodes[*victim].restart()?;
    }
    if prng.below(3) == 0 {
        // Kills one again while it recovers.
        wait(&mut prng, 0, 150).await;
        cluster.nodes[victims[0]].kill()?;
        cluster.nodes[victims[0]].restart()?;
    }
    cluster.wait_ready().await?;
    wait(&mut prng, 300, 1_000).await;
    let recorded = load.stop(ledger).await?;
    cluster.check_alive()?;
    let verdict = checker.check(&name, &recorded).await?;
    verify::everything(cluster, ledger, 3).await?;
    println!(
        "round {round}: killed {victims:?}, {} operations, {} ambiguous, {}; {} acknowledged in total",
        verdict.operations,
        verdict.ambiguous,
        verdict.result,
        ledger.acknowledged()
    );
    Ok(recorded.done)
}

/// Sometimes splits a region or transfers its leadership. The change may be refused.
pub(crate) async fn change_shape(cluster: &Cluster, prng: &mut Prng) {
    let Ok(regions) = cluster.regions().await else { return };
    let users: Vec<&Known> =
        regions.iter().filter(|one| one.region.kind == RegionKind::Data).collect();
    let Some(known) = users.get(prng.below(users.len() as u64) as usize) else { return };
    let id = known.region.id;
    let peers = &known.region.peers;
    let result = match prng.below(4) {
        0 => match peers.get(prng.below(peers.len() as u64) as usize) {
            Some(peer) => cluster.transfer(id, peer.store).await,
            None => return,
        },
        1 if users.len() < 8 => {
            let key = format!("ledger/{:03}/{:09}", prng.below(3), prng.below(2_000));
            if !known.region.range.contains(key.as_bytes()) {
                return;
            }
            cluster.split(id, vec![bytes::Bytes::from(key)]).await
        }
        _ => return,
    };
    if let Err(error) = result {
        println!("change of shape: {error:#}");
    }
}

pub(crate) async fn wait(prng: &mut Prng, from_ms: u64, to_ms: u64) {
    tokio::time::sleep(Duration::from_millis(from_ms + prng.below(to_ms - from_ms))).await;
}

pub(crate) fn choose(prng: &mut Prng, nodes: usize, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..nodes).collect();
    while left.len() > count {
        left.remove(prng.below(left.len() as u64) as usize);
    }
    left
}
