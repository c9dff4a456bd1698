//! The files of the log, and what is known of each without reading it.

use crate::history::PinState;
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{FileId, Lsn};

/// State of the list of files. While two are equal, so are the files, except for the size of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileList {
    /// Number of changes of the list since the log was opened.
    pub changes: u64,
    /// First segment that a region needs.
    pub wanted_from: FileId,
    /// First segment that stays for readers of regions' logs; `None` if none does.
    pub pinned_from: Option<FileId>,
    /// The active segment.
    pub head: FileId,
}

/// Kind of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Batches in arrival order.
    Segment {
        /// Whether it takes no further batches.
        sealed: bool,
        /// Whether it reuses the blocks of a freed segment.
        recycled: bool,
    },
    /// Values in key order.
    Sorted,
    /// Tombstones retained after their segment was removed, for rebuilding a lost index.
    Tombstones,
}

/// Description of one file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFileInfo {
    /// The file's number.
    pub file: FileId,
    /// The file's kind.
    pub kind: FileKind,
    /// Bytes it takes on the device.
    pub bytes: u64,
    /// Of those, bytes of keys and of values too long to be inline, plus
    /// [`crate::RECORD_OVERHEAD_BYTES`] for each.
    pub payload_bytes: u64,
    /// Whether removal would lose untruncated entries of a region, or break the chain of segments
    /// that recovery reads.
    pub wanted_by_raft: bool,
    /// Whether it stays for a reader of a region's log.
    pub is_pinned: bool,
    /// Lower bound of the versions in the file.
    pub min_lsn: Lsn,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FileMeta {
    pub kind: FileKind,
    pub bytes: u64,
    pub payload_bytes: u64,
    pub min_lsn: Lsn,
    /// Newest version inside. A tombstone file is needed while some value file holds older
    /// versions.
    pub max_lsn: Lsn,
    /// End of a sealed segment's frames, if known.
    pub end: Option<u32>,
    /// A tombstone file of which a part cannot be read: it stays as it is and is not merged. Not
    /// known before the first attempt after an open.
    pub is_damaged: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    files: BTreeMap<FileId, FileMeta>,
    /// Value files by the oldest version they may hold.
    values: BTreeSet<(Lsn, FileId)>,
    tombstones: BTreeSet<FileId>,
    changes: u64,
}

impl Catalog {
    pub(crate) fn get(&self, file: FileId) -> Option<FileMeta> {
        self.files.get(&file).copied()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    pub(crate) fn insert(&mut self, file: FileId, meta: FileMeta) {
        self.remove(file);
        match meta.kind {
            FileKind::Tombstones => self.tombstones.insert(file),
            FileKind::Segment { .. } | FileKind::Sorted => self.values.insert((meta.min_lsn, file)),
        };
        self.files.insert(file, meta);
    }

    pub(crate) fn update(&mut self, file: FileId, f: impl FnOnce(&mut FileMeta)) {
        if let Some(mut meta) = self.get(file) {
            f(&mut meta);
            self.insert(file, meta);
        }
    }

    pub(crate) fn remove(&mut self, file: FileId) {
        self.changes += 1;
        if let Some(meta) = self.files.remove(&file) {
            self.values.remove(&(meta.min_lsn, file));
            self.tombstones.remove(&file);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileId, &FileMeta)> {
        self.files.iter().map(|(file, meta)| (*file, meta))
    }

    pub(crate) fn segments(&self) -> Vec<FileId> {
        let is = |meta: &FileMeta| matches!(meta.kind, FileKind::Segment { .. });
        self.iter().filter(|(_, meta)| is(meta)).map(|(file, _)| file).collect()
    }

    pub(crate) fn segments_from(
        &self,
        from: FileId,
    ) -> impl DoubleEndedIterator<Item = (FileId, &FileMeta)> {
        let is = |meta: &FileMeta| matches!(meta.kind, FileKind::Segment { .. });
        let files = self.files.range(from..).map(|(file, meta)| (*file, meta));
        files.filter(move |(_, meta)| is(meta))
    }

    pub(crate) fn first_segment(&self) -> Option<FileId> {
        let is = |meta: &FileMeta| matches!(meta.kind, FileKind::Segment { .. });
        self.iter().find(|(_, meta)| is(meta)).map(|(file, _)| file)
    }

    pub(crate) fn of_kind(&self, kind: FileKind) -> Vec<FileId> {
        self.iter().filter(|(_, meta)| meta.kind == kind).map(|(file, _)| file).collect()
    }

    pub(crate) fn tombstones(&self) -> Vec<FileId> {
        self.tombstones.iter().copied().collect()
    }

    /// Returns the oldest version that any value file except `without` may hold.
    pub(crate) fn oldest_value(&self, without: Option<FileId>) -> Option<Lsn> {
        let mut values = self.values.iter();
        values.find(|(_, file)| Some(*file) != without).map(|(oldest, _)| *oldest)
    }

    pub(crate) fn infos(&self, wanted_from: FileId, pinned: PinState) -> Vec<ValueFileInfo> {
        let info = |(file, meta): (FileId, &FileMeta)| ValueFileInfo {
            file,
            kind: meta.kind,
            bytes: meta.bytes,
            payload_bytes: meta.payload_bytes,
            wanted_by_raft: file >= wanted_from && matches!(meta.kind, FileKind::Segment { .. }),
            is_pinned: pinned.holds(file) && matches!(meta.kind, FileKind::Segment { .. }),
            min_lsn: meta.min_lsn,
        };
        self.iter().map(info).collect()
    }
}
