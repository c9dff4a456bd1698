//! Statistics of garbage collection, and the share of it that writers do themselves.

use crate::options::GcOptions;
use crate::policy::Files;
use stele_types::{FileId, RunId};

/// Phase of the index's storage modules (Nezha), which determines what a read must merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Active memtable and runs; nothing is being rewritten, nothing is sorted.
    #[default]
    Pre,
    /// A memtable or value files are being rewritten while new writes go to new ones.
    During,
    /// New writes, and older values in key order.
    Post,
}

/// Kind of work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Freezing a memtable, or flushing one to a run.
    Flush,
    /// Merging runs.
    Merge,
    /// Moving live values out of victims.
    Relocate,
    /// Rewriting values in key order.
    Sort,
    /// Removing files.
    Reclaim,
    /// Copying entries of idle regions to the log's head.
    Reappend,
    /// Truncating logs of regions up to the checkpoint.
    Truncate,
    /// Nothing to do, or nothing possible now: see [`GcStats::last_error`].
    #[default]
    Idle,
}

impl Stage {
    /// Returns the name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Merge => "merge",
            Self::Relocate => "relocate",
            Self::Sort => "sort",
            Self::Reclaim => "reclaim",
            Self::Reappend => "reappend",
            Self::Truncate => "truncate",
            Self::Idle => "idle",
        }
    }
}

/// Result of one call of [`crate::Gc::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDone {
    /// Kind of work.
    pub stage: Stage,
    /// Bytes read and written; for [`Stage::Reclaim`], bytes freed.
    pub bytes: u64,
}

/// Share of garbage collection that writers do themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pressure {
    /// None.
    None,
    /// Bytes of work for each byte written. Writers slow down early and never stop.
    Assist(f64),
}

/// Job that runs to completion at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// Flushes everything applied so far to runs, so that the checkpoint covers it.
    Flush,
    /// Merges all runs into one tier.
    MergeAll,
    /// Sorts every value into key order.
    SortAll,
    /// Frees everything that can be freed for less than it costs.
    Collect,
    /// Leaves sorted files of live values, runs, and an empty segment, as far as the device has room
    /// for the moves.
    Compact,
    /// Rewrites a run as it is read now, unless another merge runs.
    Rewrite(RunId),
}

/// Bytes written to the device since the store was created, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBytes {
    /// Runs written from memtables.
    pub flush: u64,
    /// Runs written from runs.
    pub merge: u64,
    /// Values moved out of victims.
    pub relocate: u64,
    /// Values moved into key order.
    pub sort: u64,
}

/// Statistics of garbage collection.
#[derive(Clone, Debug, Default)]
pub struct GcStats {
    /// Phase of Nezha's cycle.
    pub phase: Phase,
    /// Kind of work of the last step.
    pub stage: Stage,
    /// Bytes of keys and values written by users since the store was created.
    pub user_bytes: u64,
    /// Bytes written by garbage collection.
    pub bytes: StageBytes,
    /// Bytes on the device of value files, recycled segments and runs.
    pub disk_bytes: u64,
    /// Estimated bytes of live records: some replaced records still count as live.
    pub live_bytes: u64,
    /// `disk_bytes` for each live byte.
    pub space_amp: f64,
    /// Bytes that may be written now within the budget; negative when overspent.
    pub credit_bytes: i64,
    /// Bytes on the device beyond the target.
    pub debt_bytes: u64,
    /// Frozen memtables waiting for their flush.
    pub frozen: usize,
    /// Tiers of runs.
    pub tiers: usize,
    /// Files being emptied.
    pub victims: Vec<FileId>,
    /// Every value file with its live bytes and the reason why it is held.
    pub files: Files,
    /// Files of which the state was determined since the store was opened.
    pub files_observed: u64,
    /// Files removed since the store was opened.
    pub reclaimed_files: u64,
    /// Bytes of the files removed since the store was opened.
    pub reclaimed_bytes: u64,
    /// Merges continued after a crash since the store was opened.
    pub resumed: u64,
    /// Values that could not be moved because they are damaged.
    pub damaged: u64,
    /// The cluster's time in Unix seconds, by which expired pairs are dropped; 0 if it is unknown.
    pub cluster_time_s: u64,
    /// Reason why the last job was aborted; cleared by the next success.
    pub last_error: Option<String>,
}

/// Work for each byte written, at the hard limit of space: twice the cost of emptying files that
/// are half live.
const SPACE_ASSIST_AT_HARD: f64 = 4.0;
/// Work for each byte written when there are twice the wanted tiers.
const TIERS_ASSIST: f64 = 0.25;
/// Work from which a writer waits for its turn to work instead of passing by: the worker alone is
/// too slow.
pub(crate) const ASSIST_WAITS: f64 = 1.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Bytes on the device without dead ones that garbage collection cannot free.
    pub disk_bytes: u64,
    pub live_bytes: u64,
    /// Share of new records that replace an older one; 0 to 1.
    pub overwrite_ratio: f64,
    /// User bytes at that time.
    pub user_bytes: u64,
    pub tiers: usize,
}

impl Load {
    /// Returns the work for each byte written when users have written `user_bytes` in all. It
    /// starts at the target, so that writers slow down before the hard limit is reached. It is
    /// extrapolated between two observations of the store: during one long job, a burst writes
    /// gigabytes that an observation would notice only afterwards.
    pub(crate) fn assist(&self, user_bytes: u64, options: &GcOptions) -> f64 {
        let span = (options.space_amp_hard - options.space_amp_target).max(0.01);
        let over = (self.space_amp(user_bytes, options) - options.space_amp_target) / span;
        let tiers = self.tiers as f64 / (2 * options.tiers_max) as f64;
        let tiers = if tiers > 1.0 { TIERS_ASSIST * tiers * tiers } else { 0.0 };
        (SPACE_ASSIST_AT_HARD * over.max(0.0)).max(tiers)
    }

    fn space_amp(&self, user_bytes: u64, options: &GcOptions) -> f64 {
        let written = user_bytes.saturating_sub(self.user_bytes) as f64;
        let live = self.live_bytes as f64 + written * (1.0 - self.overwrite_ratio);
        (self.disk_bytes as f64 + written) / options.weighed(live as u64).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_felt_before_anyone_looks_again_and_inserts_are_no_burst() {
        let options = GcOptions::default();
        let seen = Load { disk_bytes: 1900, live_bytes: 1000, ..Load::default() };
        let updates = Load { overwrite_ratio: 1.0, ..seen };
        assert_eq!(updates.assist(100, &options), 0.0, "at the target");
        assert_eq!(updates.assist(225, &options), 1.0);
        assert_eq!(updates.assist(600, &options), 4.0, "at the hard limit");
        assert!(updates.assist(1100, &options) > 7.0);
        assert_eq!(seen.assist(5000, &options), 0.0, "each new record is live");
    }
}
