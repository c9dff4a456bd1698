//! The state machine of one store: committed entries applied, consistent views out, the snapshots
//! of a region from another replica staged and then installed at once, unreadable data repaired by
//! copies from other replicas, and the statistics that every engine reports.

use crate::{EngineView, Pair};
use bytes::Bytes;
use stele_types::{CommittedEntry, Error, KeyRange, LogIndex, RegionId, Result, Term, checksum};

/// Estimated size of a key range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Bytes of keys and values, estimated.
    pub bytes: u64,
    /// Number of keys, estimated.
    pub keys: u64,
}

/// Result of a slice of background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether more work is pending.
    pub more: bool,
    /// Name of the work's stage, for metrics.
    pub stage: &'static str,
    /// Bytes that the scrub read in addition. While a slice scrubs, the next one follows without a
    /// pause: the scrub has a budget of its own.
    pub scrubbed_bytes: u64,
}

/// Committed entries of one region, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionEntries {
    /// The region.
    pub region: RegionId,
    /// Its next entries to apply.
    pub entries: Vec<CommittedEntry>,
}

/// State machine of one store. Statistics, sizes and views may be used from any thread.
///
/// Opening applies what is persisted, committed by the persisted hard state and not checkpointed.
/// Invariant: it applies in the order of appends *over all regions*, so that writes to keys that
/// moved from one region to another are applied in the order they were made.
pub trait StateMachine: Send + Sync {
    /// Consistent view.
    type View: EngineView + 'static;

    /// Applies committed entries of one region in order. Fails with `Invalid` when one is not the
    /// next entry or not persisted here. The effects are visible on return.
    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()>;

    /// Applies entries of several regions, each region once, as [`StateMachine::apply`] does for each. After
    /// a failure some of them may be applied.
    fn apply_all(&self, runs: &[RegionEntries]) -> Result<()> {
        runs.iter().try_for_each(|run| self.apply(run.region, &run.entries))
    }

    /// Returns a consistent view of everything applied.
    fn view(&self) -> Result<Self::View>;

    /// Removes the pairs of `ranges` without a log entry, durably and at once, after a region moved
    /// away. Checkpoints everything applied before.
    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()>;

    /// Estimates the size of `range`. Reads no value.
    fn range_size(&self, range: &KeyRange) -> Result<RangeSize>;

    /// Returns a key of `range` with about half of the bytes before it and pairs on both sides;
    /// `None` when there is none.
    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>>;

    /// Makes everything applied so far survive a crash without the log.
    fn checkpoint(&self) -> Result<()>;

    /// Does background work of about `bytes_max` bytes.
    fn maintain(&self, bytes_max: u64) -> Result<Maintained>;

    /// Returns the bytes of maintenance that each written byte makes due; 0 while maintenance keeps up.
    fn pressure(&self) -> f64 {
        0.0
    }

    /// Uses a pause: maintenance found nothing to do for a while.
    fn idle(&self) {}

    /// Returns statistics for reports and metrics.
    fn stats(&self) -> EngineStats;
}

/// Installation of snapshots.
pub trait Snapshots: Send + Sync {
    /// Staged pairs of a snapshot, not yet readable. Dropping it removes what it wrote; after a
    /// crash the next open does.
    type Ingest: Send + 'static;

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

/// Repair of what is unreadable on this store. An engine that detects nothing keeps the defaults.
pub trait Repair: Send + Sync {
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
}

/// Sizes and counts of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Bytes of keys and values in applied operations.
    pub user_bytes: u64,
    /// Bytes written to the device, by cause name.
    pub written_bytes: Vec<(&'static str, u64)>,
    /// Bytes that the store takes on the device.
    pub disk_bytes: u64,
    /// Estimated bytes of live pairs, with what an engine stores beside each of them. A pair that was
    /// replaced or deleted counts until a merge has found that.
    pub live_bytes_estimate: u64,
    /// Bytes of memory in memtables and caches.
    pub memory_bytes: u64,
    /// Bytes of it in filters, fences and footers of the index, without cached pages.
    pub index_memory_bytes: u64,
    /// Reads of filters and fences that were not in memory.
    pub index_cold_reads: u64,
    /// Size of the device, shared with its other users; 0 when unknown.
    pub device_bytes: u64,
    /// Free bytes of the device, with those that it holds for this store.
    pub device_free_bytes: u64,
}

impl EngineStats {
    /// Returns write amplification: device bytes written per user byte.
    pub fn write_amp(&self) -> f64 {
        let written: u64 = self.written_bytes.iter().map(|(_, bytes)| bytes).sum();
        ratio(written, self.user_bytes)
    }

    /// Returns space amplification: device bytes per live byte, as estimated.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes, self.live_bytes_estimate)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
