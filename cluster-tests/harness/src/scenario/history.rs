use super::{kill, three};
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::channels::Channels;
use crate::history::{Checker, Counts, Keys, Ledger, Load, LoadOptions, Recorded, Recorder, Rules};
use crate::nemesis::{Nemesis, Target};
use crate::report::Report;
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_types::Prng;

const SECONDS: u64 = 90;
const SHORT_SECONDS: u64 = 20;
/// One node more than replicas, to which replicas move.
const NODES: usize = 4;
const CLIENTS: usize = 12;
/// 50 keys.
const GROUPS: u64 = 10;
const GROUP_KEYS: u64 = 5;
/// Time after which the clients use new keys: a history that is too long cannot be checked.
const EPOCH: Duration = Duration::from_secs(30);
/// Time of undisturbed operations at the end.
const CALM: Duration = Duration::from_secs(2);
const REPLICATED_LIMIT: Duration = Duration::from_secs(120);
const READ_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// Node of `--slow-syncs`, and what each of its syncs takes longer: about 20 times as long.
const SLOW_NODE: usize = 0;
const SYNC_DELAY: Duration = Duration::from_millis(20);
/// Setting that the server must know for `--strict`.
const UNDETERMINED_WRITES: (&str, &str) = ("undetermined_writes_fail", "1");
/// Time until every node has received a setting with a heartbeat.
const SETTING_LIMIT: Duration = Duration::from_secs(3);

// Catalogue: 1, 2, 3, 29, 30, 32.
/// Clients put, delete, compare and swap, read and scan, also at followers, while the nemesis draws
/// faults. Afterwards every key is read from every replica. The histories must be linearizable, and
/// every answer must be true: what was refused never takes effect.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let duration = Duration::from_secs(setup.seconds(SECONDS, SHORT_SECONDS));
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    checker.rules = Rules { strict: setup.strict };
    let mut cluster = start(setup).await?;
    let keys = Keys { groups: GROUPS, group_keys: GROUP_KEYS, repeat: setup.repeat };
    let clients = Clients::start(&cluster, keys, setup.seed);
    let mut nemesis = Nemesis::new(setup.seed);
    let started = Instant::now();
    let mut disturbed = Ok(());
    while started.elapsed() < duration && disturbed.is_ok() {
        let slow = &mut cluster.nodes[SLOW_NODE];
        if setup.slow_syncs && !slow.has_slow_syncs() {
            slow.slow_syncs(SYNC_DELAY).await?;
        }
        let target = Target { round: clients.round(), keys };
        disturbed = nemesis.step(&mut cluster, &target).await;
    }
    if disturbed.is_ok() {
        tokio::time::sleep(CALM).await;
    }
    let mut histories = clients.stop().await?;
    report.record("faults", nemesis.object());
    println!("faults: {}", nemesis.object());
    let settled = match disturbed {
        Ok(()) => settle(&mut cluster, keys, &mut histories).await,
        failed => failed,
    };
    // The histories are checked even if the cluster did not settle.
    let mut counts = Counts::default();
    for (round, recorded) in &histories {
        counts.add(&recorded.records);
        let verdict = checker.check(round, recorded).await?;
        let (operations, ambiguous) = (verdict.operations, verdict.ambiguous);
        println!(
            "history {round}: {operations} operations, {ambiguous} ambiguous, {}",
            verdict.result
        );
    }
    print!("{counts}");
    report.record("operations", counts.object());
    report.record("unknown_writes_and_seen", counts.unknown_writes().to_vec());
    kill::check(&checker, report);
    settled
}

