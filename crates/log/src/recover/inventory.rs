//! Inventory of the directory, removal of leftovers of unfinished work, and the segments that
//! recovery reads: an unbroken chain up to the newest.

use crate::catalog::{Catalog, FileMeta};
use crate::dir::{Dir, Name};
use crate::format::SegmentHeader;
use crate::recover::unread_meta;
use crate::segment::scan::SegmentReader;
use crate::segment::sidecar;
use crate::{FileKind, LogOptions, RecoverFrom, retained_tombstones, sorted};
use std::collections::BTreeSet;
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::DirEntry;

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
    pub(super) fn take(
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub id: FileId,
    pub header: SegmentHeader,
}

/// Returns the chain, oldest first; empty when there is no segment. Fails with `Missing` when one
/// in between is missing.
pub(crate) fn links(
    dir: &Dir,
    segments: &BTreeSet<FileId>,
    from: &RecoverFrom,
) -> Result<Vec<Link>> {
    let Some(&newest) = segments.last() else { return Ok(Vec::new()) };
    if from.raft_from != FileId(0) && !segments.contains(&from.raft_from) {
        return Err(missing(dir, from.raft_from, "the first segment that the manifest needs"));
    }
    let has_index = from.raft_from != FileId(0) || from.checkpoint != Lsn::default();
    let mut chain = Vec::new();
    let mut id = newest;
    loop {
        let header = SegmentReader::open(dir, id, true)?.header;
        chain.push(Link { id, header });
        if id == from.raft_from || header.previous == FileId(0) {
            break;
        }
        if !segments.contains(&header.previous) {
            // Without an index the removed segments are unknown. If needed entries are lost with
            // them, their regions show a gap.
            if has_index {
                return Err(missing(dir, header.previous, "a segment in the middle of the log"));
            }
            break;
        }
        id = header.previous;
    }
    chain.reverse();
    Ok(chain)
}

fn missing(dir: &Dir, id: FileId, detail: &str) -> Error {
    Error::Missing { path: dir.path_of(Name::Segment(id)), detail: detail.to_string() }
}
