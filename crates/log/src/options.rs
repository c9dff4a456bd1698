//! Settings of a log, and the input and result of opening one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_types::size::INLINE_VALUE_BYTES_MAX;
use stele_types::{FileId, KeyRange, LogIndex, Lsn, RegionId, StoreId};
use stele_vfs::{DeviceTimer, HandlePool};

/// Settings of one store's log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Identity of the store; part of every checksum. Random, so that no client knows it.
    pub store: StoreId,
    /// Bytes at which a segment is sealed. A longer batch fills a segment alone.
    pub segment_bytes_max: u64,
    /// Maximum number of freed segments kept for reuse. A sync of reused blocks commits no
    /// metadata.
    pub recycle_segments_max: usize,
    /// Maximum bytes of sealed segments that stay for readers of regions' logs; 0: none does.
    pub history_bytes_max: u64,
    /// Bypass the page cache for appends.
    pub direct: bool,
    /// Bytes of memory for the payloads of recent entries; 0 disables the cache.
    pub entry_cache_bytes_max: usize,
    /// Values of at most this length are kept in sidecars, and replay passes them as bytes.
    pub inline_value_bytes_max: usize,
    /// Handles of files that are open for reading, perhaps shared with other stores.
    pub handles: Arc<HandlePool>,
    /// Measures writes and reads of the device; `None`: nothing is measured.
    pub timer: Option<DeviceTimer>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            store: StoreId(1),
            segment_bytes_max: 128 << 20,
            recycle_segments_max: 4,
            history_bytes_max: 0,
            direct: true,
            entry_cache_bytes_max: 16 << 20,
            inline_value_bytes_max: INLINE_VALUE_BYTES_MAX,
            handles: Arc::default(),
            timer: None,
        }
    }
}

/// What the index already holds, which limits what opening reads. The default (nothing) reads every
/// segment the newest one is chained to.
#[derive(Clone, Debug, Default)]
pub struct RecoverFrom {
    /// Everything below is in runs. The default means that there is no index.
    pub checkpoint: Lsn,
    /// First segment with needed Raft entries; older segments hold only values.
    pub raft_from: FileId,
    /// Lowest identifier for new files.
    pub next_file: FileId,
    /// Value files that runs refer to; each must exist.
    pub needed: BTreeSet<FileId>,
    /// `Some` if other replicas may hold a copy of what is damaged here: for each region, the last
    /// entry with its effects in runs. Payloads up to that entry, and of entries outside every
    /// region's log, may be unreadable. `None`: all payloads must be readable.
    pub checkpointed: Option<BTreeMap<RegionId, LogIndex>>,
    /// The store's own keys, which are read before other replicas can supply their values. With
    /// `checkpointed`, the values of entries that no run holds must be readable.
    pub own_keys: Option<KeyRange>,
}

impl RecoverFrom {
    pub(crate) fn is_checkpointed(&self, region: RegionId, index: LogIndex) -> bool {
        let upto = self.checkpointed.as_ref().and_then(|checkpointed| checkpointed.get(&region));
        upto.is_some_and(|upto| index <= *upto)
    }
}

/// State of the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The log ends after a complete batch, with no trace of another.
    Clean,
    /// An incomplete batch was truncated.
    TornCut {
        /// Position of its first byte.
        from: Lsn,
        /// Its length as far as it is known; 0 when its header is unreadable.
        bytes: u64,
        /// Whether it may have been acknowledged and damaged afterwards: no later batch and no
        /// confirmation shows which. It is truncated all the same. After a power cut of a whole
        /// cluster the log of each store that was writing may end like this: if such stores did not
        /// vote, no region would get a leader. `false` if the file is too short for the batch,
        /// which was thus never acknowledged.
        uncertain: bool,
    },
}

/// Result of opening a log.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// State of the log's end.
    pub tail: Tail,
    /// The log's end: position of the next batch.
    pub head: Lsn,
    /// Number of segments scanned frame by frame.
    pub segments_scanned: usize,
    /// Number of sealed segments of which only the sidecar was read.
    pub segments_by_sidecar: usize,
    /// Bytes of frames read.
    pub bytes_scanned: u64,
    /// Number of files removed that unfinished work had left.
    pub orphans_removed: usize,
}
