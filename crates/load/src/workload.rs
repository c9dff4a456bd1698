//! Mixes of operations: the core workloads of YCSB, shares of updates (Nezha, figure 8), shares of
//! scans. The choice of the record for an operation is YCSB's too (Cooper et al., Benchmarking
//! Cloud Serving Systems with YCSB, 2010, section 4). Records have keys of a fixed length and
//! incompressible values.

use crate::args::{Distribution, Load, Workload};
use crate::latency::Kind;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::Prng;

/// Next operation of a client.
pub struct Step {
    /// Its operations are all of this kind.
    pub kind: Kind,
    /// One key, or the keys of a batch of writes.
    pub keys: Vec<Vec<u8>>,
    /// Number of pairs to scan.
    pub scan_length: usize,
    inserted: u64,
}

/// Mix of operations, and the number of records inserted so far.
pub struct Mix {
    shares: Vec<(Kind, u64)>,
    records: Arc<Records>,
    choice: Choice,
    batch: u64,
    deletes_percent: u64,
    scan_length_max: u64,
    next_insert: AtomicU64,
    inserted: Inserted,
    /// Bytes of keys and values of all writes.
    pub payload_bytes: AtomicU64,
    /// Bytes of keys and values that scans returned, and of values that reads found.
    pub read_bytes: AtomicU64,
    /// Reads of keys that do not exist.
    pub not_found: AtomicU64,
}

fn shares(workload: Workload) -> Vec<(Kind, u64)> {
    let reads_and = |kind, percent| vec![(kind, percent), (Kind::Read, 100 - percent)];
    let scans = |percent| vec![(Kind::Scan, percent), (Kind::Update, 100 - percent)];
    match workload {
        Workload::Load => vec![(Kind::Insert, 100)],
        Workload::Update => vec![(Kind::Update, 100)],
        Workload::A | Workload::W50 => reads_and(Kind::Update, 50),
        Workload::B => reads_and(Kind::Update, 5),
        Workload::C => vec![(Kind::Read, 100)],
        Workload::D => reads_and(Kind::Insert, 5),
        Workload::E => vec![(Kind::Scan, 95), (Kind::Insert, 5)],
        Workload::F => reads_and(Kind::ReadModifyWrite, 50),
        Workload::W90 => reads_and(Kind::Update, 90),
        Workload::W70 => reads_and(Kind::Update, 70),
        Workload::W30 => reads_and(Kind::Update, 30),
        Workload::W10 => reads_and(Kind::Update, 10),
        Workload::S90 => scans(90),
        Workload::S70 => scans(70),
        Workload::S50 => scans(50),
        Workload::S30 => scans(30),
        Workload::S10 => scans(10),
    }
}

impl Mix {
    /// Creates the mix. Writes form batches only in a workload of writes. Each round of a load
    /// inserts other records.
    pub fn new(
        load: &Load,
        records: Arc<Records>,
        workload: Workload,
        batch: u64,
        round: u64,
    ) -> Self {
        let there = load.records * if workload == Workload::Load { round } else { 1 };
        let choice = match workload {
            // A load chooses no records, and preparing a distribution takes time.
            Workload::Load => Choice::Uniform,
            _ => Choice::new(load),
        };
        let only_writes = matches!(workload, Workload::Load | Workload::Update);
        Self {
            shares: shares(workload),
            records,
            choice,
            batch: if only_writes { batch } else { 1 },
            deletes_percent: if workload == Workload::Load { 0 } else { load.deletes },
            scan_length_max: load.scan_length_max,
            next_insert: AtomicU64::new(there),
            inserted: Inserted::new(there),
            payload_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
        }
    }

    /// Returns the maximum number of operations in a step.
    pub fn step_operations(&self) -> u64 {
        self.batch
    }

    /// Draws a step of at most `operations` operations.
    pub fn draw(&self, operations: u64, prng: &mut Prng) -> Step {
        let kind = self.kind(prng);
        let mut step = Step { kind, keys: Vec::new(), scan_length: 0, inserted: 0 };
        match kind {
            Kind::Insert => {
                let first = self.next_insert.fetch_add(operations, Relaxed);
                step.keys = (first..first + operations).map(|i| self.records.key(i)).collect();
                step.inserted = first + operations;
            }
            Kind::Update => step.keys = (0..operations).map(|_| self.chosen_key(prng)).collect(),
            _ => step.keys = vec![self.chosen_key(prng)],
        }
        if kind == Kind::Scan {
            step.scan_length = 1 + prng.below(self.scan_length_max) as usize;
        }
        step
    }

