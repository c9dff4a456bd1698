//! Interface between consensus and storage engine: durable log batches in, committed entries
//! applied, consistent views out. The product's engine keeps locators, which do not leave it; a
//! baseline keeps bytes (XLL section 3, Nezha section III-B).
//!
//! Invariant: applied ≤ committed; applied ≤ locally persisted; checkpointed ≤ applied;
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
    CommittedEntry, Error, HardState, KeyRange, LogBatch, LogIndex, RegionId, Result, Term,
    checksum,
};

/// Progress of a region on this store. Invariant: truncated ≤ checkpointed ≤ applied ≤ persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Last entry removed from the log, or never in it (index and term).
    pub truncated: (LogIndex, Term),
    /// Last entry with effects that survive a crash without the log.
    pub checkpointed: LogIndex,
    /// Last entry with visible effects.
    pub applied: LogIndex,
    /// Last durable entry (index and term).
    pub persisted: (LogIndex, Term),
    /// The last durable hard state.
    pub hard_state: HardState,
    /// The region was destroyed on this store; its log accepts no entries.
    pub destroyed: bool,
}

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// One pair of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a keys-only scan.
    pub value: Bytes,
    /// Expiry in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

/// Range, order and limits of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Keys to scan.
    pub range: KeyRange,
    /// Direction of the scan.
    pub order: Order,
    /// Maximum number of pairs.
    pub limit: usize,
    /// Maximum bytes of keys and values; the first pair is returned even if it is larger.
    pub bytes_max: usize,
    /// Return no values, and read none.
    pub keys_only: bool,
}

impl ScanOptions {
    /// Returns options for all of `range`, forward, with values, up to `limit` pairs and 64 MiB.
    pub fn new(range: KeyRange, limit: usize) -> Self {
        Self { range, order: Order::Forward, limit, bytes_max: 64 << 20, keys_only: false }
    }
}

/// Result of a read that must not wait for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached<T> {
    /// The result, from memory.
    Here(T),
    /// The device must be read: repeat the read where it may wait.
    NeedsIo,
}

/// Estimated size of a key range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Bytes of keys and values, estimated.
    pub bytes: u64,
    /// Number of keys, estimated.
    pub keys: u64,
}

/// One point in time of a whole store, without later writes. Expired pairs are returned; the
/// request threads, which know the time, hide them.
pub trait EngineView: Send + Sync {
    /// Returns the pair of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Pair>>;
    /// Returns the pair of `key` if that needs no read of the device. Never waits for the device.
    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>>;
    /// Returns pairs in order.
    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>>;
    /// Records that a user scanned these adjacent pairs: what is scanned often is worth sorting.
    /// Not called for reads of the system itself.
    fn note_scan(&self, pairs: &[Pair]) {
        let _ = pairs;
    }
}

/// A referenced value that cannot be read. Another replica's value of this key with this length and
/// checksum has the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostValue {
    /// Key of the value.
    pub key: Bytes,
    /// The value's length in bytes.
    pub length: u32,
    /// CRC-32C of the value's bytes.
    pub crc: u32,
}

impl LostValue {
    /// Returns whether `value` is a copy of the lost value.
    pub fn is_copy(&self, value: &[u8]) -> bool {
        value.len() == self.length as usize && checksum::crc32c(value) == self.crc
    }
}

/// Result of a slice of background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether more work is pending.
    pub more: bool,
}

/// Storage engine of one store: its log and its state machine.
///
/// `append` may run on one thread while another applies: each of both on one thread at a time. The
/// calls that replace or drop ranges run on the thread that applies. Nothing is applied to a region
/// while a batch with a start or destroy mark of it is appended. Views may be used from any thread.
///
/// [`Mark::Destroy`](stele_types::Mark::Destroy), and a start over an earlier incarnation of a
/// region, checkpoint what the region applied. Its pairs stay until their ranges are dropped,
/// because another region may own them.
///
/// Opening applies what is persisted, committed by the persisted hard state and not checkpointed.
/// Invariant: it applies in the order of appends *over all regions*, so that writes to keys that
/// moved from one region to another are applied in the order they were made.
pub trait StorageEngine: Send + Sync {
    /// Consistent view.
    type View: EngineView;
    /// Staged pairs of a snapshot, not yet readable. Dropping it removes what it wrote; after a
    /// crash the next open does.
    type Ingest: Send;

