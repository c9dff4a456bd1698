//! The same history under many configurations: random operation lists against a model, under
//! random segment, memtable, cache, policy and budget settings. A failure is shrunk to a short list.
//!
//! `STELE_SEED=n` replays one history; `STELE_HISTORIES=n` runs n of them.

use crate::common::{DIR, Random, disk};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{
    Batch, Db, DbIter, GcOptions, KeyRange, Options, Order, PolicyKind, ScanOptions,
};
use stele_simulated_disk::SimVfs;
use stele_types::ManualClock;

const HISTORIES: u64 = 60;
const OPS: usize = 250;

#[derive(Clone, Debug)]
enum Op {
    Put { key: Vec<u8>, bytes: usize, ttl_s: u64 },
    Delete { key: Vec<u8> },
    DeleteRange { start: Vec<u8>, end: Vec<u8> },
    Batch(Vec<(Vec<u8>, Option<usize>)>),
    Flush,
    Maintain(u64),
    Compact,
    Reopen,
    Crash(u64),
    Advance(u64),
    Open(Order),
    Scan { range: (Vec<u8>, Vec<u8>), limit: usize, order: Order, keys_only: bool },
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;
type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn key(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => Vec::new(),
        1 => vec![0xff; 3],
        2 => vec![b'k'; 300],
        n => format!("key{:02}", n * random.below(3)).into_bytes(),
    }
}

fn size(random: &mut Random) -> usize {
    random.pick(&[0, 1, 20, 64, 65, 66, 150, 400, 400, 1500, 1500, 5000, 30_000])
}

fn op(random: &mut Random) -> Op {
    match random.below(100) {
        0..=49 => {
            let ttl_s = if random.below(8) == 0 { 1 + random.below(50) } else { 0 };
            Op::Put { key: key(random), bytes: size(random), ttl_s }
        }
        50..=59 => Op::Delete { key: key(random) },
        60..=62 => {
            let (a, b) = (key(random), key(random));
            Op::DeleteRange { start: a.clone().min(b.clone()), end: a.max(b) }
        }
        63..=68 => {
            let pairs = (0..random.below(6))
                .map(|_| (key(random), (random.below(4) > 0).then(|| size(random))));
            Op::Batch(pairs.collect())
        }
        69..=73 => Op::Flush,
        74..=84 => Op::Maintain(random.pick(&[1, 1000, 20_000, 200_000])),
        85..=86 => Op::Compact,
        87..=88 => Op::Reopen,
        89..=90 => Op::Crash(random.next()),
        91..=92 => Op::Advance(random.below(30)),
        93..=94 => Op::Open(random.pick(&[Order::Forward, Order::Reverse])),
        _ => {
            let (a, b) = (key(random), key(random));
            let order = random.pick(&[Order::Forward, Order::Reverse]);
            let limit = random.pick(&[0, 1, 3, 1000]);
            let keys_only = random.below(2) == 0;
            Op::Scan { range: (a.clone().min(b.clone()), a.max(b)), limit, order, keys_only }
        }
    }
}

fn options(random: &mut Random) -> Options {
    let policies = [PolicyKind::Adaptive, PolicyKind::Nezha, PolicyKind::Wisckey];
    Options {
        segment_bytes_max: random.pick(&[64 << 10, 128 << 10, 1 << 20]),
        recycle_segments_max: random.pick(&[0, 1, 3]),
        direct_io: random.below(2) == 0,
        entry_cache_bytes_max: random.pick(&[0, 4 << 10, 1 << 20]),
        value_cache_bytes_max: random.pick(&[0, 128 << 10]),
        inline_value_bytes_max: random.pick(&[0, 16, 64]),
        memtable_bytes_max: random.pick(&[4 << 10, 16 << 10, 1 << 20]),
        block_cache_bytes_max: random.pick(&[0, 16 << 10, 1 << 20]),
        index_memory_bytes_max: random.pick(&[0, 4 << 10, 64 << 20]),
        run_bytes_max: random.pick(&[4 << 10, 64 << 10]),
        checkpoint_log_bytes_max: random.pick(&[64 << 10, 1 << 20]),
        reserved_bytes: 0,
        background: false,
        gc: GcOptions {
            policy: random.pick(&policies),
            budget_ratio: random.pick(&[0.0, 0.25, 5.0]),
            space_amp_target: random.pick(&[1.1, 2.0]),
            tiers_max: random.pick(&[1, 2, 8]),
            discover_bytes_min: random.pick(&[0, 10_000, 1 << 20]),
            value_file_bytes_max: random.pick(&[8 << 10, 1 << 20]),
            sort_threshold_bytes: random.pick(&[10_000, 1 << 20]),
            scan_load_ratio: random.pick(&[0.0, 1.0]),
            space_slack_bytes: random.pick(&[0, 0, 0, 200_000]),
            ..GcOptions::default()
        },
        ..Options::default()
    }
}

