//! Backups of a cluster of three processes while it is written, and while regions split and merge. The process of
//! the backup is killed and continues.

use crate::common::stele;
use crate::moment::Cluster;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stele_backup::format::{Family, LogSeq, Write};
use stele_backup::{OpenOptions, Repository, Restorable};
use stele_client::{Client, PutPair, ScanOptions};
use stele_types::KeyRange;

const LIMIT: Duration = Duration::from_secs(90);
const WRITERS: usize = 2;
const KEYS: usize = 40;

type Pairs = BTreeMap<Bytes, Bytes>;
/// Writes of one writer in their order: a key, and its value or a delete.
type History = Vec<(Bytes, Option<Bytes>)>;

/// Write of a writer. Its keys lie in all regions.
fn write(writer: usize, number: usize) -> (Bytes, Option<Bytes>) {
    let key = Bytes::from(format!("{:02}/{writer}", number * 7 % KEYS));
    let value = (!number.is_multiple_of(3)).then(|| Bytes::from(format!("{number:0900}")));
    (key, value)
}

/// Writes one key after the other, each after the answer to the one before, until `stop`.
fn start_writer(cluster: &Cluster, writer: usize, stop: &Arc<AtomicBool>) -> JoinHandle<History> {
    let (client, stop) = (cluster.client.clone(), stop.clone());
    let handle = cluster.runtime.handle().clone();
    std::thread::spawn(move || {
        let mut history = History::new();
        while !stop.load(Relaxed) {
            let (key, value) = write(writer, history.len());
            let written = match value.clone() {
                Some(value) => handle.block_on(client.put(key.clone(), value)),
                None => handle.block_on(client.delete(key.clone())),
            };
            written.unwrap();
            history.push((key, value));
        }
        history
    })
}

