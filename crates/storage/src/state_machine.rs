//! The state machine of one store: committed entries applied, consistent views out.

use crate::{EngineStats, EngineView};
use bytes::Bytes;
use stele_types::{CommittedEntry, KeyRange, RegionId, Result};

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
