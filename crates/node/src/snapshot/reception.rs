//! Receiving side: chunks are decoded and staged; the loop installs the whole. A node keeps the parts of
//! snapshots that it received before their connections broke.

use super::BROKEN_NANOS_MAX;
use super::pairs::{Decoder, Position};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_replica::{Input, SnapshotHeader};
use stele_storage::StorageEngine;
use stele_types::{KeyRange, RegionId, Result, StoreId};

/// Snapshot being received. Dropping it removes what was staged.
pub struct Reception<E: StorageEngine> {
    engine: Arc<E>,
    header: SnapshotHeader,
    ingest: E::Ingest,
    decoder: Decoder,
    position: Position,
}

impl<E: StorageEngine> Reception<E> {
    /// Begins to stage an accepted snapshot with these ranges.
    pub fn begin(engine: Arc<E>, header: SnapshotHeader, ranges: Vec<KeyRange>) -> Result<Self> {
        let ingest = engine.begin_ingest(ranges)?;
        let (decoder, position) = (Decoder::default(), Position::default());
        Ok(Self { engine, header, ingest, decoder, position })
    }

    /// Returns the position after the last chunk.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Stages the pairs that a chunk completes; `after` is the position after it. May wait for the device.
    pub fn receive(&mut self, chunk: Bytes, after: Position) -> Result<()> {
        let pairs = self.decoder.push(chunk)?;
        self.engine.receive(&mut self.ingest, pairs)?;
        self.position = after;
        Ok(())
    }

    /// Ends the reception after the last chunk. Returns the input with which the loop installs the
    /// snapshot. Fails with `Invalid` when a pair is unfinished.
    pub fn finish(self) -> Result<Input<E>> {
        let Self { engine, header, ingest, decoder, .. } = self;
        decoder.finish()?;
        // Flushes here what installing would flush: the loop then stops for moments only.
        engine.checkpoint()?;
        Ok(Input::SnapshotReceived { header, ingest })
    }
}

/// Replica that a snapshot is for.
pub type ReplicaKey = (StoreId, RegionId);

/// Part of a snapshot.
pub struct Part<R> {
    /// Encoded header: sender, index and term.
    header: Bytes,
    reception: R,
    put_at_nanos: u64,
}

/// Parts that wait for their senders, each for [`BROKEN_NANOS_MAX`] at most. A part removes its files when
/// it is dropped: the callers drop them, without a lock.
pub struct Parts<R> {
    parts: BTreeMap<ReplicaKey, Part<R>>,
    parts_max: usize,
    is_closed: bool,
}

impl<R> Part<R> {
    /// Returns the reception if it is of the snapshot with this header.
    ///
    /// Invariant: what is staged is used only for the snapshot that it is a part of, of the same sender,
    /// index and term.
    /// Test: `a_part_goes_on_only_as_the_same_snapshot_and_for_a_limited_time`.
    pub fn of(self, header: &Bytes) -> Option<R> {
        let is_same = self.header == *header;
        // bug node.resumes_another_snapshot: let is_same = true;
        is_same.then_some(self.reception)
    }
}

impl<R> Parts<R> {
    /// Creates the list of at most `parts_max`, without a part.
    pub fn new(parts_max: usize) -> Self {
        Self { parts: BTreeMap::new(), parts_max, is_closed: false }
    }

    /// Returns whether no part waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Keeps a part. Returns those that go for it; after [`Parts::close`] the part itself.
    #[must_use]
    pub fn put(
        &mut self,
        replica: ReplicaKey,
        header: Bytes,
        reception: R,
        now_nanos: u64,
    ) -> Vec<Part<R>> {
        let part = Part { header, reception, put_at_nanos: now_nanos };
        if self.is_closed {
            return vec![part];
        }
        let mut dropped: Vec<Part<R>> = self.parts.insert(replica, part).into_iter().collect();
        if self.parts.len() > self.parts_max {
            let oldest = self.parts.iter().min_by_key(|(_, part)| part.put_at_nanos);
            let oldest = oldest.map(|(replica, _)| *replica);
            dropped.extend(oldest.and_then(|replica| self.parts.remove(&replica)));
        }
        dropped
    }

    /// Removes and returns the part of a replica.
    pub fn take(&mut self, replica: ReplicaKey) -> Option<Part<R>> {
        self.parts.remove(&replica)
    }

    /// Removes and returns the parts that have waited for too long.
    #[must_use]
    pub fn expire(&mut self, now_nanos: u64) -> Vec<Part<R>> {
        let is_late = |part: &Part<R>| now_nanos >= part.put_at_nanos + BROKEN_NANOS_MAX;
        let (late, kept) =
            std::mem::take(&mut self.parts).into_iter().partition(|(_, part)| is_late(part));
        self.parts = kept;
        BTreeMap::into_values(late).collect()
    }

    /// Removes and returns all parts, and keeps none from now on: their stores stop.
    #[must_use]
    pub fn close(&mut self) -> Vec<Part<R>> {
        self.is_closed = true;
        std::mem::take(&mut self.parts).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICA: ReplicaKey = (StoreId(1), RegionId(2));
    const PARTS_MAX: usize = 2;

    fn header(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn taken(all: &mut Parts<u32>, replica: ReplicaKey, text: &'static str) -> Option<u32> {
        all.take(replica)?.of(&header(text))
    }

    #[test]
    fn a_part_goes_on_only_as_the_same_snapshot_and_for_a_limited_time() {
        let mut all = Parts::new(PARTS_MAX);
        let put = |all: &mut Parts<u32>, number, now| {
            assert!(all.put(REPLICA, header("at 5"), number, now).is_empty());
        };
        put(&mut all, 1, 0);
        assert_eq!(taken(&mut all, REPLICA, "at 5"), Some(1));
        assert_eq!(taken(&mut all, REPLICA, "at 5"), None, "it is used once");
        put(&mut all, 2, 0);
        assert_eq!(taken(&mut all, REPLICA, "at 6"), None, "of another sender, index or term");
        assert_eq!(taken(&mut all, REPLICA, "at 5"), None, "and the part is gone");
        put(&mut all, 3, 0);
        assert_eq!(all.put(REPLICA, header("at 5"), 4, 10).len(), 1);
        assert!(all.expire(BROKEN_NANOS_MAX).is_empty(), "the later part has its own time");
        assert_eq!(all.expire(BROKEN_NANOS_MAX + 10).len(), 1);
        assert!(all.is_empty());
    }

    #[test]
    fn parts_are_bounded_and_go_when_the_node_stops() {
        let mut all = Parts::new(PARTS_MAX);
        let replica = |region| (StoreId(1), RegionId(region));
        let gone: Vec<usize> = (0..=PARTS_MAX as u64)
            .map(|region| all.put(replica(region), header("h"), region as u32, region).len())
            .collect();
        assert_eq!(gone, [0, 0, 1]);
        assert_eq!(taken(&mut all, replica(0), "h"), None, "the oldest is gone");
        assert_eq!(taken(&mut all, replica(1), "h"), Some(1));
        assert_eq!(all.close().len(), 1);
        assert_eq!(taken(&mut all, replica(2), "h"), None);
        assert_eq!(all.put(replica(3), header("h"), 3, 9).len(), 1, "it is given back");
        assert!(all.is_empty());
    }
}
