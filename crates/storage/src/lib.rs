//! What consensus asks of a storage engine: durable log batches in, committed entries applied,
//! consistent views out. The product's engine keeps locators, a baseline may keep bytes: every
//! applied entry carries both (XLL section 3, Nezha section III-B).
//!
//! Order of laws: applied ≤ committed; applied ≤ locally persisted; checkpointed ≤ applied;
//! truncated ≤ checkpointed.

pub mod conformance;
mod model;
mod recoverable_log;
mod stats;

pub use model::{ModelEngine, ModelFactory, ModelIngest, ModelView};
pub use recoverable_log::{LostEntry, RecoverableLog};
pub use stats::EngineStats;

use bytes::Bytes;
use stele_types::{
    Appended, CommittedEntry, Error, HardState, KeyRange, LogBatch, LogIndex, RegionId, Result,
    Term, checksum,
};

/// How far a region has come on this store. Each field is at most the one named after it, save
/// that `applied` may pass nothing that is not persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Entries up to here are gone from the log (index and term), or were never here.
    pub truncated: (LogIndex, Term),
    /// Effects up to here survive a crash without the log.
    pub checkpointed: LogIndex,
    /// Effects up to here are visible.
    pub applied: LogIndex,
    /// Entries up to here are durable (index and term).
    pub persisted: (LogIndex, Term),
    /// The last durable hard state.
    pub hard_state: HardState,
    /// The region left this store; its log takes no more entries.
    pub destroyed: bool,
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// One pair as a view yields it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a keys-only scan.
    pub value: Bytes,
    /// Unix seconds at which the pair ceases to exist; 0 for never.
    pub expires_at_s: u64,
}

/// What a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// The keys to look at.
    pub range: KeyRange,
    /// Direction.
    pub order: Order,
    /// Most pairs returned.
    pub limit: usize,
    /// Most bytes of keys and values returned; at least one pair is.
    pub bytes_max: usize,
    /// Leave values out, which reads none.
    pub keys_only: bool,
}

impl ScanOptions {
    /// All of `range`, forward, with values, up to `limit` pairs and 64 MiB.
    pub fn new(range: KeyRange, limit: usize) -> Self {
        Self { range, order: Order::Forward, limit, bytes_max: 64 << 20, keys_only: false }
    }
}

/// What a read that must not wait for the device found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached<T> {
    /// It was in memory.
    Here(T),
    /// The device must be asked: read again where waiting is allowed.
    NeedsIo,
}

/// How much a key range holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Bytes of keys and values, estimated.
    pub bytes: u64,
    /// Keys, estimated.
    pub keys: u64,
}

/// One point in time of a whole store. Later writes never show in it.
/// Pairs past their time to live are yielded; the edge, which knows the time, hides them.
pub trait EngineView: Send + Sync {
    /// The pair under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Pair>>;
    /// The pair under `key` if that takes no read of the device. Never blocks on it.
    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>>;
    /// Pairs in order.
    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>>;
    /// Says that a user scanned these neighbours: what is scanned again and again is worth sorting. Not
    /// said of what the system reads for itself.
    fn note_scan(&self, pairs: &[Pair]) {
        let _ = pairs;
    }
}

/// A value that a store refers to and can't read. Another replica has the same bytes under the same
/// key if it has any of this length and checksum there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostValue {
    /// The key.
    pub key: Bytes,
    /// The value's length in bytes.
    pub length: u32,
    /// CRC-32C of the value's bytes.
    pub crc: u32,
}

impl LostValue {
    /// Whether these are the value's bytes.
    pub fn is(&self, value: &[u8]) -> bool {
        value.len() == self.length as usize && checksum::crc32c(value) == self.crc
    }
}

/// What a slice of background work did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether more is waiting.
    pub more: bool,
}

/// The engine behind one store: its log and its state machine.
///
/// One thread at a time may call `append` and `apply`; views may be used from any thread.
///
/// [`Mark::Destroy`](stele_types::Mark::Destroy), and a start over an earlier life, checkpoint what
/// the region applied: its pairs stay until their ranges are dropped, for another region may have
/// taken them over.
///
/// Opening applies what is persisted, committed by the persisted hard state and not checkpointed, in
/// the order in which it was appended *over all regions*: keys that moved from one region to another
/// meet their writes in the order they were made.
pub trait StorageEngine: Send + Sync {
    /// A consistent view.
    type View: EngineView;
    /// Pairs of a snapshot on their way in: off to the side, visible to nobody. Dropping it removes
    /// what it wrote; what a crash leaves of it, opening removes.
    type Ingest: Send;

