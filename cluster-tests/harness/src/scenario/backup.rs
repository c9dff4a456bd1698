use super::kill::wait;
use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stele_types::{Prng, RegionKind};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const LIMIT: Duration = Duration::from_secs(120);
/// Writers of which the order of writes is checked, each with this many keys in all regions.
const WRITERS: usize = 3;
const KEYS: u64 = 64;
/// Clients with half reads and half updates, and their keys.
const CLIENTS: u64 = 8;
const RECORDS: u64 = 1_000;
const VALUE_BYTES: usize = 1_000;
const FULL_ROUNDS: u64 = 30;
const SHORT_ROUNDS: u64 = 4;
const FULL_MOMENTS: u64 = 20;
const SHORT_MOMENTS: u64 = 2;

type Pairs = BTreeMap<String, String>;

/// A backup is taken under load, while nodes and the backup are killed and regions split and merge. At each of
/// some random moments it is restored, and has a beginning of what each writer wrote.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, SHORT_ROUNDS);
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<Result<u64>>> =
        (0..WRITERS).map(|writer| start_writer(&cluster, writer, &stop)).collect();
    let done = Arc::new(AtomicU64::new(0));
    let clients: Vec<JoinHandle<()>> =
        (0..CLIENTS).map(|n| start_client(&cluster, prng.draw(), n, &stop, &done)).collect();
    let mut backup = Backup::new(setup);
    backup.start(&cluster)?;
    backup.wait_moments(1).await.context("the first moment")?;
    let mut faults = BTreeMap::<&str, u64>::new();
    for round in 0..rounds {
        let fault = one_round(&mut cluster, &mut backup, &mut prng, round).await;
        *faults.entry(fault.with_context(|| format!("round {round}"))?).or_default() += 1;
        wait(&mut prng, 300, 1_500).await;
        cluster.check_alive()?;
    }
    let moments = backup.list()?.len();
    backup.wait_moments(moments + 1).await.context("a moment after the last fault")?;
    stop.store(true, Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await??);
    }
    for client in clients {
        client.await?;
    }
    let moments = backup.list()?.len();
    backup.wait_moments(moments + 1).await.context("a moment after the last write")?;
    backup.kill()?;
    report.record("faults", faults.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>());
    report.record("writes", written.clone());
    report.record("client_operations", done.load(Relaxed));
    check_moments(setup, &backup, &written, &mut prng, report)
}

async fn one_round(
    cluster: &mut Cluster,
    backup: &mut Backup,
    prng: &mut Prng,
    round: u64,
) -> Result<&'static str> {
    match round % 4 {
        0 => {
            backup.kill()?;
            wait(prng, 0, 1_000).await;
            backup.start(cluster)?;
            Ok("backup killed")
        }
        1 => {
            let region = cluster.region_of(key(0, prng.below(KEYS)).as_bytes()).await?.region.id;
            let at = Bytes::from(format!("{:03}/", prng.below(KEYS)));
            // Another region may have the key by now, or begin with it.
            let split = cluster.split(region, vec![at]).await;
            Ok(if split.is_ok() { "split" } else { "split refused" })
        }
        2 => {
            let victim = prng.below(cluster.nodes.len() as u64) as usize;
            cluster.nodes[victim].kill()?;
            wait(prng, 0, 1_500).await;
            cluster.nodes[victim].restart()?;
            cluster.wait_ready().await?;
            Ok("node killed")
        }
        _ => {
            let mut known = cluster.regions().await?;
            known.retain(|one| one.region.kind == RegionKind::Data);
            let at = prng.below(known.len() as u64) as usize;
            let Some(next) = known.get(at + 1) else { return Ok("no merge") };
            let merged = cluster.merge(known[at].region.id, next.region.id).await;
            Ok(if merged.is_ok() { "merge" } else { "merge refused" })
        }
    }
}

fn key(writer: usize, number: u64) -> String {
    format!("{:03}/{writer}", number * 7 % KEYS)
}

/// Value of a write; `None` for a delete. Each state of a writer's keys occurs once after the first round.
fn value(number: u64) -> Option<String> {
    (!number.is_multiple_of(3)).then(|| format!("{number:0500}"))
}

/// Writes one key after the other, each until it is acknowledged. Returns the number of writes.
fn start_writer(
    cluster: &Cluster,
    writer: usize,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<Result<u64>> {
    let mut session = session(cluster);
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut number = 0;
        while !stop.load(Relaxed) {
            let (key, value, began) = (key(writer, number), value(number), Instant::now());
            loop {
                let written = match &value {
                    Some(value) => session.put(key.as_bytes(), Bytes::from(value.clone())).await,
                    None => session.delete(key.as_bytes()).await,
                };
                if written.is_done() {
                    break;
                }
                ensure!(began.elapsed() < LIMIT, "{key} is not written within {LIMIT:?}");
                sleep(Duration::from_millis(20)).await;
            }
            number += 1;
        }
        Ok(number)
    })
}

fn start_client(
    cluster: &Cluster,
    seed: u64,
    client: u64,
    stop: &Arc<AtomicBool>,
    done: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let (mut session, mut prng) = (session(cluster), Prng::new(seed ^ client));
    let (stop, done) = (stop.clone(), done.clone());
    tokio::spawn(async move {
        while !stop.load(Relaxed) {
            let key = format!("user{:05}", prng.below(RECORDS));
            let value = Bytes::from(vec![b'a' + prng.below(26) as u8; VALUE_BYTES]);
            let is_done = match prng.coin() {
                true => session.put(key.as_bytes(), value).await.is_done(),
                false => session.get(key.as_bytes(), None).await.is_done(),
            };
            match is_done {
                true => _ = done.fetch_add(1, Relaxed),
                false => sleep(Duration::from_millis(20)).await,
            }
        }
    })
}

