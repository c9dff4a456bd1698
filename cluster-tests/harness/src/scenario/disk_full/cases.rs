//! Small devices of different sizes, filled with values of different sizes: a node alone, one follower,
//! all three stores, or a device that something else fills.

use super::brief;
use crate::args::Setup;
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::disk::SmallDisk;
use crate::cluster::node::get;
use crate::cluster::{Cluster, Spec};
use crate::report::{Report, rounded};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::KvPair;

const MIB: u64 = 1 << 20;
/// Time within which deletes make puts accepted again.
const SPACE_BACK_LIMIT: Duration = Duration::from_secs(10);
/// Time within which the replica of a full follower is back after its region fits again.
const REPLICA_BACK_LIMIT: Duration = Duration::from_secs(30);
/// Time within which a put or a delete is refused.
const REFUSED_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of pairs in one request.
const BATCH_BYTES: usize = 1 << 20;
/// Consecutive refused requests after which the device counts as full.
const REFUSALS: u32 = 5;

/// Which stores lie on small devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Small {
    /// That of a node alone.
    Alone,
    /// That of a node alone; a file of something else fills the device.
    Outside,
    /// That of one follower.
    Follower,
    /// All three.
    All,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    small: Small,
    disk_mib: u64,
    value_bytes: usize,
}

const fn case(small: Small, disk_mib: u64, value_bytes: usize) -> Case {
    Case { small, disk_mib, value_bytes }
}

/// Cases that a change must pass.
const SHORT: [Case; 3] = [
    case(Small::Alone, 320, 4 << 20),
    case(Small::Outside, 256, 64 << 10),
    case(Small::Follower, 320, 1 << 20),
];

const FULL: [Case; 12] = [
    case(Small::Alone, 64, 4 << 10),
    case(Small::Alone, 420, 100),
    case(Small::Alone, 420, 1 << 20),
    case(Small::Alone, 420, 4 << 20),
    case(Small::Alone, 2 << 10, 4 << 20),
    case(Small::Alone, 4 << 10, 16 << 20),
    case(Small::Outside, 420, 4 << 20),
    case(Small::Follower, 420, 4 << 10),
    case(Small::Follower, 420, 4 << 20),
    case(Small::Follower, 1 << 10, 16 << 20),
    case(Small::All, 420, 1 << 20),
    case(Small::All, 1 << 10, 16 << 20),
];

pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let cases: &[Case] = if setup.short { &SHORT } else { &FULL };
    for (number, case) in cases.iter().enumerate() {
        let started = Instant::now();
        let text = format!("case {number}: {case:?}");
        let mut trial = Trial::start(setup, number, *case).await.with_context(|| text.clone())?;
        let done = match case.small {
            Small::Alone | Small::All => trial.fills_and_empties(report).await,
            Small::Outside => trial.filled_from_outside(report).await,
            Small::Follower => trial.one_follower_is_full(report).await,
        };
        done.with_context(|| text.clone())?;
        println!("{text}: {:.1} s", started.elapsed().as_secs_f64());
        // The processes end before their devices are unmounted.
        drop(trial.cluster);
    }
    Ok(())
}

struct Trial {
    case: Case,
    number: usize,
    cluster: Cluster,
    session: Session,
    disks: BTreeMap<usize, SmallDisk>,
    requests: u64,
}

impl Trial {
    async fn start(setup: &Setup, number: usize, case: Case) -> Result<Self> {
        let work = setup.work().join(format!("case{number}"));
        std::fs::create_dir_all(&work)?;
        let (nodes, small) = match case.small {
            Small::Alone | Small::Outside => (1, 0..1),
            Small::Follower => (3, 2..3),
            Small::All => (3, 0..3),
        };
        let disk = |node: usize| {
            let created = SmallDisk::create(&work, &format!("disk{node}"), case.disk_mib * MIB);
            Ok((node, created?))
        };
        let disks = small.map(disk).collect::<Result<BTreeMap<_, _>>>()?;
        let store = |(node, disk): (&usize, &SmallDisk)| (*node, vec![disk.path().join("store")]);
        let stores = disks.iter().map(store).collect();
        // One region: it is full, or it is not.
        let settings = vec![("region_bytes_max", "64GiB".to_owned())];
        let stele = setup.stele.clone();
        let certificates = None;
        let spec = Spec { stele, work, nodes, settings, namespaces: false, stores, certificates };
        let cluster = Cluster::start(spec).await?;
        cluster.set_option("balance", "0").await?;
        if case.small == Small::Follower {
            cluster.lead_all(cluster.store_of(0).await?).await?;
        }
        let limit = Duration::from_secs(5);
        let options = SessionOptions { nodes: cluster.addresses(), limit };
        let session = Session::new(Arc::clone(&cluster.channels), options);
        Ok(Self { case, number, cluster, session, disks, requests: 0 })
    }

