//! Snapshots between stores: pairs of a pinned view out in chunks, a staged range in. They never
//! pass through the receiver's log.
//!
//! A connection that breaks does not end a snapshot: both sides keep what they have for
//! [`BROKEN_NANOS_MAX`], and the sender goes on after the receiver's position. An aborted snapshot leaves
//! nothing.

mod pairs;
mod reception;

pub use pairs::{POSITION_BYTES, Position};
pub use reception::{Part, Parts, Reception, ReplicaKey};

use bytes::Bytes;
use pairs::Positions;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_replica::SendSnapshot;
use stele_storage::{Pages, ScanOptions, StorageEngine};
use stele_types::{KeyRange, Result};

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from outside, for fuzz targets.
    use super::pairs;
    use bytes::Bytes;
    use stele_storage::Pair;
    use stele_types::Result;

    /// Decodes the pairs of a snapshot from its chunks.
    pub fn snapshot_pairs<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Pair>> {
        let (mut decoder, mut pairs) = (pairs::Decoder::default(), Vec::new());
        for chunk in chunks {
            pairs.extend(decoder.push(Bytes::copy_from_slice(chunk))?);
        }
        decoder.finish().map(|()| pairs)
    }

    /// Encodes pairs.
    pub fn snapshot_bytes(pairs: &[Pair]) -> Vec<u8> {
        pairs::encode(pairs).concat()
    }
}

/// Longest time for which the view of a snapshot stays pinned, and what was received stays staged, after
/// its connection broke.
pub const BROKEN_NANOS_MAX: u64 = 60_000_000_000;
/// Pause before the next connection.
pub const RETRY_NANOS: u64 = 250_000_000;

/// Sending side: the pairs of a view in chunks of a bounded size, over one connection after the
/// other while these break.
pub struct Source<E: StorageEngine> {
    view: Arc<E::View>,
    /// Ranges that no chunk has covered.
    rest: VecDeque<KeyRange>,
    chunk_bytes: usize,
    chunk_pairs: usize,
    /// Positions to which it can go back.
    positions: Positions<VecDeque<KeyRange>>,
    /// Chunks that the receiver had when it accepted the last connection.
    received_chunks: u64,
    /// Time of the first break since the receiver has made progress.
    broken_at_nanos: Option<u64>,
}

impl<E: StorageEngine> Source<E> {
    /// Creates the source of a snapshot: chunks of about `chunk_bytes`, of at most `chunk_pairs` pairs.
    pub fn new(snapshot: &SendSnapshot<E>, chunk_bytes: usize, chunk_pairs: usize) -> Self {
        Self {
            view: snapshot.view.clone(),
            rest: snapshot.ranges.iter().cloned().collect(),
            chunk_bytes,
            chunk_pairs,
            positions: Positions::new(),
            received_chunks: 0,
            broken_at_nanos: None,
        }
    }

    /// Returns whether the receiver may have a part of the snapshot, with which it can go on.
    pub fn resumes(&self) -> bool {
        !self.positions.is_empty()
    }

    /// Begins on a connection of which the receiver has what precedes `at`. Returns whether the snapshot
    /// can go on there.
    pub fn accepted(&mut self, at: Position) -> bool {
        if at.chunks() > self.received_chunks {
            self.broken_at_nanos = None;
        }
        self.received_chunks = at.chunks();
        if !self.resumes() {
            return at == Position::default();
        }
        // Invariant: the receiver gets each chunk of the view once, whatever was lost with a connection.
        let rest = self.positions.rest_at(at);
        let can_go_on = rest.is_some();
        // bug node.snapshot_goes_on_after_lost_chunks: never
        if let Some(rest) = rest {
            self.rest = rest;
        }
        can_go_on
    }

    /// Records the position after what was read so far, so that another connection can go on there.
    pub fn note(&mut self, at: Position) {
        self.positions.note(at, self.rest.clone());
    }

    /// Notes that the connection broke. Returns whether to try another, after [`RETRY_NANOS`].
    pub fn may_retry(&mut self, now_nanos: u64) -> bool {
        let since = *self.broken_at_nanos.get_or_insert(now_nanos);
        self.resumes() && now_nanos.saturating_sub(since) < BROKEN_NANOS_MAX
    }