/// Returns the number of writes that a state has of a writer: it must be a beginning of its history.
fn writes_in(state: &Pairs, writer: usize, history: &History) -> usize {
    let suffix = format!("/{writer}");
    let is_own = |key: &Bytes| key.len() == 4 && key.ends_with(suffix.as_bytes());
    let found: Pairs = state
        .iter()
        .filter(|(key, _)| is_own(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let (mut model, mut last) = (Pairs::new(), None);
    for (number, (key, value)) in history.iter().enumerate() {
        last = if model == found { Some(number) } else { last };
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
    last = if model == found { Some(history.len()) } else { last };
    last.unwrap_or_else(|| panic!("writer {writer}: the moment is no beginning of its writes"))
}

/// Returns the pairs of the default family at a moment: those of its base, with the records of its log.
async fn state(repository: &Repository, moment: &Restorable) -> Pairs {
    let mut pairs = Pairs::new();
    let base = moment.base.unwrap();
    let parts = repository.base(base.name).await.unwrap().parts;
    for chunk in parts.iter().filter(|it| it.family == Family::Default).flat_map(|it| &it.chunks) {
        let chunk = repository.chunk(&chunk.name).await.unwrap();
        pairs.extend(chunk.pairs.into_iter().map(|pair| (pair.key, pair.value)));
    }
    for seq in base.log_from.0..=moment.last_log.0 {
        let log = repository.log(moment.run, LogSeq(seq)).await.unwrap();
        for record in log.records.into_iter().filter(|it| it.family == Family::Default) {
            match record.write {
                Write::Put(pair) => drop(pairs.insert(pair.key, pair.value)),
                Write::Delete(key) => drop(pairs.remove(&key)),
                Write::DeleteRange(range) => pairs.retain(|key, _| !range.contains(key)),
            }
        }
    }
    pairs
}

/// A backup as a process, killed when this is dropped.
struct Backup(Child);

impl Backup {
    fn follow(cluster: &Cluster, to: &Path) -> Self {
        let mut backup = stele();
        backup.args([
            "backup",
            "--cluster",
            cluster.address(),
            "--follow",
            "--every",
            "1s",
            "--to",
        ]);
        backup.arg(to).stderr(Stdio::piped()).stdout(Stdio::piped());
        Self(backup.spawn().unwrap())
    }

    /// Sends SIGTERM and returns what it printed.
    fn stop(mut self) -> (String, String) {
        let id = self.0.id().to_string();
        let kill = std::process::Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(kill.unwrap().success());
        let mut texts = [String::new(), String::new()];
        let out = self.0.stdout.take().unwrap();
        let err = self.0.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut { out }, &mut texts[0]).unwrap();
        std::io::Read::read_to_string(&mut { err }, &mut texts[1]).unwrap();
        assert!(self.0.wait().unwrap().success(), "{texts:?}");
        let [out, err] = texts;
        (out, err)
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the backup has more moments that can be restored; returns their number.
fn until_moments(cluster: &Cluster, to: &Path, more_than: usize) -> usize {
    let began = Instant::now();
    loop {
        let listed = cluster.runtime.block_on(async {
            match Repository::open(to.to_str().unwrap(), &OpenOptions::default()).await {
                Ok(repository) => repository.restorable().await.unwrap_or_default().len(),
                Err(_) => 0,
            }
        });
        if listed > more_than {
            return listed;
        }
        assert!(began.elapsed() < LIMIT, "{listed} moments");
        std::thread::sleep(Duration::from_millis(100));
    }
}

async fn scanned(client: &Client) -> Pairs {
    let pairs = client.scan(KeyRange::all(), ScanOptions::default()).collect().await.unwrap();
    pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

#[test]
fn a_backup_is_killed_and_continued_and_its_moments_are_restored() {
    let root = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(root.path());
    let to = root.path().join("backup");
    let old = (0..600).map(|n| PutPair::new(format!("old{n:04}"), vec![n as u8; 2000])).collect();
    cluster.runtime.block_on(cluster.client.batch_put(old)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| start_writer(&cluster, writer, &stop)).collect();
    let backup = Backup::follow(&cluster, &to);
    let (left, right) = cluster.split_at("20/");
    let moments = until_moments(&cluster, &to, 1);
    // SIGKILL.
    drop(backup);
    cluster.run(&format!("ctl --cluster @ merge {right} {left}")).ok();
    let backup = Backup::follow(&cluster, &to);
    until_moments(&cluster, &to, moments + 1);
    cluster.split_at("30/");
    let moments = until_moments(&cluster, &to, moments + 2);
    let (out, err) = backup.stop();
    assert!(err.contains("run 1 goes on") && out.contains("can be restored"), "{out}{err}");
    stop.store(true, Relaxed);
    let histories: Vec<History> = writers.into_iter().map(|it| it.join().unwrap()).collect();

    let once = format!("backup --cluster @ --to {}", to.display());
    let text = cluster.run(&once).ok().text().to_owned();
    assert!(text.contains("run 1,"), "{text}");
    cluster.runtime.block_on(async {
        let place = to.to_str().unwrap();
        let repository = Repository::open(place, &OpenOptions::default()).await.unwrap();
        let all = repository.restorable().await.unwrap();
        assert!(all.len() > moments);
        let mut before = vec![0; WRITERS];
        for moment in &all {
            let state = state(&repository, moment).await;
            assert_eq!(state.keys().filter(|key| key.starts_with(b"old")).count(), 600);
            // A node that leads no region may answer after the cut is complete.
            assert!((1..=3).contains(&moment.clocks_unix_ms.len()), "{moment:?}");
            for (writer, history) in histories.iter().enumerate() {
                let writes = writes_in(&state, writer, history);
                assert!(writes >= before[writer], "a later moment has less");
                before[writer] = writes;
            }
        }
        let lengths: Vec<usize> = histories.iter().map(Vec::len).collect();
        assert_eq!(before, lengths, "the last moment has all writes");
        assert!(lengths.iter().all(|writes| *writes > 4 * KEYS), "{lengths:?}");
        let last = all.last().unwrap();
        assert_eq!(state(&repository, last).await, scanned(&cluster.client).await);
    });
    let store = root.path().join("store");
    let line = format!("restore --from {} --store {}", to.display(), store.display());
    cluster.run(&line).ok();
    let counted = cluster.run(&format!("count --store {}", store.display())).ok();
    let count = cluster.runtime.block_on(scanned(&cluster.client)).len();
    assert_eq!(counted.text().trim(), count.to_string());
    let verified = cluster.run(&format!("backup verify --deep --to {}", to.display()));
    assert_eq!(verified.code, 0, "{verified:?}");
}