    /// Puts values of the case in one request. Each is different.
    async fn put_next(&mut self) -> Outcome<()> {
        let count = (BATCH_BYTES / self.case.value_bytes).max(1);
        let request = self.requests;
        let pairs = (0..count).map(|at| {
            let mut prng = stele_types::Prng::new(request << 20 | at as u64);
            let words = std::iter::repeat_with(|| prng.draw().to_le_bytes()).flatten();
            let value: Vec<u8> = words.take(self.case.value_bytes).collect();
            let (key, value) = (Bytes::from(key(request, at)), Bytes::from(value));
            KvPair { key, value, ..KvPair::default() }
        });
        let pairs: Vec<KvPair> = pairs.collect();
        let outcome = match <[KvPair; 1]>::try_from(pairs) {
            Ok([pair]) => self.session.put(&pair.key, pair.value).await,
            Err(pairs) => self.session.put_many(pairs).await,
        };
        self.requests += u64::from(outcome.is_done());
        outcome
    }

    /// Puts until the devices are full. Every answer must be certain.
    async fn fill(&mut self) -> Result<()> {
        let limit = self.case.disk_mib * MIB * 2 / BATCH_BYTES.max(self.case.value_bytes) as u64;
        let (from, mut refusals) = (self.requests, 0);
        while refusals < REFUSALS {
            self.cluster.check_alive()?;
            ensure!(self.requests - from <= limit, "the device does not get full");
            match self.put_next().await {
                Outcome::Done(()) => refusals = 0,
                Outcome::Refused(answer) if answer.is_of_full_disk() => {
                    refusals += 1;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Outcome::Refused(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Outcome::Ambiguous(answer) => bail!("an uncertain outcome of a put: {answer}"),
            }
        }
        Ok(())
    }

    async fn delete(&mut self, requests: std::ops::Range<u64>) -> Result<()> {
        let (start, end) = (key(requests.start, 0), key(requests.end, 0));
        let started = Instant::now();
        loop {
            match self.session.delete_range(start.as_bytes(), end.as_bytes()).await {
                Outcome::Done(()) => return Ok(()),
                Outcome::Refused(answer) => {
                    ensure!(started.elapsed() < SPACE_BACK_LIMIT, "a delete is refused: {answer}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Outcome::Ambiguous(answer) => bail!("an uncertain outcome of a delete: {answer}"),
            }
        }
    }

    /// Waits until a put is accepted; returns the seconds.
    async fn accepts_puts(&mut self, since: Instant, after: &str) -> Result<f64> {
        loop {
            match self.put_next().await {
                Outcome::Done(()) => return Ok(rounded(since.elapsed().as_secs_f64())),
                Outcome::Refused(answer) => {
                    let waited = since.elapsed();
                    ensure!(waited < SPACE_BACK_LIMIT, "{waited:?} after {after}: {answer}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Outcome::Ambiguous(answer) => bail!("an uncertain outcome of a put: {answer}"),
            }
        }
    }

    /// A full node stays in service and says that it is full.
    async fn says_full(&self, node: usize, report: &mut Report) -> Result<()> {
        let address = self.cluster.nodes.get(node).context("no such node")?.address();
        for page in ["/healthz", "/readyz"] {
            let (status, body) = get(address, page, Duration::from_secs(5)).await?;
            let says = status == 200 && body.contains("is full");
            report.require(says, format!("{page} of a full node: {status} {body:?}"));
        }
        let (_, metrics) = get(address, "/metrics", Duration::from_secs(5)).await?;
        let is_set = metrics
            .lines()
            .any(|line| line.starts_with("stele_store_full{") && line.ends_with(" 1"));
        report.require(is_set, "no metric stele_store_full is 1 on a full node".to_owned());
        Ok(())
    }

    async fn fills_and_empties(&mut self, report: &mut Report) -> Result<()> {
        self.fill().await?;
        self.says_full(0, report).await?;
        let (number, filled) = (self.number, self.requests);
        ensure!(filled > 0, "the device accepts no put at all");
        report.record(&format!("case_{number}_requests"), filled);
        for (part, range) in [("half", 0..filled / 2), ("all", filled / 2..u64::MAX >> 1)] {
            let started = Instant::now();
            self.delete(range).await?;
            let seconds = self.accepts_puts(started, &format!("{part} was deleted")).await?;
            report.record(&format!("case_{number}_{part}_s"), seconds);
            if part == "half" {
                self.fill().await?;
            }
        }
        Ok(())
    }

    /// A file takes all that is free. Requests are refused at once, and succeed when it is gone.
    async fn filled_from_outside(&mut self, report: &mut Report) -> Result<()> {
        for _ in 0..8 {
            let put = self.put_next().await;
            ensure!(put.is_done(), "a put on an empty device: {}", brief(&put));
        }
        let path = self.disks.get(&0).context("no device")?.path().join("other");
        fill_device(&path)?;
        let started = Instant::now();
        let mut refused = 0;
        while started.elapsed() < REFUSED_LIMIT {
            let asked = Instant::now();
            let put = self.put_next().await;
            let is_certain = !matches!(put, Outcome::Ambiguous(_));
            let text = format!("{} after {:?}", brief(&put), asked.elapsed());
            report.require(is_certain, format!("a put on a device filled from outside: {text}"));
            report.require(asked.elapsed() < REFUSED_LIMIT, format!("a late answer: {text}"));
            refused += u32::from(!put.is_done());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        report.require(refused > 0, "a device filled from outside accepts puts".to_owned());
        self.says_full(0, report).await?;
        let asked = Instant::now();
        let deleted = self.session.delete(key(0, 0).as_bytes()).await;
        let text = format!("{} after {:?}", brief(&deleted), asked.elapsed());
        let is_certain = !matches!(deleted, Outcome::Ambiguous(_));
        report.require(is_certain, format!("a delete on a device filled from outside: {text}"));
        let kept = self.session.get(key(1, 0).as_bytes(), None).await;
        let is_there = matches!(&kept, Outcome::Done(Some(_)));
        report
            .require(is_there, format!("a get on a device filled from outside: {}", brief(&kept)));
        std::fs::remove_file(&path)?;
        let seconds = self.accepts_puts(Instant::now(), "the other file was removed").await?;
        report.record(&format!("case_{}_accepted_s", self.number), seconds);
        Ok(())
    }

    /// The quorum goes on while a follower is full. Its replica is back soon after the region fits.
    async fn one_follower_is_full(&mut self, report: &mut Report) -> Result<()> {
        let small = self.cluster.store_of(2).await?;
        let bytes = BATCH_BYTES.max(self.case.value_bytes) as u64;
        let enough = self.case.disk_mib * MIB * 5 / 4 / bytes;
        while self.requests < enough {
            self.cluster.check_alive()?;
            match self.put_next().await {
                Outcome::Done(()) => {}
                // Another leader may be elected under load. The request is repeated.
                Outcome::Refused(_) | Outcome::Ambiguous(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        let started = Instant::now();
        loop {
            let stores = self.cluster.stores().await?;
            let stats = stores.get(&small).and_then(|store| store.stats);
            if stats.is_some_and(|stats| stats.disk_full && stats.free > 0) {
                self.says_full(2, report).await?;
                break;
            }
            // The replica that lacked room is dropped, and the region does not fit there again.
            if stats.is_some_and(|stats| stats.live < enough * bytes / 2) {
                break;
            }
            ensure!(started.elapsed() < SPACE_BACK_LIMIT, "the small store is not full: {stats:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.delete(0..u64::MAX >> 1).await?;
        let started = Instant::now();
        self.put_next().await;
        self.cluster.wait_replicated(3, REPLICA_BACK_LIMIT).await?;
        let seconds = rounded(started.elapsed().as_secs_f64());
        report.record(&format!("case_{}_replica_back_s", self.number), seconds);
        self.accepts_puts(Instant::now(), "the replica was back").await?;
        Ok(())
    }
}

fn key(request: u64, at: usize) -> String {
    format!("fill/{request:020}/{at:06}")
}

fn fill_device(path: &std::path::Path) -> Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = File::create(path)?;
    let (mut at, mut step) = (0, 64 * MIB);
    while step >= 4 << 10 {
        match fallocate(&file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    Ok(())
}
