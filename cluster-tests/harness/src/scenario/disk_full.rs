mod cases;

use super::three;
use crate::args::Setup;
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::disk::SmallDisk;
use crate::history::Ledger;
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 1 << 30;
/// No region splits during the scenario.
const SETTINGS: [(&str, &str); 2] = [("reserved_bytes", "128MiB"), ("region_bytes_max", "64GiB")];
const VALUE_BYTES: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(90);
const SMALL: usize = 2;
/// Consecutive refused writes after which the disk counts as full.
const REFUSALS: u32 = 20;

// Catalogue: 19.
/// Devices of several sizes are filled, see [`cases`]. Then one node has a small disk and leads; it is
/// filled. Writes there are refused, everything else works. With another leader writes succeed again.
/// After deletes the space is reclaimed.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    cases::run(setup, report).await?;
    // The devices of the cases take long to fill a gigabyte.
    if setup.short {
        return Ok(());
    }
    full_leader(setup, report).await
}

async fn full_leader(setup: &Setup, report: &mut Report) -> Result<()> {
    let disk = SmallDisk::create(setup.work(), "small", DISK_BYTES)?;
    let mut spec = three(setup, &SETTINGS);
    spec.stores = [(SMALL, vec![disk.path().join("store")])].into();
    let mut cluster = Cluster::start(spec).await?;
    // The placement group must not request a split or move leaders either.
    cluster.set_option("balance", "0").await?;
    let small = cluster.store_of(SMALL).await?;
    let other = cluster.store_of(0).await?;
    cluster.lead_all(small).await?;
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);

    let (written, text) = fill(&mut cluster, &mut session).await?;
    println!("full after {written} values of {VALUE_BYTES} bytes: {text}");
    report.record("full_after_bytes", written * VALUE_BYTES as u64);
    for number in (0..written).step_by(97) {
        let found = session.get(key(number).as_bytes(), None).await;
        let is_there = matches!(&found, Outcome::Done(Some(value)) if value.len() == VALUE_BYTES);
        report.require(is_there, format!("reads must work on a full disk: {}", brief(&found)));
    }
    let deleted = session.delete(key(0).as_bytes()).await;
    report.require(
        deleted.is_done(),
        format!("deletes must work on a full disk: {}", brief(&deleted)),
    );

    let started = Instant::now();
    cluster.lead_all(other).await?;
    report.record("transfer_s", rounded(started.elapsed().as_secs_f64()));
    for number in 0..50 {
        let outcome = put_until(&mut session, &format!("elsewhere/{number}"), 64 << 10).await;
        report.require(
            outcome.is_done(),
            format!("another leader must accept writes: {}", brief(&outcome)),
        );
    }
    let started = Instant::now();
    let gone = delete_all(&mut session).await;
    report.require(gone.is_done(), format!("delete range: {}", brief(&gone)));
    // The transfer is refused while the store is full or behind.
    while let Err(error) = cluster.lead_all(small).await {
        ensure!(started.elapsed() < LIMIT, "{error:#}, {LIMIT:?} after the deletes");
    }
    while !session.put(b"after", Bytes::from(vec![1; VALUE_BYTES])).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "space was not reclaimed within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    report.record("space_back_s", rounded(started.elapsed().as_secs_f64()));
    verify::everything(&mut cluster, &Ledger::new(0), 3).await?;
    drop(cluster);
    Ok(())
}

fn key(number: u64) -> String {
    format!("fill/{number:07}")
}

/// Writes until the disk is full; returns the number of acknowledged writes and the refusal's text.
async fn fill(cluster: &mut Cluster, session: &mut Session) -> Result<(u64, String)> {
    let (mut number, mut refusals) = (0, 0);
    loop {
        cluster.check_alive()?;
        ensure!(number * VALUE_BYTES as u64 <= 2 * DISK_BYTES, "the disk does not get full");
        // Each value is different, so that the engine cannot deduplicate them.
        let value: Bytes = number.to_le_bytes().iter().copied().cycle().take(VALUE_BYTES).collect();
        match session.put(key(number).as_bytes(), value).await {
            Outcome::Done(()) => {
                number += 1;
                refusals = 0;
            }
            Outcome::Refused(answer) if answer.is_of_full_disk() => {
                refusals += 1;
                if refusals == REFUSALS {
                    return Ok((number, answer.text));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Outcome::Refused(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Outcome::Ambiguous(answer) => bail!("an ambiguous outcome while filling: {answer}"),
        }
    }
}

/// Puts until one succeeds or 5 s have passed.
async fn put_until(session: &mut Session, key: &str, bytes: usize) -> Outcome<()> {
    let started = Instant::now();
    loop {
        let outcome = session.put(key.as_bytes(), Bytes::from(vec![7; bytes])).await;
        if outcome.is_done() || started.elapsed() > Duration::from_secs(5) {
            return outcome;
        }
    }
}

async fn delete_all(session: &mut Session) -> Outcome<()> {
    let started = Instant::now();
    loop {
        let outcome = session.delete_range(b"fill/", b"fill0").await;
        if outcome.is_done() || started.elapsed() > Duration::from_secs(5) {
            return outcome;
        }
    }
}

/// Formats an outcome without its value.
fn brief<T>(outcome: &Outcome<T>) -> String {
    match outcome {
        Outcome::Done(_) => "done".to_owned(),
        Outcome::Refused(answer) => format!("refused: {answer}"),
        Outcome::Ambiguous(answer) => format!("unclear: {answer}"),
    }
}