    fn kind(&self, prng: &mut Prng) -> Kind {
        let mut percent = prng.below(100);
        for &(kind, share) in &self.shares {
            if percent >= share {
                percent -= share;
            } else if kind == Kind::Update && prng.below(100) < self.deletes_percent {
                return Kind::Delete;
            } else {
                return kind;
            }
        }
        Kind::Read
    }

    fn chosen_key(&self, prng: &mut Prng) -> Vec<u8> {
        self.records.key(self.choice.draw(prng, self.inserted.all_below()))
    }

    /// Returns a value to write.
    pub fn value(&self, prng: &mut Prng) -> Bytes {
        self.records.value(prng)
    }

    /// Counts the writes of a step.
    pub fn wrote(&self, step: &Step) {
        let records = step.keys.len() as u64;
        self.payload_bytes.fetch_add(records * self.records.record_bytes(), Relaxed);
        if step.inserted > 0 {
            self.inserted.note(step.inserted - records, step.inserted);
        }
    }

    /// Counts the result of a read.
    pub fn read(&self, value_bytes: Option<u64>) {
        match value_bytes {
            Some(bytes) => self.read_bytes.fetch_add(bytes, Relaxed),
            None => self.not_found.fetch_add(1, Relaxed),
        };
    }
}

/// Records that are inserted, by several threads: only those below every unfinished insert are read.
struct Inserted {
    all_below: AtomicU64,
    /// Begin and end of finished inserts above an unfinished one.
    beyond: Mutex<BTreeMap<u64, u64>>,
}

impl Inserted {
    /// Finished inserts that wait for an earlier one, at most: an insert that failed never finishes.
    const BEYOND_MAX: usize = 1 << 12;

    fn new(all_below: u64) -> Self {
        Self { all_below: AtomicU64::new(all_below), beyond: Mutex::default() }
    }

    fn all_below(&self) -> u64 {
        self.all_below.load(Relaxed)
    }

    /// Notes that the records from `begin` to `end`, exclusive, are inserted.
    fn note(&self, begin: u64, end: u64) {
        let mut beyond = self.beyond.lock();
        beyond.insert(begin, end);
        let mut all_below = self.all_below();
        while let Some((&first, &end)) = beyond.first_key_value()
            && (first <= all_below || beyond.len() > Self::BEYOND_MAX)
        {
            all_below = end;
            beyond.pop_first();
        }
        self.all_below.store(all_below, Relaxed);
    }
}

/// Mixes the bits of a number, one to one (the output function of splitmix64).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the requested distribution, or else that of the workload.
pub fn distribution(load: &Load) -> Distribution {
    load.distribution.unwrap_or(match load.workload {
        Workload::D => Distribution::Latest,
        Workload::Load | Workload::Update => Distribution::Uniform,
        _ => Distribution::Zipfian,
    })
}

/// Rule that chooses among the existing records.
#[derive(Clone, Debug)]
pub enum Choice {
    /// All with the same probability.
    Uniform,
    /// Few much more often, scattered over the key space.
    Zipfian(Zipf),
    /// Recently inserted ones more often.
    Latest(Zipf),
    /// Shares, from 0 to 1, of the records that are hot and of the operations on them.
    Hotspot {
        /// Hot share of the records.
        records: f64,
        /// Share of the operations on them.
        operations: f64,
    },
}

impl Choice {
    /// Returns the rule of a load.
    pub fn new(load: &Load) -> Self {
        match distribution(load) {
            Distribution::Uniform => Self::Uniform,
            Distribution::Zipfian => Self::Zipfian(Zipf::new(load.records)),
            Distribution::Latest => Self::Latest(Zipf::new(load.records)),
            Distribution::Hotspot => {
                Self::Hotspot { records: load.hot_records, operations: load.hot_operations }
            }
        }
    }

    /// Draws one of the records 0..`records`.
    pub fn draw(&self, prng: &mut Prng, records: u64) -> u64 {
        let drawn = match self {
            Self::Uniform => prng.below(records),
            // Popular records are scattered over the key space.
            Self::Zipfian(zipf) => mix(zipf.rank(prng)) % records.max(1),
            Self::Latest(zipf) => records.saturating_sub(1).saturating_sub(zipf.rank(prng)),
            Self::Hotspot { records: share, operations } => {
                let hot = ((records as f64 * share) as u64).clamp(1, records.max(1));
                if prng.unit() < *operations {
                    prng.below(hot)
                } else {
                    hot + prng.below(records.saturating_sub(hot))
                }
            }
        };
        drawn.min(records.saturating_sub(1))
    }
}