struct Run {
    disk: SimVfs,
    clock: Arc<ManualClock>,
    options: Options,
    db: Option<Db>,
    model: Model,
    now_s: u64,
    /// An open iterator and the pairs it has yet to yield.
    held: Option<(DbIter, Pairs)>,
    writes: u64,
}

impl Run {
    fn new(seed: u64, options: Options) -> Self {
        let clock = Arc::new(ManualClock::at(1000));
        let (disk, model) = (disk(seed), Model::new());
        let mut run =
            Self { disk, clock, options, db: None, model, now_s: 1000, held: None, writes: 0 };
        run.open();
        run
    }

    fn open(&mut self) {
        let vfs = Arc::new(self.disk.clone());
        let db = Db::open_with(vfs, self.clock.clone(), Path::new(DIR), self.options.clone());
        self.db = Some(db.unwrap());
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn value(&mut self, bytes: usize) -> Vec<u8> {
        self.writes += 1;
        Random(self.writes).bytes(bytes)
    }

    fn living(&self) -> Pairs {
        let lives = |expires: u64| expires == 0 || expires > self.now_s;
        let pairs = self.model.iter().filter(|(_, (_, expires))| lives(*expires));
        pairs.map(|(key, (value, _))| (key.clone(), value.clone())).collect()
    }

    fn end_held(&mut self) {
        if let Some((iter, expected)) = self.held.take() {
            let found: Vec<_> =
                iter.map(|p| p.unwrap()).map(|p| (p.key.to_vec(), p.value.to_vec())).collect();
            assert!(found == expected, "an iterator saw a write made after it was opened");
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put { key, bytes, ttl_s } => {
                let value = self.value(*bytes);
                self.db().put_ttl(key, &value, *ttl_s).unwrap();
                let expires = if *ttl_s == 0 { 0 } else { self.now_s + ttl_s };
                self.model.insert(key.clone(), (value, expires));
            }
            Op::Delete { key } => {
                self.db().delete(key).unwrap();
                self.model.remove(key);
            }
            Op::DeleteRange { start, end } => {
                self.db().delete_range(start, end).unwrap();
                let range = KeyRange::new(start.clone(), end.clone());
                self.model.retain(|key, _| !range.contains(key));
            }
            Op::Batch(pairs) => self.batch(pairs),
            Op::Flush => self.db().flush().unwrap(),
            Op::Maintain(bytes) => drop(self.db().maintain(*bytes).unwrap()),
            Op::Compact => self.db().compact().unwrap(),
            Op::Reopen => {
                self.end_held();
                self.db.take().unwrap().close().unwrap();
                self.open();
            }
            Op::Crash(seed) => {
                self.held = None;
                self.db = None;
                self.disk = self.disk.restart(*seed);
                self.open();
            }
            Op::Advance(seconds) => {
                self.clock.advance_seconds(*seconds);
                self.now_s += seconds;
            }
            Op::Open(order) => {
                self.end_held();
                let mut expected = self.living();
                if *order == Order::Reverse {
                    expected.reverse();
                }
                self.held = Some((self.db().iter(KeyRange::all(), *order).unwrap(), expected));
            }
            Op::Scan { range, limit, order, keys_only } => {
                self.scan(range, *limit, *order, *keys_only);
            }
        }
    }

    fn batch(&mut self, pairs: &[(Vec<u8>, Option<usize>)]) {
        let mut batch = Batch::new();
        for (key, bytes) in pairs {
            match bytes {
                Some(bytes) => {
                    let value = self.value(*bytes);
                    batch.put(key, &value).unwrap();
                    self.model.insert(key.clone(), (value, 0));
                }
                None => {
                    batch.delete(key).unwrap();
                    self.model.remove(key);
                }
            }
        }
        self.db().write(batch).unwrap();
    }

    fn scan(&self, range: &(Vec<u8>, Vec<u8>), limit: usize, order: Order, keys_only: bool) {
        let range = KeyRange::new(range.0.clone(), range.1.clone());
        let mut expected: Vec<_> =
            self.living().into_iter().filter(|(key, _)| range.contains(key)).collect();
        if order == Order::Reverse {
            expected.reverse();
        }
        expected.truncate(limit);
        let options = ScanOptions { order, keys_only, ..ScanOptions::new(range, limit) };
        let found = self.db().scan(&options).unwrap();
        assert_eq!(found.len(), expected.len(), "a scan found another number of pairs");
        for (pair, (key, value)) in found.iter().zip(&expected) {
            assert_eq!(pair.key, key, "a scan found another key");
            assert!(keys_only || pair.value == value, "a scan found another value");
        }
    }

    fn check(&self) {
        let expected = self.living();
        let found: Vec<_> = self
            .db()
            .iter(KeyRange::all(), Order::Forward)
            .unwrap()
            .map(|p| p.unwrap())
            .map(|p| (p.key.to_vec(), p.value.to_vec()))
            .collect();
        let keys =
            |pairs: &[(Vec<u8>, Vec<u8>)]| pairs.iter().map(|p| p.0.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&found), keys(&expected), "the keys differ");
        assert!(found == expected, "a value differs");
        for (key, (value, expires)) in &self.model {
            let lives = *expires == 0 || *expires > self.now_s;
            let found = self.db().get(key).unwrap();
            assert_eq!(found.as_deref(), lives.then_some(&value[..]), "a get differs");
            assert_eq!(self.db().exist(&[key]).unwrap(), [lives], "existence differs");
        }
    }
}