async fn start(setup: &Setup) -> Result<Cluster> {
    let mut spec = three(setup, &[]);
    spec.nodes = NODES;
    spec.namespaces = true;
    let cluster = Cluster::start(spec).await?;
    // Only the nemesis may change regions.
    cluster.set_option("balance", "0").await?;
    if setup.strict {
        let (key, value) = UNDETERMINED_WRITES;
        cluster.set_option(key, value).await.context("--strict needs this setting")?;
        tokio::time::sleep(SETTING_LIMIT).await;
    }
    let whole = cluster.region_of(b"history").await?.region.id;
    let groups = [GROUPS / 3, GROUPS * 2 / 3];
    let at = groups.map(|group| Bytes::from(Keys::group(&round_name(0), group)));
    cluster.split(whole, at.to_vec()).await?;
    Ok(cluster)
}

/// Waits until all replicas are there, reads every key from each of them, and compares them.
async fn settle(
    cluster: &mut Cluster,
    keys: Keys,
    histories: &mut [(String, Recorded)],
) -> Result<()> {
    let started = Instant::now();
    cluster.wait_replicated(3, REPLICATED_LIMIT).await?;
    println!("all replicas are there after {:.3} s", started.elapsed().as_secs_f64());
    for (round, recorded) in histories {
        let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
        let session = Session::new(Arc::clone(&cluster.channels), options);
        let (prng, zero) = (Prng::new(0), recorded.zero);
        let mut reader = Recorder::new(session, CLIENTS, round.clone(), keys, prng, zero);
        let read = read_all(&mut reader).await;
        recorded.records.append(&mut reader.records);
        read.with_context(|| format!("final reads of history {round}"))?;
    }
    println!("every key is read after {:.3} s", started.elapsed().as_secs_f64());
    verify::everything(cluster, &Ledger::new(0), 3).await
}

async fn read_all(reader: &mut Recorder) -> Result<()> {
    let deadline = Instant::now() + READ_LIMIT;
    for group in 0..reader.keys.groups {
        for number in 0..reader.keys.group_keys {
            for replica in [None, Some(0), Some(1), Some(2)] {
                while !reader.read(group, number, replica).await {
                    let is_late = Instant::now() >= deadline;
                    ensure!(
                        !is_late,
                        "group {group}, key {number}, replica {replica:?}: no answer"
                    );
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }
    Ok(())
}

/// Clients that use new keys after every [`EPOCH`].
struct Clients {
    stop: Arc<AtomicBool>,
    epoch: Arc<AtomicU64>,
    running: tokio::task::JoinHandle<Result<Vec<(String, Recorded)>>>,
}

impl Clients {
    fn start(cluster: &Cluster, keys: Keys, seed: u64) -> Self {
        let (stop, epoch) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let options =
            LoadOptions { recorders: CLIENTS, writers: 0, keys, ..LoadOptions::default() };
        let (channels, nodes) = (Arc::clone(&cluster.channels), cluster.addresses());
        let epochs = epochs(channels, nodes, options, seed, Arc::clone(&stop), Arc::clone(&epoch));
        Self { stop, epoch, running: tokio::spawn(epochs) }
    }

    fn round(&self) -> String {
        round_name(self.epoch.load(Ordering::Relaxed))
    }

    async fn stop(self) -> Result<Vec<(String, Recorded)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.await?
    }
}

async fn epochs(
    channels: Arc<Channels>,
    nodes: Vec<String>,
    options: LoadOptions,
    seed: u64,
    stop: Arc<AtomicBool>,
    epoch: Arc<AtomicU64>,
) -> Result<Vec<(String, Recorded)>> {
    let mut prng = Prng::new(seed);
    let mut ledger = Ledger::new(0);
    let mut histories = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let round = round_name(histories.len() as u64);
        epoch.store(histories.len() as u64, Ordering::Relaxed);
        let load = Load::start(&channels, &nodes, &options, &round, prng.draw(), &ledger);
        let end = Instant::now() + EPOCH;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(POLL).await;
        }
        histories.push((round, load.stop(&mut ledger).await?));
    }
    Ok(histories)
}

fn round_name(epoch: u64) -> String {
    format!("{epoch:04}")
}
