//! Backups of a node of which garbage collection has rewritten the files: pairs that lie in sorted files, and a log
//! that is gone.

use crate::common::{Ran, run};
use crate::copy::{self, copied};
use crate::node_process::{Node, until};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stele_backup::format::{ChunkName, RunId};
use stele_backup::{OpenOptions, Repository};
use stele_client::{Client, PutPair, ScanOptions, Ttl};
use stele_types::{ColumnFamily, KeyRange, is_expired};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;
/// Sorts all pairs each second, and keeps no segment for readers: one has 128 MiB.
const FLAGS: [&str; 6] =
    ["--memtable-bytes-max", "1MiB", "--sort-interval-s", "1", "--pin-bytes-max", "1MiB"];

type Pairs = BTreeMap<Bytes, Bytes>;

fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A node, and a backup of it.
struct Source {
    root: tempfile::TempDir,
    node: Node,
    runtime: Runtime,
    client: Client,
}

impl Source {
    fn start() -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        let node = Node::start(&root.path().join("node"), "127.0.0.1:0", &FLAGS);
        let client = runtime.block_on(Client::connect(&[&node.address])).unwrap();
        Self { root, node, runtime, client }
    }

    fn place(&self) -> PathBuf {
        self.root.path().join("backup")
    }

    /// Runs a command; `@` stands for the node and `%` for the backup.
    fn run(&self, line: &str) -> Ran {
        let line = line.replace('@', &self.node.address);
        run(Path::new(""), &line.replace('%', self.place().to_str().unwrap()))
    }

    /// Backs up until a moment can be restored. Returns its number, and what was printed.
    fn backup(&self, options: &str) -> (u64, Ran) {
        let line = format!("backup --cluster @ --to % {options}");
        let ran = self.run(line.trim_end()).ok();
        let number = ran.text().strip_prefix("moment ").unwrap().split(' ').next().unwrap();
        (number.parse().unwrap(), ran)
    }

    /// Returns the files of the log with an extension.
    fn files(&self, extension: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.root.path().join("node/log")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(extension)).collect()
    }

    /// Waits until there is a sorted file besides those.
    fn until_sorted(&self, besides: &BTreeSet<String>) {
        let began = Instant::now();
        loop {
            let files = self.files(".val");
            if files.difference(besides).next().is_some() {
                return;
            }
            assert!(began.elapsed() < LIMIT, "nothing was sorted: {files:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    async fn repository(&self) -> Repository {
        let place = self.place();
        Repository::open(place.to_str().unwrap(), &OpenOptions::default()).await.unwrap()
    }

    /// Restores a moment into a new node, and returns what `read` reads there.
    fn restored<T>(&self, moment: u64, read: impl AsyncFn(&Client) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&dir.path().join("node"), "127.0.0.1:0", &[]);
        until(dir.path(), &format!("count --cluster {}", node.address), |it| it.trim() == "0");
        self.run(&format!("restore --from % --moment {moment} --cluster {}", node.address)).ok();
        self.runtime.block_on(async {
            let client = Client::connect(&[&node.address]).await.unwrap();
            read(&client).await
        })
    }
}

