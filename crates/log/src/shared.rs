//! State shared by appends, reads and maintenance.
//!
//! Open files for reading: few, and shared by all stores of the process. A file stays valid while a
//! reader holds it.

use crate::catalog::Catalog;
use crate::dir::{Dir, Name};
use crate::entry_cache::EntryCache;
use crate::long_reads::LongReads;
use crate::poison::Poison;
use crate::read_many::ReadPool;
use crate::region::Regions;
use crate::{FileKind, LogOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stele_types::lock::{Mutex, RwLock, rank};
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::{Handles, VfsFile};

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
    pub buffer_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn allocate_file(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of a value file. Fails with `Missing` for an unknown file.
    pub(crate) fn value_name(&self, file: FileId) -> Result<Name> {
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
    pub(crate) fn end_of(&self, segment: FileId) -> Option<u32> {
        let head = self.state.read().head;
        if head.file == segment {
            return Some(head.offset);
        }
        self.catalog.read().get(segment).and_then(|meta| meta.end)
    }

    /// Returns the first segment that is needed: by an entry, or by the chain that recovery follows
    /// to the head.
    pub(crate) fn wanted_from(&self) -> FileId {
        let state = self.state.read();
        state.regions.first_wanted().unwrap_or(state.head.file).min(state.head.file)
    }
}

impl Shared {
    /// Returns a handle through the page cache.
    pub(crate) fn handle(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, false)
    }

    /// Returns a handle past the page cache if the options say so and the file system supports it.
    pub(crate) fn handle_direct(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, true)
    }

    /// Invariant: no handle of a removed file is kept, which would hold its space on the device. A
    /// removal takes the file out of the catalog before it forgets the handles.
    fn handle_of(&self, name: Name, is_direct: bool) -> Result<Arc<dyn VfsFile>> {
        let number = u64::from(name.file().0);
        if let Some(file) = self.handles.get(number, is_direct) {
            return Ok(file);
        }
        let file = match is_direct {
            true => self.dir.open_direct(name)?,
            false => self.dir.open_read(name)?,
        };
        let catalog = self.catalog.read();
        let is_known = catalog.get(name.file()).is_some();
        // bug log.handle_of_removed_file: `is_known` is `true`
        match is_known {
            true => Ok(self.handles.insert(number, is_direct, file)),
            false => Ok(file),
        }
    }
}
