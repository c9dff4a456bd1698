//! The law of removal. A value file goes only when the index refers to nothing in it, no region's
//! log needs an entry in it, a durable checkpoint covers it, and no reader can still reach it.

use crate::policy::Held;
use stele_index::VersionId;
use stele_types::mutant;

/// What is known about one value file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileStatus {
    /// The log still appends to it.
    pub is_head: bool,
    /// A segment, not a file of values in key order. Only segments are referred to by memtables.
    pub is_segment: bool,
    /// The replay after a crash would start beyond it.
    pub is_below_checkpoint: bool,
    /// Written by a job, or by an installation, that is not committed.
    pub is_uncommitted: bool,
    /// Some region's log needs an entry in it.
    pub is_wanted_by_raft: bool,
    /// Records the current version refers to.
    pub live_records: u64,
    /// The version at which that became 0, or a later one.
    pub dead_since: Option<VersionId>,
    /// The oldest version any reader holds.
    pub oldest_pinned: VersionId,
}

/// Why the file would stay even if nothing in it were live.
pub(crate) fn held_when_dead(facts: &FileStatus) -> Option<Held> {
    if facts.is_head {
        return Some(Held::Head);
    }
    // Without a log of its own the index loses its memtable in a crash: what replaced these records
    // may be known only there, and the replay must find them (titan #81).
    if facts.is_segment
        && !facts.is_below_checkpoint
        && !mutant::active("gc.reclaim_without_checkpoint")
    {
        return Some(Held::Checkpoint);
    }
    if facts.is_uncommitted && !mutant::active("gc.reclaim_uncommitted") {
        return Some(Held::Job);
    }
    // A follower may ask for these entries.
    if facts.is_wanted_by_raft && !mutant::active("gc.reclaim_ignoring_raft") {
        return Some(Held::Raft);
    }
    None
}

/// Why the file can't be removed now.
pub(crate) fn held(facts: &FileStatus) -> Option<Held> {
    if let Some(held) = held_when_dead(facts) {
        return Some(held);
    }
    if facts.live_records > 0 && !mutant::active("gc.reclaim_live") {
        return Some(Held::Live);
    }
    // A view of an older version still reads through the locators of its time (titan #212).
    let reachable = facts.dead_since.is_none_or(|since| facts.oldest_pinned < since);
    (reachable && !mutant::active("gc.reclaim_ignoring_pins")).then_some(Held::View)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: FileStatus = FileStatus {
        is_head: false,
        is_segment: true,
        is_below_checkpoint: true,
        is_uncommitted: false,
        is_wanted_by_raft: false,
        live_records: 0,
        dead_since: Some(VersionId(7)),
        oldest_pinned: VersionId(7),
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
        assert_eq!(held(&FileStatus { live_records: 1, ..DEAD }), Some(Held::Live));
        assert_eq!(held(&FileStatus { oldest_pinned: VersionId(6), ..DEAD }), Some(Held::View));
        assert_eq!(held(&FileStatus { dead_since: None, ..DEAD }), Some(Held::View));
    }

    #[test]
    fn files_in_key_order_need_no_checkpoint() {
        let sorted = FileStatus { is_segment: false, is_below_checkpoint: false, ..DEAD };
        assert_eq!(held(&sorted), None);
    }
}
