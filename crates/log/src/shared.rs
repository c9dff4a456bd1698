//! State shared by appends, reads and maintenance.

use crate::catalog::Catalog;
use crate::dir::{Dir, Name};
use crate::entry_cache::EntryCache;
use crate::long_reads::LongReads;
use crate::poison::Poison;
use crate::read_pool::ReadPool;
use crate::region::Regions;
use crate::{FileKind, LogOptions};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stele_types::lock::{Mutex, RwLock, rank};
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::Handles;

#[derive(Debug)]
pub(crate) struct Shared {
    pub dir: Dir,
    pub options: LogOptions,
    /// Locked only briefly: readers never wait for a write or sync.
    pub state: RwLock<State, { rank::LOG_STATE }>,
    pub catalog: RwLock<Catalog, { rank::LOG_CATALOG }>,
    pub handles: Handles,
    pub cache: EntryCache,
    pub read_pool: ReadPool,
    pub long_reads: LongReads,
    pub poison: Poison,
    /// Whether other replicas may hold a copy of what is unreadable here. If so, no index is
    /// rebuilt from values.
    pub has_replicas: bool,
    pub counters: Counters,
    /// Freed segments, by their old identifiers.
    pub free: Mutex<Vec<FileId>, { rank::LOG_FREE }>,
    pub next_file: AtomicU32,
}

/// Durable state.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub regions: Regions,
    pub head: Lsn,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub batches: AtomicU64,
    pub syncs: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub rolls: AtomicU64,
    pub recycled: AtomicU64,
    pub direct_retries: AtomicU64,
    /// Bytes of the appender's buffers.
    pub buffer_bytes: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Shared {
    pub fn allocate_file(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of a value file. Fails with `Missing` for an unknown file.
    pub fn value_name(&self, file: FileId) -> Result<Name> {
        match self.catalog.read().get(file).map(|meta| meta.kind) {
            Some(FileKind::Segment { .. }) => Ok(Name::Segment(file)),
            Some(FileKind::Sorted) => Ok(Name::Sorted(file)),
            Some(FileKind::Tombstones) | None => {
                let path = self.dir.path.join(format!("{:08x}", file.0));
                Err(Error::Missing { path, detail: "no value file has this number".to_string() })
            }
        }
    }

    /// Returns the end of a segment's frames: known for sealed ones, the head for the active one.
    pub fn end_of(&self, segment: FileId) -> Option<u32> {
        let head = self.state.read().head;
        if head.file == segment {
            return Some(head.offset);
        }
        self.catalog.read().get(segment).and_then(|meta| meta.end)
    }

    /// Returns the first segment that is needed: by an entry, or by the chain that recovery follows
    /// to the head.
    pub fn wanted_from(&self) -> FileId {
        let state = self.state.read();
        state.regions.first_wanted().unwrap_or(state.head.file).min(state.head.file)
    }
}
