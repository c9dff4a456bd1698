//! Removal of files that nothing holds.

use crate::gc::Shared;
use crate::policy::Held;
use crate::work::{BACK_OFF_NANOS, Work};
use std::collections::BTreeSet;
use stele_index::Edit;
use stele_log::FileKind;
use stele_types::{Error, FileId, Result, mutant};

impl Work {
    /// Removes `files`; returns the bytes freed. Checks each again: a view may have pinned it. If a
    /// removal meets damage, its file stays and the others go.
    pub fn reclaim(&mut self, shared: &Shared, files: &[FileId]) -> Result<u64> {
        if files.is_empty() {
            return Ok(0);
        }
        shared.hooks.open_reserve(0);
        let late = mutant::active("gc.remove_before_edit");
        if !late {
            self.prepare_removal(shared)?;
        }
        let state = self.observe(shared);
        let mut freed = 0;
        let files: BTreeSet<FileId> = files.iter().copied().collect();
        for file in state.files.iter().filter(|file| files.contains(&file.id)) {
            if file.held.is_some_and(|held| held != Held::Head) {
                continue;
            }
            if let Err(error) = shared.log.remove(file.id) {
                self.note_unremovable(shared, file.id, error)?;
                continue;
            }
            freed += file.bytes;
            self.reclaimed_files += 1;
            self.reclaimed_bytes += file.bytes;
        }
        if late {
            self.prepare_removal(shared)?;
        }
        Ok(freed)
    }

    /// Remembers a file that a failed read keeps. Returns other errors. Damage is not tried again
    /// before the next open.
    fn note_unremovable(&mut self, shared: &Shared, file: FileId, error: Error) -> Result<()> {
        let until_nanos = match &error {
            _ if mutant::active("gc.unreadable_file_stops_reclaim") => return Err(error),
            error if error.is_damage() => u64::MAX,
            error if error.is_failed_read() => shared.clock.monotonic_nanos() + BACK_OFF_NANOS,
            _ => return Err(error),
        };
        self.last_error = Some(error.to_string());
        self.unremovable.insert(file, until_nanos);
        Ok(())
    }

    /// Prepares the manifest for a removal. Invariants: before a file is removed, the manifest
    /// durably records that its id is used, so that a locator never names two files, and that
    /// recovery starts after it, so that recovery does not miss it.
    fn prepare_removal(&mut self, shared: &Shared) -> Result<()> {
        let next = shared.log.next_file();
        if shared.index.next_file() < next {
            shared.index.edit(Edit::NextFile(next))?;
        }
        self.advance_raft_from(shared)
    }

    /// Records the first segment with entries that a region's log still needs.
    pub fn advance_raft_from(&mut self, shared: &Shared) -> Result<()> {
        let files = shared.log.files();
        let segments = files.iter().filter(|info| matches!(info.kind, FileKind::Segment { .. }));
        let wanted = segments.filter(|info| info.wanted_by_raft).map(|info| info.file).min();
        let wanted = wanted.filter(|_| !mutant::active("gc.raft_from_ahead"));
        let from = wanted.unwrap_or(shared.log.head().file);
        if shared.index.raft_from() < from {
            shared.index.edit(Edit::RaftFrom(from))?;
        }
        Ok(())
    }
}