    /// Returns the next chunk, of whole pairs, in parts; `None` after the last. One pair may be larger
    /// than a chunk. May wait for the device.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<Bytes>>> {
        while let Some(range) = self.rest.pop_front() {
            let options = ScanOptions::new(range, self.chunk_pairs);
            let options = ScanOptions { bytes_max: self.chunk_bytes, ..options };
            let mut pages = Pages::new(&*self.view, options);
            let Some(found) = pages.next_page()? else { continue };
            let rest = pages.rest();
            if !rest.is_empty() {
                self.rest.push_front(rest);
            }
            return Ok(Some(pairs::encode(&found)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::{Reception, *};
    use stele_conformance::ModelEngine;
    use stele_placement::Bootstrap;
    use stele_replica::{Input, SnapshotHeader};
    use stele_storage::{EngineView, Pair, Snapshots, StateMachine};
    use stele_types::checksum::crc32c;
    use stele_types::{LogIndex, Peer, PeerId, PeerRole, Region, RegionId, StoreId, Term};

    const PAIRS: usize = 10;

    fn header() -> SnapshotHeader {
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter };
        let (from, to) = (peer(1), peer(2));
        let [_, region] = Bootstrap::regions();
        let region = Region { peers: vec![from, to], ..region };
        let at = (LogIndex(9), Term(6));
        SnapshotHeader { region, at, leader_term: Term(6), from, to, bytes: 0, merges: None }
    }

    fn source() -> Source<ModelEngine> {
        let engine = ModelEngine::new();
        let mut ingest = engine.begin_ingest(vec![KeyRange::all()]).unwrap();
        let pair = |at: usize| Pair {
            key: Bytes::from(format!("key{at}")),
            value: Bytes::from(vec![at as u8; 30]),
            expires_at_s: 0,
        };
        engine.receive(&mut ingest, (0..PAIRS).map(pair).collect()).unwrap();
        engine.install(RegionId(2), (LogIndex(9), Term(6)), ingest).unwrap();
        let view = Arc::new(engine.view().unwrap());
        let ranges = vec![KeyRange::all()];
        let send = SendSnapshot { header: header(), to_store: StoreId(2), view, ranges };
        Source::new(&send, 1_000, 2)
    }

    /// Reads chunks as a sender does. Returns each with the position after it.
    fn send(
        source: &mut Source<ModelEngine>,
        at: &mut Position,
        chunks: usize,
    ) -> Vec<(Bytes, Position)> {
        let mut sent = Vec::new();
        while sent.len() < chunks
            && let Some(parts) = source.next_chunk().unwrap()
        {
            let chunk = Bytes::from(parts.concat());
            at.add(crc32c(&chunk), chunk.len() as u64);
            source.note(*at);
            sent.push((chunk, *at));
        }
        sent
    }

    #[test]
    fn a_source_goes_back_to_what_its_receiver_has() {
        let (mut source, mut at) = (source(), Position::default());
        let receiver = Arc::new(ModelEngine::new());
        let mut reception =
            Reception::begin(receiver.clone(), header(), vec![KeyRange::all()]).unwrap();
        assert!(!source.resumes());
        assert!(source.accepted(at));
        source.note(at);
        // Four chunks are sent, and the connection breaks when one has arrived.
        for (chunk, after) in send(&mut source, &mut at, 4).into_iter().take(1) {
            reception.receive(chunk, after).unwrap();
        }
        assert!(source.resumes() && source.may_retry(0));
        at = reception.position();
        assert_eq!(at.chunks(), 1);
        assert!(source.accepted(at));
        let rest = send(&mut source, &mut at, usize::MAX);
        assert_eq!(rest.len(), 4);
        for (chunk, after) in rest {
            reception.receive(chunk, after).unwrap();
        }
        let Ok(Input::SnapshotReceived { ingest, .. }) = reception.finish() else { panic!() };
        receiver.install(RegionId(2), (LogIndex(9), Term(6)), ingest).unwrap();
        let found = receiver.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 100)).unwrap();
        assert_eq!(found.len(), PAIRS);
    }

    #[test]
    fn a_source_gives_up_a_minute_after_the_last_progress() {
        assert!(!source().may_retry(0), "nothing was accepted: the store offers a new snapshot");
        let (mut source, mut at) = (source(), Position::default());
        source.accepted(at);
        source.note(at);
        send(&mut source, &mut at, 2);
        assert!(source.may_retry(10));
        assert!(source.may_retry(BROKEN_NANOS_MAX));
        assert!(source.accepted(at), "the receiver has more than before");
        assert!(source.may_retry(BROKEN_NANOS_MAX + 20));
        assert!(source.accepted(Position::default()), "a receiver that restarted has nothing");
        assert!(!source.may_retry(2 * BROKEN_NANOS_MAX + 20));
    }
}