/// Runs a history; returns the failure.
fn failure(seed: u64, options: &Options, ops: &[Op]) -> Option<String> {
    let run = || {
        let mut run = Run::new(seed, options.clone());
        for (n, op) in ops.iter().enumerate() {
            run.apply(op);
            if n % 16 == 15 || n + 1 == ops.len() {
                run.check();
            }
        }
        run.end_held();
        run.db().compact().unwrap();
        run.check();
    };
    let panic = std::panic::catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default())
}

/// Removes operations that are not needed for a failure.
fn shrink(seed: u64, options: &Options, mut ops: Vec<Op>) -> Vec<Op> {
    let mut part = ops.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + part).min(ops.len()));
            if failure(seed, options, &fewer).is_some() {
                ops = fewer;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    ops
}

fn history(seed: u64) {
    let mut random = Random(seed);
    let options = options(&mut random);
    let ops: Vec<Op> = (0..OPS).map(|_| op(&mut random)).collect();
    if failure(seed, &options, &ops).is_some() {
        let short = shrink(seed, &options, ops);
        let reason = failure(seed, &options, &short).unwrap_or_default();
        panic!(
            "{reason}\nhistory: {short:#?}\noptions: {options:?}\n\
             replay: STELE_SEED={seed} cargo test -p stele-engine --test all histories"
        );
    }
}

#[test]
fn random_histories_agree_with_the_model_under_every_configuration() {
    let env = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = env("STELE_SEED") {
        return history(seed);
    }
    let histories = env("STELE_HISTORIES").unwrap_or(HISTORIES);
    println!("seeds 0 to {histories}; replay one with STELE_SEED=n");
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= histories {
                        return;
                    }
                    history(seed);
                }
            });
        }
    });
}
