//! Entries of an opened log that are not applied.

use super::parts::is_commit_merge;
use crate::admin;
use crate::log::Start;
use std::collections::BTreeSet;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, RegionId, Result, mutant};

/// Bytes of entries read at a time.
const FETCH_BYTES: usize = 1 << 20;

/// Unapplied entries of a log that matter before they are applied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unapplied {
    /// Entries that commit a merge.
    pub merges: BTreeSet<LogIndex>,
    /// Last two entries that change the members, the older one first.
    changes: [Option<LogIndex>; 2],
}

impl Unapplied {
    /// Reads the log of a region above what is applied.
    pub fn read<E: StorageEngine>(engine: &E, region: RegionId, start: &Start) -> Result<Self> {
        let mut found = Self::default();
        let (mut from, last) = (start.applied.next(), start.last.0);
        while from <= last {
            let entries = engine.entries(region, from, last.next(), FETCH_BYTES)?;
            let Some(end) = entries.last().map(|entry| entry.index.next()) else { break };
            for entry in entries {
                if is_commit_merge(&entry.payload) {
                    found.merges.insert(entry.index);
                }
                if admin::changes_members(&entry.payload) {
                    found.changes = [found.changes[1], Some(entry.index)];
                }
            }
            from = end;
        }
        Ok(found)
    }

    /// Returns `start` with what the log itself proves to be committed. Invariant: a replica with a
    /// change of members in its log knows that the change before it is committed, and so does not
    /// campaign with the members before both. A leader proposes a change only after it applied the
    /// one before. The durable commit index can be lower, because it does not cover a merge that is
    /// not applied.
    pub fn with_proven_commit(&self, start: &Start) -> Start {
        let mut start = *start;
        let proven = self.changes[0].unwrap_or_default();
        if !mutant::active("raftstore.earlier_change_uncommitted") {
            start.hard_state.commit = start.hard_state.commit.max(proven);
        }
        start
    }
}