    /// Makes a batch durable: one write and one sync for all its regions. Tells where each entry's
    /// payload lies. After a failure other than `NoSpace` or `Invalid` the store is poisoned.
    /// `NoSpace` changes nothing; what [`StorageEngine::admit`] refuses may still be appended.
    fn append(&self, batch: &LogBatch) -> Result<Appended>;

    /// Durable entries `from` (included) to `to` (excluded), at least one if any, then up to
    /// `bytes_max`. `Invalid` when `from` was truncated.
    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>>;

    /// The term of a durable entry or of the truncation point.
    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term>;

    /// Applies committed entries of one region in order. `Invalid` when one is not the next, or not
    /// persisted here. Visible on return.
    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()>;

    /// A consistent view of all that is applied.
    fn view(&self) -> Result<Self::View>;

    /// How far a region has come, or `None` if it never was here.
    fn progress(&self, region: RegionId) -> Option<Progress>;

    /// Drops the log of `region` up to and including `index`. Held back to what is checkpointed:
    /// returns the index up to which entries may now go.
    fn truncate(&self, region: RegionId, index: LogIndex) -> Result<LogIndex>;

    /// The pairs of `range` in key order from one point in time, handed to `sink` in slices of
    /// about a mebibyte (a Raft snapshot: sorted pairs, last index and term).
    fn export(&self, range: &KeyRange, sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>)
    -> Result<()>;

    /// Begins to take in the pairs of `ranges` (ascending, disjoint). Any thread, any number at a
    /// time.
    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Self::Ingest>;

    /// Takes the next pairs: keys ascend over all ranges and calls, and lie in a range. Any thread;
    /// nothing else waits for it. After an error the incoming pairs can't be installed.
    fn receive(&self, incoming: &mut Self::Ingest, pairs: Vec<Pair>) -> Result<()>;

    /// Replaces what the ranges hold by the pairs received and starts the region's log after
    /// (`index`, `term`): all of it or, after a crash or an error, nothing. Values were written once, to
    /// sorted value files, never through the log. Everything applied before is checkpointed by it.
    fn install(&self, region: RegionId, at: (LogIndex, Term), incoming: Self::Ingest)
    -> Result<()>;

    /// Removes the pairs of `ranges` without a log entry, durably and at once: a region moved away.
    /// Everything applied before is checkpointed by it.
    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()>;

    /// About how much `range` holds. Reads no value.
    fn range_size(&self, range: &KeyRange) -> Result<RangeSize>;

    /// A key of `range` that has about half of its bytes before it, and pairs on both sides. `None`
    /// when there is none.
    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>>;

    /// Whether puts of `bytes` may be proposed: `NoSpace` when what would be left of the device is
    /// needed to free space again. Entries that only free space need not ask.
    fn admit(&self, bytes: u64) -> Result<()>;

    /// Makes everything applied so far survive a crash without the log.
    fn checkpoint(&self) -> Result<()>;

    /// Does background work of about `bytes_max` bytes.
    fn maintain(&self, bytes_max: u64) -> Result<Maintained>;

    /// Whether something can't be read here that another replica may have. Cheap.
    fn has_lost(&self) -> bool {
        false
    }

    /// The next values that can't be read here, at most so many; all of them in turn, by many calls.
    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        let _ = count_max;
        Vec::new()
    }

    /// Key ranges of which this store does not know any more what they hold, ascending; some of them.
    fn lost_ranges(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    /// Makes these pairs all that `range` holds, durably. What is applied and what they show must
    /// agree on the range, and nothing is applied meanwhile: on the thread that applies.
    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let (_, _) = (range, pairs);
        Ok(())
    }

    /// Takes another replica's copy of a lost value. One that is not what was lost is dropped; one
    /// that is, maintenance writes.
    fn repair_value(&self, key: &Bytes, value: Bytes) {
        let _ = (key, value);
    }

    /// Figures for reports and metrics.
    fn stats(&self) -> EngineStats;
}

/// Fails with `Invalid` unless the ranges of a snapshot ascend, are disjoint and hold something.
pub fn check_ranges(ranges: &[KeyRange]) -> Result<()> {
    let apart = |pair: &[KeyRange]| match pair {
        [low, high] => !low.end.is_empty() && low.end <= high.start,
        _ => true,
    };
    if ranges.is_empty() || ranges.iter().any(KeyRange::is_empty) || !ranges.windows(2).all(apart) {
        return Err(Error::invalid("ranges to replace must ascend and be disjoint"));
    }
    Ok(())
}
