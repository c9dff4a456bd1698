//! Settings of a log, and what opening one takes and gives.

use std::collections::BTreeMap;
use stele_types::limits::INLINE_VALUE_BYTES_MAX;
use stele_types::{FileId, KeyRange, LogIndex, Lsn, RegionId, StoreId};

/// Settings of one store's log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Identity of the store; part of every checksum.
    pub store: StoreId,
    /// Bytes at which a segment is sealed; one batch may be longer and then fills a segment alone.
    pub segment_bytes_max: u64,
    /// Freed segments kept for reuse: blocks written before need no metadata commit at a sync.
    pub recycle_segments_max: usize,
    /// Bypass the page cache for appends.
    pub direct: bool,
    /// Memory for the payloads of recent entries.
    pub entry_cache_bytes_max: usize,
    /// Values up to this length are carried in sidecars and given to replay as bytes.
    pub inline_value_bytes_max: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            store: StoreId(1),
            segment_bytes_max: 128 << 20,
            recycle_segments_max: 4,
            direct: true,
            entry_cache_bytes_max: 16 << 20,
            inline_value_bytes_max: INLINE_VALUE_BYTES_MAX,
        }
    }
}

/// What the index already holds, so that opening reads no more than it must. The default (nothing)
/// reads every segment the newest one is chained to.
#[derive(Clone, Debug, Default)]
pub struct RecoverFrom {
    /// Everything below is in runs. The default: there is no index.
    pub checkpoint: Lsn,
    /// First segment with wanted Raft entries; those below are homes of values only.
    pub raft_from: FileId,
    /// New files get identifiers from here on.
    pub next_file: FileId,
    /// Value files that runs refer to: each must exist.
    pub needed: Vec<FileId>,
    /// Where other replicas have what is damaged here: per region the entry up to which effects are in
    /// runs. Payloads up to there, and of entries in no region's log, need not be readable. `None`:
    /// all have to be.
    pub checkpointed: Option<BTreeMap<RegionId, LogIndex>>,
    /// Keys whose values are read before other replicas can be asked for them: what the store knows of
    /// itself. With `settled`, those of entries that no run holds have to be readable.
    pub own_keys: Option<KeyRange>,
}

impl RecoverFrom {
    /// Whether an entry's effects are in runs.
    pub(crate) fn is_settled(&self, region: RegionId, index: LogIndex) -> bool {
        let upto = self.checkpointed.as_ref().and_then(|checkpointed| checkpointed.get(&region));
        upto.is_some_and(|upto| index <= *upto)
    }
}

/// How the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// After a whole batch, with no trace of another.
    Clean,
    /// A batch that was not whole was cut off.
    TornCut {
        /// Where it began.
        from: Lsn,
        /// Its bytes as far as they are known; 0 when its header is unreadable.
        bytes: u64,
        /// Whether it could have been acknowledged and damaged afterwards: nothing durable follows
        /// it that would tell. The region must not vote or acknowledge before it is repaired.
        uncertain: bool,
    },
}

/// What opening found.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// How the log ended.
    pub tail: Tail,
    /// The log's end: where the next batch goes.
    pub head: Lsn,
    /// Segments whose frames were read.
    pub segments_scanned: usize,
    /// Sealed segments of which only the sidecar was read.
    pub segments_by_sidecar: usize,
    /// Bytes of frames read.
    pub bytes_scanned: u64,
    /// Leftovers of unfinished work that were removed.
    pub orphans_removed: usize,
}
