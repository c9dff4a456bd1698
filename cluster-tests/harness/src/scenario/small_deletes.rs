use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::{Cluster, process};
use crate::report::{Report, percentile, rounded};
use crate::scenario::memory::PEAK_BYTES_MAX;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_types::Prng;
use tokio::task::JoinHandle;

/// Start of the second region.
const SPLIT: &[u8] = b"n";
/// Beginning of the keys of each region.
const READ: u8 = b'd';
const OTHER: u8 = b'z';
const RECORDS: u64 = 1000;
const VALUE_BYTES: usize = 100;
const DELETERS: u64 = 2;
const DELETES_A_BATCH: usize = 20_000;
/// Each deleter begins a batch after this time, or when the batch before is acknowledged.
const BATCH_PERIOD: Duration = Duration::from_millis(250);
const GET_PAUSE: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(20);
const FULL_SECONDS: u64 = 10;
const SHORT_SECONDS: u64 = 3;
/// The 99th percentile of gets in the region of the deletes, divided by that in another region of the same
/// stores beside the same deletes.
const RATIO_MAX: f64 = 2.0;

struct Measured {
    get_p50_ms: f64,
    get_p99_ms: f64,
    gets: usize,
    deletes_per_s: f64,
}

/// A client gets while others delete small keys, which lie unapplied for a while: none at all, keys of
/// another region, keys of the region that is read. The processors do the same work in the last two.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(5, 1);
    let seconds = if setup.short { SHORT_SECONDS } else { FULL_SECONDS };
    report.record("rounds", rounds);
    report.record("configuration", format!(
        "three nodes, fsync on, {DELETERS} clients delete {DELETES_A_BATCH} keys of 9 bytes every {BATCH_PERIOD:?}, \
         one client gets values of {VALUE_BYTES} bytes, {seconds} s a part"
    ));
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let leader = lead_both(&cluster).await?;
    let mut session = session(&cluster);
    for record in 0..RECORDS {
        let value = Bytes::from(vec![7; VALUE_BYTES]);
        ensure!(session.put(&key(READ, record), value).await.is_done(), "a put failed");
    }
    let (mut ratios, mut all) = (Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    for round in 0..rounds {
        let seed = setup.seed.wrapping_add(round);
        let duration = Duration::from_secs(seconds);
        let mut parts = Vec::new();
        for (into, deleted) in all.iter_mut().zip([None, Some(OTHER), Some(READ)]) {
            let part = part(&cluster, &mut session, (seed, deleted), duration).await?;
            println!(
                "round {round}, deletes in {:?}: {} gets, p50 {:.3} ms, p99 {:.3} ms, {:.0} deletes/s",
                deleted.map(char::from),
                part.gets,
                part.get_p50_ms,
                part.get_p99_ms,
                part.deletes_per_s
            );
            into.push(part.get_p99_ms);
            parts.push(part);
        }
        if let [_, other, read] = &*parts {
            ratios.push(read.get_p99_ms / other.get_p99_ms);
        }
    }
    cluster.check_alive()?;
    let stayed = cluster.leader_of(&key(READ, 0)).await? == leader;
    report.require(stayed, "the leader stays".to_owned());
    for (name, p99_ms) in ["without_deletes", "beside_deletes", "with_deletes"].iter().zip(all) {
        report.record(&format!("get_p99_ms_{name}"), rounded(percentile(&p99_ms, 0.5)));
    }
    let ratio = percentile(&ratios, 0.5);
    report.record("get_p99_with_to_beside_deletes", rounded(ratio));
    // One round of a few seconds beside other work measures nothing.
    let is_near = setup.short || ratio <= RATIO_MAX;
    report.require(is_near, format!("p99 of a get at most {RATIO_MAX} times: {ratio:.2}"));
    let process = cluster.nodes.get(leader).context("no leader")?.process()?;
    let peak = process::peak_memory_bytes(process)?;
    report.record("peak_memory_bytes", peak);
    report.require(peak < PEAK_BYTES_MAX, format!("memory below {PEAK_BYTES_MAX} bytes: {peak}"));
    Ok(())
}

/// Makes two regions with one leader; returns its node.
async fn lead_both(cluster: &Cluster) -> Result<usize> {
    cluster.set_option("balance", "0").await?;
    let region = cluster.region_of(b"").await?.region.id;
    cluster.split(region, vec![Bytes::from_static(SPLIT)]).await?;
    let leader = cluster.leader_of(&key(READ, 0)).await?;
    let other = cluster.region_of(&key(OTHER, 0)).await?.region.id;
    if cluster.leader_of(&key(OTHER, 0)).await? != leader {
        cluster.transfer(other, cluster.store_of(leader).await?).await?;
    }
    Ok(leader)
}

/// Gets for `duration` while keys with the given beginning are deleted. No get and no delete may fail:
/// each has one attempt, and a leader that left would refuse it.
async fn part(
    cluster: &Cluster,
    session: &mut Session,
    (seed, deleted): (u64, Option<u8>),
    duration: Duration,
) -> Result<Measured> {
    let until = Instant::now() + duration;
    let mut prng = Prng::new(seed);
    let start = |beginning| move |it| delete_until(self::session(cluster), beginning, it, until);
    let seeds = (0..DELETERS).map(|_| prng.draw()).collect::<Vec<_>>();
    let deleters: Vec<JoinHandle<Result<usize>>> = deleted
        .into_iter()
        .flat_map(|beginning| seeds.iter().copied().map(start(beginning)))
        .map(tokio::spawn)
        .collect();
    let mut times_ms = Vec::new();
    while Instant::now() < until {
        let key = key(READ, prng.below(RECORDS));
        let started = Instant::now();
        let outcome = session.get(&key, None).await;
        times_ms.push(started.elapsed().as_secs_f64() * 1000.0);
        ensure!(outcome.is_done(), "a get failed: {outcome:?}");
        tokio::time::sleep(GET_PAUSE).await;
    }
    let mut deletes = 0;
    for deleter in deleters {
        deletes += deleter.await??;
    }
    Ok(Measured {
        get_p50_ms: percentile(&times_ms, 0.5),
        get_p99_ms: percentile(&times_ms, 0.99),
        gets: times_ms.len(),
        deletes_per_s: deletes as f64 / duration.as_secs_f64(),
    })
}

/// Deletes keys that do not exist; returns how many.
async fn delete_until(
    mut session: Session,
    beginning: u8,
    seed: u64,
    until: Instant,
) -> Result<usize> {
    let mut prng = Prng::new(seed);
    let mut deletes = 0;
    let mut ticks = tokio::time::interval(BATCH_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while Instant::now() < until {
        ticks.tick().await;
        // The high bit is set: no record is among them.
        let keys = (0..DELETES_A_BATCH).map(|_| key(beginning, prng.draw() | 1 << 63));
        let outcome = session.delete_many(keys.collect()).await;
        ensure!(outcome.is_done(), "a delete failed: {outcome:?}");
        deletes += DELETES_A_BATCH;
    }
    Ok(deletes)
}

fn key(beginning: u8, number: u64) -> Bytes {
    let mut key = vec![beginning];
    key.extend(number.to_be_bytes());
    Bytes::from(key)
}

fn session(cluster: &Cluster) -> Session {
    let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
    Session::new(Arc::clone(&cluster.channels), options)
}