    /// Makes a batch durable: one write and one sync for all its regions. Applying, views and reads
    /// do not wait for them. After a failure other than `NoSpace` or `Invalid` the store is
    /// poisoned. `NoSpace` changes nothing. What [`StorageEngine::admit`] refuses may still be
    /// appended.
    fn append(&self, batch: &LogBatch) -> Result<()>;

    /// Returns durable entries from `from` (inclusive) to `to` (exclusive): at least one if any
    /// exists, then up to `bytes_max`. Fails with `Invalid` when `from` was truncated.
    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>>;

    /// Returns the term of a durable entry or of the truncation point.
    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term>;

    /// Applies committed entries of one region in order. Fails with `Invalid` when one is not the
    /// next entry or not persisted here. The effects are visible on return.
    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()>;

    /// Returns a consistent view of everything applied.
    fn view(&self) -> Result<Self::View>;

    /// Returns a region's progress, or `None` if it was never on this store.
    fn progress(&self, region: RegionId) -> Option<Progress>;

    /// Truncates the log of `region` up to and including `index`, but at most up to the checkpoint.
    /// Returns the last index that may be removed.
    fn truncate(&self, region: RegionId, index: LogIndex) -> Result<LogIndex>;

    /// Passes the pairs of `range` in key order, from one point in time, to `sink` in slices of
    /// about one mebibyte (a Raft snapshot: sorted pairs, last index and term).
    fn export(&self, range: &KeyRange, sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>)
    -> Result<()>;

    /// Begins to stage pairs for `ranges` (ascending, disjoint). Callable from any thread; any
    /// number at a time.
    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Self::Ingest>;

    /// Stages pairs: keys ascend over all ranges and calls, and lie in a range. Callable from any
    /// thread; no other call waits for it. After an error the ingest cannot be installed.
    fn receive(&self, ingest: &mut Self::Ingest, pairs: Vec<Pair>) -> Result<()>;

    /// Replaces the contents of the ranges by the staged pairs and starts the region's log after
    /// (`index`, `term`): completely or, after a crash or an error, not at all. Values were written
    /// once, to sorted value files, never through the log. Checkpoints everything applied before.
    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: Self::Ingest) -> Result<()>;

    /// Removes the pairs of `ranges` without a log entry, durably and at once, after a region moved
    /// away. Checkpoints everything applied before.
    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()>;

    /// Estimates the size of `range`. Reads no value.
    fn range_size(&self, range: &KeyRange) -> Result<RangeSize>;

    /// Returns a key of `range` with about half of the bytes before it and pairs on both sides;
    /// `None` when there is none.
    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>>;

    /// Checks that puts of `bytes` may be proposed. Fails with `NoSpace` when the remaining space
    /// is needed to free space. Not required for entries that only free space.
    fn admit(&self, bytes: u64) -> Result<()>;

    /// Makes everything applied so far survive a crash without the log.
    fn checkpoint(&self) -> Result<()>;

    /// Does background work of about `bytes_max` bytes.
    fn maintain(&self, bytes_max: u64) -> Result<Maintained>;

    /// Returns whether data is unreadable here that another replica may have. Cheap.
    fn has_lost(&self) -> bool {
        false
    }

    /// Returns the next unreadable values, at most `count_max`; successive calls cycle through all.
    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        let _ = count_max;
        Vec::new()
    }

    /// Returns some key ranges with unknown contents (lost blocks), ascending.
    fn lost_ranges(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    /// Replaces the contents of `range` by these pairs, durably. Invariant: the applied state of
    /// this store and the pairs agree on the range, and nothing is applied meanwhile; so it is
    /// called on the thread that applies.
    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let (_, _) = (range, pairs);
        Ok(())
    }

    /// Accepts another replica's copy of a lost value. Drops any other value. Maintenance writes
    /// the copy.
    fn repair_value(&self, key: &Bytes, value: Bytes) {
        let _ = (key, value);
    }

    /// Returns statistics for reports and metrics.
    fn stats(&self) -> EngineStats;
}

/// Fails with `Invalid` unless the ranges of a snapshot ascend, are disjoint and not empty.
pub fn check_ranges(ranges: &[KeyRange]) -> Result<()> {
    let apart = |pair: &[KeyRange]| match pair {
        [low, high] => !low.end.is_empty() && low.end <= high.start,
        _ => true,
    };
    if ranges.is_empty() || ranges.iter().any(KeyRange::is_empty) || !ranges.windows(2).all(apart) {
        return Err(Error::invalid("ranges to replace must ascend, be disjoint and not be empty"));
    }
    Ok(())
}
