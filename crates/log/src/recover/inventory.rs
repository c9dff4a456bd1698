//! Inventory of the directory, and removal of leftovers of unfinished work.

use super::unread_meta;
use crate::catalog::{Catalog, FileMeta};
use crate::dir::{Dir, Name};
use crate::segment::sidecar;
use crate::{FileKind, LogOptions, RecoverFrom, retained_tombstones, sorted};
use std::collections::BTreeSet;
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::DirEntry;

/// Treatment of leftovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    Removed,
    Kept,
}

pub(crate) struct Inventory {
    pub catalog: Catalog,
    pub segments: BTreeSet<FileId>,
    pub free: Vec<FileId>,
    pub next_file: FileId,
    pub orphans_removed: usize,
    orphans: Orphans,
}

impl Inventory {
    pub fn take(
        dir: &Dir,
        options: &LogOptions,
        from: &RecoverFrom,
        orphans: Orphans,
    ) -> Result<Self> {
        let mut found = Self {
            catalog: Catalog::default(),
            segments: BTreeSet::new(),
            free: Vec::new(),
            next_file: from.next_file.max(FileId(1)),
            orphans_removed: 0,
            orphans,
        };
        let entries = dir.vfs.list(&dir.path)?;
        for entry in &entries {
            match Name::parse(&entry.name) {
                Some(name) => {
                    found.next_file = found.next_file.max(name.file().next());
                    found.add(dir, options, from, name, entry)?;
                }
                None if entry.name.ends_with(".tmp") => found.remove(dir, &entry.name)?,
                None => {}
            }
        }
        for entry in &entries {
            if let Some(Name::Sidecar(id)) = Name::parse(&entry.name)
                && !found.segments.contains(&id)
            {
                found.remove(dir, &entry.name)?;
            }
        }
        found.check_needed(dir, from)?;
        Ok(found)
    }

    fn add(
        &mut self,
        dir: &Dir,
        options: &LogOptions,
        from: &RecoverFrom,
        name: Name,
        entry: &DirEntry,
    ) -> Result<()> {
        match name {
            Name::Segment(id) => {
                self.segments.insert(id);
                self.catalog.insert(id, segment_meta(dir, id, entry));
            }
            Name::Free(id) if is_reusable(self.free.len(), entry.bytes, options) => {
                self.free.push(id);
            }
            Name::Free(_) => self.remove(dir, &entry.name)?,
            Name::Sorted(id) => {
                // With an index, a sorted file that no run refers to was never part of the store.
                let has_index = from.checkpoint != Lsn::default();
                if has_index && !from.needed.contains(&id) {
                    return self.remove(dir, &entry.name);
                }
                self.catalog.insert(id, sorted::meta(dir, id, entry)?);
            }
            Name::Tombstones(id) => {
                self.catalog.insert(id, retained_tombstones::meta(dir, id, entry)?)
            }
            Name::Sidecar(_) => {}
        }
        Ok(())
    }

    fn remove(&mut self, dir: &Dir, name: &str) -> Result<()> {
        if self.orphans == Orphans::Kept {
            return Ok(());
        }
        self.orphans_removed += 1;
        dir.unlink(&dir.path.join(name))
    }

    fn check_needed(&self, dir: &Dir, from: &RecoverFrom) -> Result<()> {
        for &file in &from.needed {
            let kind = self.catalog.get(file).map(|meta| meta.kind);
            if !matches!(kind, Some(FileKind::Segment { .. } | FileKind::Sorted)) {
                let path = dir.path.join(format!("{:08x}", file.0));
                let detail = "runs refer to values in this file".to_string();
                return Err(Error::Missing { path, detail });
            }
        }
        Ok(())
    }
}

/// Whether a freed segment of this length is worth keeping beside `count` others.
pub(crate) fn is_reusable(count: usize, bytes: u64, options: &LogOptions) -> bool {
    let max = options.segment_bytes_max;
    count < options.recycle_segments_max && bytes <= max && bytes >= max / 2
}

/// Returns metadata from the sidecar's footer alone; recovery adds what it finds in the segments it
/// reads.
fn segment_meta(dir: &Dir, id: FileId, entry: &DirEntry) -> FileMeta {
    let kind = FileKind::Segment { sealed: true, recycled: false };
    let mut meta = unread_meta(kind, entry.allocated_bytes.max(entry.bytes), Lsn::new(id, 0));
    meta.max_lsn = Lsn::new(id, u32::MAX);
    if let Ok(reader) = sidecar::open(dir, id) {
        let (end, totals) = sidecar::summary(&reader.footer);
        (meta.end, meta.payload_bytes) = (Some(end.at), totals.payload_bytes);
    }
    meta
}
