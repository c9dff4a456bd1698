//! Snapshots out: a follower that needs entries which are gone gets the pairs instead.

use super::Peer;
use crate::messages::SnapshotHeader;
use crate::output::SendSnapshot;
use crate::store::Context;
use raft::SnapshotStatus;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{KeyRange, LogIndex, Peer as PeerName, PeerId, Region, Term, keyspace};

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
        let wait = self.snapshot_waits.get(&to.id.0).copied().unwrap_or_default();
        if ctx.now.monotonic_nanos < wait.until_nanos {
            self.node.report_snapshot(to.id.0, SnapshotStatus::Failure);
            return;
        }
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

    /// A snapshot arrived at its receiver, or did not: then the next one waits, twice as long each
    /// time.
    pub fn snapshot_sent(&mut self, ctx: &Context<E>, to: PeerId, ok: bool) {
        if ok {
            self.snapshot_waits.remove(&to.0);
            return self.node.report_snapshot(to.0, SnapshotStatus::Finish);
        }
        let wait = self.snapshot_waits.entry(to.0).or_default();
        wait.failures = (wait.failures + 1).min(FAILURES_MAX);
        let least = ctx.options.election_ticks_min * ctx.options.tick_nanos;
        let pause = least << (wait.failures - 1);
        wait.until_nanos = ctx.now.monotonic_nanos + pause;
        self.node.report_snapshot(to.0, SnapshotStatus::Failure);
    }
}

/// When a snapshot to a peer that did not take the last ones may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    failures: u32,
    until_nanos: u64,
}

/// The longest pause is 2 to the power of one less than this, in least election times.
const FAILURES_MAX: u32 = 5;