async fn scanned(client: &Client) -> Pairs {
    let pairs = client.scan(KeyRange::all(), ScanOptions::default()).collect().await.unwrap();
    pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

/// Returns the pairs of a family that have not expired, with their expiry.
async fn unexpired(client: &Client, family: ColumnFamily) -> copy::Pairs {
    let mut pairs = copied(client, family, async |_| ()).await.0;
    pairs.retain(|_, (_, expires_at_s)| !is_expired(*expires_at_s, now_s()));
    pairs
}

fn key(number: u32) -> Bytes {
    Bytes::from(format!("key{number:05}"))
}

/// Value of a size that makes pairs of all kinds: in the index, in memory, above a page.
fn value(number: u32, version: u8) -> Bytes {
    let bytes = match number % 100 {
        0 => 200_000,
        1..=9 => 20,
        _ => 16_000,
    };
    Bytes::from(vec![version; bytes])
}

/// Puts every `step`th key. Of these some live long, and others for a second.
async fn put(client: &Client, model: &mut Pairs, step: usize, version: u8) {
    let mut pairs = Vec::new();
    for number in (0..4_000).step_by(step) {
        let (key, value) = (key(number), value(number, version));
        let ttl = match (number + u32::from(version)) % 7 {
            0 => Ttl::Seconds(100_000),
            1 => Ttl::Seconds(1),
            _ => Ttl::Endless,
        };
        match ttl {
            Ttl::Seconds(1) => drop(model.remove(&key)),
            _ => drop(model.insert(key.clone(), value.clone())),
        }
        pairs.push(PutPair { key, value, ttl });
    }
    client.batch_put(pairs).await.unwrap();
}

/// Backs up, and compares what is restored with the model and with the source.
fn compare(source: &Source, model: &Pairs) -> u64 {
    // What lives for a second has expired everywhere.
    std::thread::sleep(Duration::from_millis(2_100));
    let (moment, ran) = source.backup("--base-every 1s");
    assert!(ran.err.contains("is complete"), "a new base: {ran:?}");
    let families = [ColumnFamily::Default, ColumnFamily::Lock];
    let of = async |client: &Client| {
        let [default, lock] = families;
        (unexpired(client, default).await, unexpired(client, lock).await)
    };
    let (expected, restored) =
        (source.runtime.block_on(of(&source.client)), source.restored(moment, of));
    let values = |pairs: &copy::Pairs| -> Pairs {
        pairs.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    };
    assert!(values(&restored.0) == *model, "the pairs differ from the model");
    assert!(restored == expected, "values or expiries differ from those of the source");
    let long = restored.0.values().filter(|(_, expires_at_s)| *expires_at_s > now_s()).count();
    assert!(long > 100, "{long} pairs with an expiry");
    moment
}

#[test]
fn a_backup_of_sorted_pairs_is_restored_as_they_are() {
    let source = Source::start();
    let mut model = Pairs::new();
    source.runtime.block_on(async {
        put(&source.client, &mut model, 1, 1).await;
        source.client.family(ColumnFamily::Lock).put("lock", "other").await.unwrap();
    });
    source.until_sorted(&BTreeSet::new());
    let first_model = model.clone();
    let first = compare(&source, &model);
    // Overwritten, deleted and expired beside what is sorted, and then sorted again.
    source.runtime.block_on(async {
        put(&source.client, &mut model, 3, 2).await;
        source.client.delete_range(KeyRange::new(key(1_000), key(1_200))).await.unwrap();
        model.retain(|at, _| !(key(1_000)..key(1_200)).contains(at));
        for number in (2_000..3_000).step_by(11) {
            source.client.delete(key(number)).await.unwrap();
            model.remove(&key(number));
        }
    });
    compare(&source, &model);
    let sorted = source.files(".val");
    source.runtime.block_on(put(&source.client, &mut model, 1, 3));
    source.until_sorted(&sorted);
    compare(&source, &model);
    source.run("backup verify --deep --to %").ok();
    // The log since the first base has the rest.
    let restored =
        source.restored(first, async |client| unexpired(client, ColumnFamily::Default).await);
    let restored: Pairs = restored.into_iter().map(|(key, (value, _))| (key, value)).collect();
    assert!(restored == first_model, "the first moment");
    source.node.stop();
}

/// Overwrites some keys until the first segment of the log is gone.
async fn until_the_log_is_gone(source: &Source, model: &mut Pairs) {
    let first = source.files(".seg").into_iter().next().unwrap();
    let (began, mut written) = (Instant::now(), 0);
    for round in 0u8.. {
        for number in 0..8 {
            let (key, value) = (Bytes::from(format!("z{number}")), vec![round; MIB]);
            source.client.put(key.clone(), value.clone()).await.unwrap();
            model.insert(key, value.into());
            written += MIB;
        }
        if !source.files(".seg").contains(&first) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{written} bytes: {:?}", source.files(""));
        if written > 150 * MIB {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Returns the names of the chunks of a run's bases.
async fn chunks(repository: &Repository, run: u64) -> BTreeSet<ChunkName> {
    let mut names = BTreeSet::new();
    for base in repository.bases(RunId(run)).await.unwrap() {
        let base = repository.base(base.name).await.unwrap();
        names.extend(base.chunks().map(|chunk| chunk.name));
    }
    names
}

#[test]
fn a_backup_that_was_away_for_too_long_begins_a_new_run_and_both_are_restored() {
    let source = Source::start();
    let mut model = Pairs::new();
    source.runtime.block_on(async {
        let old = (0..4_000).map(|n| PutPair::new(format!("old{n:05}"), vec![n as u8; 2_000]));
        let old: Vec<PutPair> = old.collect();
        model.extend(old.iter().map(|pair| (pair.key.clone(), pair.value.clone())));
        source.client.batch_put(old).await.unwrap();
    });
    let (first, ran) = source.backup("");
    assert!(ran.text().contains("run 1,"), "{ran:?}");
    let mut models = vec![(first, model.clone())];
    source.runtime.block_on(until_the_log_is_gone(&source, &mut model));
    let (second, ran) = source.backup("");
    assert!(ran.err.contains("run 1 goes on"), "{ran:?}");
    assert!(ran.err.contains("a new run begins, with a new base"), "{ran:?}");
    assert!(ran.text().contains("run 2,"), "{ran:?}");
    models.push((second, model.clone()));
    source.runtime.block_on(async {
        source.client.put("after", "1").await.unwrap();
        model.insert(Bytes::from("after"), Bytes::from("1"));
        let repository = source.repository().await;
        let (old, new) = (chunks(&repository, 1).await, chunks(&repository, 2).await);
        assert!(old.intersection(&new).count() > 1, "{} and {} chunks", old.len(), new.len());
    });
    let (third, ran) = source.backup("");
    assert!(ran.err.contains("run 2 goes on") && !ran.err.contains("begins"), "{ran:?}");
    models.push((third, model));
    for (moment, model) in &models {
        assert!(source.restored(*moment, scanned) == *model, "moment {moment}");
    }
    source.run("backup verify --deep --to %").ok();

    // A prune deletes the former run as a whole, and no chunk that the new one has too.
    source.run(&format!("backup prune --to % --keep-from {second}")).ok();
    source.run("backup verify --deep --to %").ok();
    let listed = source.run("backup list --to % --json").ok();
    assert_eq!(listed.text().lines().count(), 2, "{listed:?}");
    let gone = source.run(&format!("restore --from % --moment {first}"));
    assert_ne!(gone.code, 0, "{gone:?}");
    source.runtime.block_on(async {
        let repository = source.repository().await;
        assert_eq!(repository.runs().await.unwrap(), [RunId(2)]);
    });
    let (moment, model) = &models[1];
    assert!(source.restored(*moment, scanned) == *model, "the kept moment");
    source.node.stop();
}
