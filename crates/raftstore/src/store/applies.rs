//! Entries that the owner of the store applies beside the loop.
//!
//! Until they are reported as applied, the engine may hold any part of them. What needs an exact state
//! of a region waits for the report; each such place names its rule. While no entries of a region are
//! handed out, its engine's state is exactly that of the applied index.

use crate::output::{Apply, Outputs};
use std::collections::BTreeMap;
use stele_storage::StorageEngine;
use stele_types::{CommittedEntry, LogIndex, RegionId};

/// Last entry handed out of each region that has entries handed out and not reported as applied.
#[derive(Debug, Default)]
pub(crate) struct Applies {
    last: BTreeMap<RegionId, LogIndex>,
}

impl Applies {
    /// Hands out the next entries of a replica, if there are any.
    pub fn hand_out<E: StorageEngine>(
        &mut self,
        out: &mut Outputs<E>,
        (region, incarnation): (RegionId, u64),
        entries: Vec<CommittedEntry>,
    ) {
        let Some(last) = entries.last() else { return };
        self.last.insert(region, last.index);
        out.applies.push(Apply { region, incarnation, entries });
    }

    /// Returns whether entries of the region are handed out and not reported as applied.
    pub fn has_any(&self, region: RegionId) -> bool {
        self.last.contains_key(&region)
    }

    /// Records that entries up to `index` are applied. Returns whether they were handed out.
    pub fn note_applied(&mut self, region: RegionId, index: LogIndex) -> bool {
        let Some(last) = self.last.get(&region).copied() else { return false };
        if last == index {
            self.last.remove(&region);
        }
        index <= last
    }
}
