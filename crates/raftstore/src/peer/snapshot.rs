//! Snapshots out: a follower that needs entries which are gone gets the pairs instead.

use super::Peer;
use crate::messages::SnapshotHeader;
use crate::output::SendSnapshot;
use crate::store::Context;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{KeyRange, LogIndex, Peer as PeerName, Region, Term, keyspace};

/// What a snapshot of a region holds: its descriptor and its pairs, ascending.
pub(crate) fn snapshot_ranges(region: &Region) -> Vec<KeyRange> {
    let key = keyspace::region_key(region.id);
    let mut end = key.to_vec();
    end.push(0);
    std::iter::once(KeyRange::new(key, end)).chain(region.engine_ranges()).collect()
}

impl<E: StorageEngine> Peer<E> {
    /// Hands out a snapshot of what is applied at this moment: at least what Raft had in mind.
    pub(super) fn send_snapshot(&mut self, ctx: &mut Context<E>, to: PeerName) {
        let Some(term) = self.log().term_of(self.applied) else { return };
        let Ok(view) = ctx.engine.view() else { return };
        let ranges = snapshot_ranges(&self.region);
        let size = |range| ctx.engine.range_size(range).unwrap_or_default().bytes;
        let header = SnapshotHeader {
            region: (*self.region).clone(),
            at: (LogIndex(self.applied), Term(term)),
            leader_term: Term(self.term()),
            from: self.name,
            to,
            bytes: ranges.iter().map(size).sum(),
        };
        let view = Arc::new(view);
        ctx.out.snapshots.push(SendSnapshot { header, to_store: to.store, view, ranges });
    }
}