fn session(cluster: &Cluster) -> Session {
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
    Session::new(Arc::clone(&cluster.channels), options)
}

/// The process of the backup, and its place.
struct Backup {
    stele: PathBuf,
    to: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

impl Backup {
    fn new(setup: &Setup) -> Self {
        let (to, log) = (setup.work().join("backup"), setup.work().join("backup.log"));
        Self { stele: setup.stele.clone(), to, log, process: None }
    }

    fn start(&mut self, cluster: &Cluster) -> Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.stele);
        command.args(["backup", "--follow", "--every", "1s", "--cluster"]);
        command.arg(cluster.addresses().join(",")).arg("--to").arg(&self.to);
        command.stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().context("starting the backup")?);
        Ok(())
    }

    /// SIGKILL. Fails if the process has ended before.
    fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the backup does not run")?;
        let ended = process.try_wait()?;
        let text = || std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(ended.is_none(), "the backup ended: {ended:?}\n{}", text());
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Returns the moments that can be restored, ascending.
    fn list(&self) -> Result<Vec<u64>> {
        let listed = self.command(&["backup", "list", "--json", "--to"]).arg(&self.to).output()?;
        let text = String::from_utf8(listed.stdout)?;
        let rows = text.lines().map(serde_json::from_str::<Value>);
        let rows = rows.collect::<Result<Vec<Value>, _>>()?;
        let restorable = rows.iter().filter(|row| row["restorable"] == "yes");
        Ok(restorable.filter_map(|row| row["moment"].as_u64()).collect())
    }

    async fn wait_moments(&self, count: usize) -> Result<()> {
        let began = Instant::now();
        while self.list().map_or(0, |moments| moments.len()) < count {
            let text = || std::fs::read_to_string(&self.log).unwrap_or_default();
            ensure!(began.elapsed() < LIMIT, "no further moment within {LIMIT:?}\n{}", text());
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.stele);
        command.args(words);
        command
    }

    /// Restores a moment into an embedded store, and returns its pairs.
    fn restore(&self, moment: u64, dir: &Path) -> Result<Pairs> {
        let number = moment.to_string();
        let mut restore = self.command(&["restore", "--moment", &number, "--from"]);
        let ended = restore.arg(&self.to).arg("--store").arg(dir).output()?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let mut export = self.command(&["export", "--to", "-", "--store"]);
        let ended = export.arg(dir).output()?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let mut pairs = Pairs::new();
        for line in String::from_utf8(ended.stdout)?.lines() {
            let row: Value = serde_json::from_str(line)?;
            let text = |name: &str| Some(row[name].as_str()?.to_owned());
            let pair = text("key").zip(text("value"));
            let (key, value) = pair.with_context(|| format!("a pair is missing in {line}"))?;
            pairs.insert(key, value);
        }
        Ok(pairs)
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Fails if it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn check_moments(
    setup: &Setup,
    backup: &Backup,
    written: &[u64],
    prng: &mut Prng,
    report: &mut Report,
) -> Result<()> {
    let mut moments = backup.list()?;
    report.record("moments", moments.len());
    let mut chosen: Vec<u64> = moments.pop().into_iter().collect();
    while chosen.len() < setup.rounds(FULL_MOMENTS, SHORT_MOMENTS) as usize && !moments.is_empty() {
        chosen.push(moments.remove(prng.below(moments.len() as u64) as usize));
    }
    chosen.sort_unstable();
    let mut before = vec![0; written.len()];
    for moment in &chosen {
        let dir = setup.work().join(format!("restored-{moment}"));
        let pairs = backup.restore(*moment, &dir).with_context(|| format!("moment {moment}"))?;
        for (writer, most) in written.iter().enumerate() {
            let found = writes_in(&pairs, writer, *most);
            let found = found.with_context(|| format!("moment {moment}, writer {writer}"))?;
            report.require(
                found >= before[writer],
                format!("moment {moment} has the writes of writer {writer} of the one before"),
            );
            before[writer] = found;
        }
        std::fs::remove_dir_all(&dir)?;
    }
    report.record("restored", chosen);
    report.require(before == written, "the last moment has all writes");
    let verified =
        backup.command(&["backup", "verify", "--deep", "--to"]).arg(&backup.to).output()?;
    report.require(verified.status.success(), "no object is missing or damaged");
    Ok(())
}

/// Returns the number of a writer's writes that the pairs have. Fails unless they are a beginning of them.
fn writes_in(pairs: &Pairs, writer: usize, most: u64) -> Result<u64> {
    let suffix = format!("/{writer}");
    let own = pairs.iter().filter(|(key, _)| key.ends_with(&suffix));
    let found: Pairs = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    let (mut model, mut last) = (Pairs::new(), None);
    for number in 0..=most {
        last = if model == found { Some(number) } else { last };
        match value(number) {
            Some(value) => drop(model.insert(key(writer, number), value)),
            None => drop(model.remove(&key(writer, number))),
        }
    }
    last.context("the pairs are not a beginning of what was written")
}
