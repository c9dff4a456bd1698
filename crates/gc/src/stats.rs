//! What garbage collection shows of itself.

use crate::policy::FileState;
use stele_types::{FileId, RunId};

/// The life of the index's storage modules (Nezha): which of them a read has to merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Active memtable and runs; nothing is being rewritten, nothing was sorted.
    #[default]
    Pre,
    /// A memtable or value files are being rewritten while new writes go to fresh ones.
    During,
    /// New writes beside values in key order.
    Post,
}

/// What a step worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// A frozen memtable becoming a run, or a memtable being frozen.
    Flush,
    /// Runs becoming one.
    Merge,
    /// Live values leaving victims.
    Relocate,
    /// Values rewritten in key order.
    Sort,
    /// Files removed.
    Reclaim,
    /// Entries of idle regions copied to the log's head.
    Reappend,
    /// Logs of regions truncated up to the checkpoint.
    Truncate,
    /// Nothing to do, or nothing can be done now: see [`GcStats::last_error`].
    #[default]
    Idle,
}

/// What one call of [`crate::Gc::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDone {
    /// What was worked on.
    pub stage: Stage,
    /// Bytes read and written; for [`Stage::Reclaim`], bytes freed.
    pub bytes: u64,
}

/// How much garbage collection writers should do themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pressure {
    /// None.
    None,
    /// This many bytes of it for each byte written: writers get slower early, and never stop.
    Assist(f64),
}

/// A job run to its end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// Everything applied so far goes to runs; afterwards the checkpoint covers it.
    Flush,
    /// One tier.
    MergeAll,
    /// Every value in key order.
    SortAll,
    /// Whatever can be freed for less than it costs.
    Collect,
    /// A run anew, as it is read now, unless another merge runs.
    Rewrite(RunId),
}

/// Bytes written to the device since the store was created, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBytes {
    /// Runs from memtables.
    pub flush: u64,
    /// Runs from runs.
    pub merge: u64,
    /// Values out of victims.
    pub relocate: u64,
    /// Values into key order.
    pub sort: u64,
}

/// Figures of garbage collection.
#[derive(Clone, Debug, Default)]
pub struct GcStats {
    /// Where in Nezha's cycle the store is.
    pub phase: Phase,
    /// What the last step worked on.
    pub stage: Stage,
    /// Bytes of keys and values written by users since the store was created.
    pub user_bytes: u64,
    /// Bytes written by garbage collection.
    pub bytes: StageBytes,
    /// Bytes on the device of value files, recycled segments and runs.
    pub disk_bytes: u64,
    /// Bytes of live records, estimated: some that were replaced are not yet known to be dead.
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
    /// Every value file with its live bytes and what holds it.
    pub files: Vec<FileState>,
    /// Files removed since the store was opened.
    pub reclaimed_files: u64,
    /// Bytes of those.
    pub reclaimed_bytes: u64,
    /// Merges continued after a crash since the store was opened.
    pub resumed: u64,
    /// Values that could not be moved because they are damaged.
    pub damaged: u64,
    /// Why the last job was given up; cleared by the next that ends well.
    pub last_error: Option<String>,
}