/// Generator of ranks by Zipf's law with θ = 0.99 (Gray et al., Quickly Generating Billion-Record
/// Synthetic Databases, 1994, section 3.2).
#[derive(Clone, Debug)]
pub struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    /// Creates the distribution over ranks below `items`.
    pub fn new(items: u64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let zeta = zeta_of(items);
        let n = items as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        Self { items: n, zeta, eta }
    }

    /// Draws a rank; 0 is the most popular.
    pub fn rank(&self, prng: &mut Prng) -> u64 {
        let u = prng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let alpha = 1.0 / (1.0 - THETA);
        let rank = self.items * (self.eta * u - self.eta + 1.0).powf(alpha);
        (rank as u64).min(self.items as u64 - 1)
    }
}

/// Generator of keys and values, determined by the seed.
pub struct Records {
    key_bytes: usize,
    value_bytes: usize,
    ordered: bool,
    noise: Bytes,
}

/// Bytes of noise in addition to one value; values are slices at random offsets.
const NOISE_BYTES: usize = 1 << 20;

impl Records {
    /// Returns the records of a load.
    pub fn new(load: &Load) -> Self {
        Self::with(load.key_bytes, load.value_bytes, load.ordered, load.seed)
    }

    /// Returns records of these lengths, in key order or scattered.
    pub fn with(key_bytes: u64, value_bytes: u64, ordered: bool, seed: u64) -> Self {
        let (key_bytes, value_bytes) = (key_bytes as usize, value_bytes as usize);
        let mut prng = Prng::new(seed ^ 0x6e6f_6973_6500);
        let words = (value_bytes + NOISE_BYTES) / 8 + 1;
        let noise = (0..words).flat_map(|_| prng.draw().to_le_bytes()).collect::<Vec<u8>>();
        Self { key_bytes, value_bytes, ordered, noise: noise.into() }
    }

    /// Returns the key of record `index`: eight bytes unique to the record, then padding.
    pub fn key(&self, index: u64) -> Vec<u8> {
        // `mix` is one to one, so no two records share a key.
        let number = if self.ordered { index } else { mix(index) };
        let mut key = number.to_be_bytes().to_vec();
        key.resize(self.key_bytes, b'.');
        key
    }

    /// Returns a value without copying it: a copy would be measured as work of the generator.
    pub fn value(&self, prng: &mut Prng) -> Bytes {
        let at = prng.below(NOISE_BYTES as u64) as usize;
        self.noise.slice(at..at + self.value_bytes)
    }

    /// Returns the bytes of one record, key and value.
    pub fn record_bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn shares_of_every_workload_are_whole() {
        for workload in Workload::value_variants() {
            let whole: u64 = shares(*workload).iter().map(|(_, percent)| percent).sum();
            assert_eq!(whole, 100, "{workload:?}");
        }
    }

    #[test]
    fn only_records_below_every_unfinished_insert_are_read() {
        let inserted = Inserted::new(10);
        inserted.note(12, 14);
        assert_eq!(inserted.all_below(), 10);
        inserted.note(10, 12);
        assert_eq!(inserted.all_below(), 14);
        // The insert of record 14 fails.
        (0..5_000).for_each(|at| inserted.note(15 + at, 16 + at));
        assert!(inserted.all_below() > 900, "{}", inserted.all_below());
        assert!(inserted.beyond.lock().len() <= Inserted::BEYOND_MAX);
    }

    fn share_of_top(choice: &Choice, records: u64, top: usize) -> f64 {
        let mut prng = Prng::new(7);
        let mut counts = vec![0u64; records as usize];
        for _ in 0..100_000 {
            counts[choice.draw(&mut prng, records) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts[..top].iter().sum::<u64>() as f64 / 100_000.0
    }

    #[test]
    fn distributions_have_their_shape() {
        let zipf = share_of_top(&Choice::Zipfian(Zipf::new(1000)), 1000, 100);
        assert!((0.55..0.8).contains(&zipf), "top tenth of zipfian takes {zipf}");
        let uniform = share_of_top(&Choice::Uniform, 1000, 100);
        assert!(uniform < 0.15, "top tenth of uniform takes {uniform}");
        let hot = Choice::Hotspot { records: 0.2, operations: 0.8 };
        let hot = share_of_top(&hot, 1000, 200);
        assert!((0.78..0.84).contains(&hot), "hot fifth takes {hot}");
    }

    #[test]
    fn latest_prefers_the_newest_and_stays_inside() {
        let choice = Choice::Latest(Zipf::new(1000));
        let mut prng = Prng::new(3);
        let drawn: Vec<u64> = (0..1000).map(|_| choice.draw(&mut prng, 1500)).collect();
        assert!(drawn.iter().all(|&record| record < 1500));
        assert!(drawn.iter().filter(|&&record| record >= 1490).count() > 300);
        assert_eq!(choice.draw(&mut prng, 1), 0);
    }
}
