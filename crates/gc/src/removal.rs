//! Removal of files that nothing holds.
//!
//! Invariant: a value file is removed only when the index refers to nothing in it, no region's log
//! needs an entry in it, a durable checkpoint covers it, and no reader can reach it.
//! Tests: `every_reason_alone_holds_a_file`,
//! `a_view_holds_a_file_that_no_observation_saw_before_it`.

use crate::gc::Shared;
use crate::policy::Held;
use crate::work::{BACK_OFF_NANOS, Work};
use std::collections::BTreeSet;
use stele_index::{Edit, VersionId};
use stele_log::FileKind;
use stele_types::{Error, FileId, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileStatus<'a> {
    /// The log still appends to it.
    pub is_head: bool,
    /// A segment, not a sorted file. Memtables refer only to segments.
    pub is_segment: bool,
    /// A replay after a crash would start after it.
    pub is_below_checkpoint: bool,
    /// An uncommitted job or installation wrote it.
    pub is_uncommitted: bool,
    /// A region's log needs an entry in it.
    pub is_wanted_by_raft: bool,
    /// It stays for a reader of a region's log.
    pub is_pinned_by_reader: bool,
    /// A removal of it failed, because what must outlive it could not be read.
    pub is_unremovable: bool,
    /// A job that was to empty it ran out of space recently.
    pub has_failed: bool,
    pub live_records: u64,
    /// Version at which `live_records` became 0, or a later one.
    pub dead_since: Option<VersionId>,
    /// A version that was current before the file was created, or at that moment. No view of an
    /// earlier version refers to the file.
    pub created_since: VersionId,
    pub pinned: &'a [VersionId],
}

/// Returns why the file must stay even without live records; `None` if it need not.
pub(crate) fn held_when_dead(status: &FileStatus<'_>) -> Option<Held> {
    if status.is_head {
        return Some(Held::Head);
    }
    // The index has no log of its own and loses its memtable in a crash. The records' successors
    // may be known only there, and then the replay must find these records (titan #81).
    // bug gc.reclaim_without_checkpoint: never
    if status.is_segment && !status.is_below_checkpoint {
        return Some(Held::Checkpoint);
    }
    // bug gc.reclaim_uncommitted: never
    if status.is_uncommitted {
        return Some(Held::Job);
    }
    // A follower may need these entries.
    // bug gc.reclaim_ignoring_raft: never
    if status.is_wanted_by_raft {
        return Some(Held::Raft);
    }
    // bug gc.reclaim_ignoring_readers: never
    if status.is_pinned_by_reader {
        return Some(Held::Reader);
    }
    None
}

/// Returns why the file cannot be removed now; `None` if it can.
pub(crate) fn held(status: &FileStatus<'_>) -> Option<Held> {
    if let Some(held) = held_when_dead(status) {
        return Some(held);
    }
    // bug gc.reclaim_live: never
    if status.live_records > 0 {
        return Some(Held::Live);
    }
    // A view of an older version still reads through the locators of that version (titan #212).
    // Invariant: a dead file that cannot be removed holds up no other work. Its removal would come
    // before every other job, again and again.
    if status.is_unremovable {
        return Some(Held::Unreadable);
    }
    let reachable = status.dead_since.is_none_or(|dead_since| {
        let refers = |pinned: &VersionId| (status.created_since..dead_since).contains(pinned);
        status.pinned.iter().any(refers)
    });
    // bug gc.reclaim_ignoring_pins: `reachable` is `false`
    reachable.then_some(Held::View)
}

impl Work {
    /// Removes `files`; returns the bytes freed. Checks each again: a view may have pinned it. If a
    /// removal meets damage, its file stays and the others go.
    pub(crate) fn reclaim(&mut self, shared: &Shared, files: &[FileId]) -> Result<u64> {
        if files.is_empty() {
            return Ok(0);
        }
        shared.hooks.open_reserve(0);
        // bug gc.remove_before_edit: skip
        self.prepare_removal(shared)?;
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
        // bug gc.remove_before_edit: self.prepare_removal(shared)?;
        Ok(freed)
    }

    /// Remembers a file that a failed read keeps. Returns other errors. Damage is not tried again
    /// before the next open.
    fn note_unremovable(&mut self, shared: &Shared, file: FileId, error: Error) -> Result<()> {
        // bug gc.unreadable_file_stops_reclaim: return Err(error);
        let until_nanos = match &error {
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

    pub(crate) fn advance_raft_from(&mut self, shared: &Shared) -> Result<()> {
        let files = shared.log.files();
        let segments = files.iter().filter(|info| matches!(info.kind, FileKind::Segment { .. }));
        let wanted = segments.filter(|info| info.wanted_by_raft).map(|info| info.file).min();
        // bug gc.raft_from_ahead: let wanted = None;
        let from = wanted.unwrap_or(shared.log.head().file);
        if shared.index.raft_from() < from {
            shared.index.edit(Edit::RaftFrom(from))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: FileStatus<'_> = FileStatus {
        is_head: false,
        is_segment: true,
        is_below_checkpoint: true,
        is_uncommitted: false,
        is_wanted_by_raft: false,
        is_pinned_by_reader: false,
        is_unremovable: false,
        has_failed: false,
        live_records: 0,
        dead_since: Some(VersionId(7)),
        created_since: VersionId(4),
        pinned: &[VersionId(3), VersionId(7)],
    };

    #[test]
    fn every_reason_alone_holds_a_file() {
        assert_eq!(held(&DEAD), None);
        assert_eq!(held(&FileStatus { is_head: true, ..DEAD }), Some(Held::Head));
        assert_eq!(
            held(&FileStatus { is_below_checkpoint: false, ..DEAD }),
            Some(Held::Checkpoint)
        );
        assert_eq!(held(&FileStatus { is_uncommitted: true, ..DEAD }), Some(Held::Job));
        assert_eq!(held(&FileStatus { is_wanted_by_raft: true, ..DEAD }), Some(Held::Raft));
        assert_eq!(held(&FileStatus { is_pinned_by_reader: true, ..DEAD }), Some(Held::Reader));
        assert_eq!(held(&FileStatus { live_records: 1, ..DEAD }), Some(Held::Live));
        let unremovable = FileStatus { is_unremovable: true, ..DEAD };
        assert_eq!(held(&unremovable), Some(Held::Unreadable));
        for version in 4..7 {
            let pinned = &[VersionId(version), VersionId(8)];
            assert_eq!(held(&FileStatus { pinned, ..DEAD }), Some(Held::View), "{version}");
        }
        assert_eq!(held(&FileStatus { dead_since: None, ..DEAD }), Some(Held::View));
    }

    #[test]
    fn files_in_key_order_need_no_checkpoint() {
        let sorted = FileStatus { is_segment: false, is_below_checkpoint: false, ..DEAD };
        assert_eq!(held(&sorted), None);
    }
}
