//! Frames of the transport between nodes: those of a message with 64 entries are encoded, or decoded
//! from the bytes of a stream.

use super::{Batch, Source};
use anyhow::{Context, Result, ensure};
use std::hint::black_box;
use stele_replica::wire::{self, ReceivedRoutes};
use stele_replica::{Body, PeerMessage, RaftEntry, RaftKind, RaftMessage};
use stele_server::transport::FrameBatch;
use stele_server::transport::frame::Frames;
use stele_server::transport::hello::Lane;
use stele_types::{
    KeyRange, LogIndex, Peer, PeerId, PeerRole, RegionEpoch, RegionId, RegionKind, StoreId, Term,
};

const ENTRIES: u64 = 64;
/// Bytes that a read of the stream returns, at most.
const READ_BYTES_MAX: usize = 64 << 10;
const FRAME_BYTES_MAX: usize = 128 << 20;

fn message() -> Result<PeerMessage> {
    let mut source = Source::new();
    let mut raft = RaftMessage::new(RaftKind::Append, Term(7));
    for index in 1..=ENTRIES {
        let payload = source.put(0, ENTRIES)?;
        raft.entries.push(RaftEntry { term: Term(7), index: LogIndex(index), payload });
    }
    let peer =
        |store| Peer { id: PeerId(store + 10), store: StoreId(store), role: PeerRole::Voter };
    Ok(PeerMessage {
        from_store: StoreId(1),
        to_store: StoreId(2),
        region: RegionId(2),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        range: KeyRange::all(),
        kind: RegionKind::Data,
        from: peer(1),
        to: peer(2),
        body: Body::Raft(raft),
    })
}

fn encode(frames: &mut FrameBatch, message: &PeerMessage) -> Result<()> {
    frames.clear();
    ensure!(frames.add_message(Lane::Data, message), "a message is larger than a frame");
    frames.end();
    Ok(())
}

fn parts(frames: &FrameBatch) -> impl Iterator<Item = &[u8]> {
    (0..).map_while(|number| frames.part(number))
}

pub(super) struct Encoding {
    message: PeerMessage,
    frames: FrameBatch,
}

impl Encoding {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { message: message()?, frames: FrameBatch::joining() })
    }
}

impl Batch for Encoding {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        encode(&mut self.frames, &self.message)?;
        Ok(ENTRIES)
    }

    fn check(&mut self) -> Result<()> {
        let bytes: usize = parts(&self.frames).map(<[u8]>::len).sum();
        ensure!(bytes == self.frames.bytes(), "{bytes} bytes were encoded");
        Ok(())
    }
}

pub(super) struct Decoding {
    stream: Vec<u8>,
    frames: Frames,
    decoded: Option<PeerMessage>,
}

impl Decoding {
    pub(super) fn new() -> Result<Self> {
        let mut frames = FrameBatch::joining();
        encode(&mut frames, &message()?)?;
        let stream = parts(&frames).flatten().copied().collect();
        Ok(Self { stream, frames: Frames::new(FRAME_BYTES_MAX), decoded: None })
    }
}

impl Batch for Decoding {
    fn prepare(&mut self) -> Result<()> {
        self.decoded = None;
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        let mut left = &self.stream[..];
        let mut routes = ReceivedRoutes::default();
        while !left.is_empty() {
            let room = self.frames.room();
            let spare = (room.capacity() - room.len()).min(READ_BYTES_MAX);
            let (read, rest) = left.split_at(spare.min(left.len()));
            room.extend_from_slice(read);
            left = rest;
            while let Some(frame) = self.frames.take()? {
                let take = |message| self.decoded = Some(black_box(message));
                wire::decode_joined(&frame.body, &mut routes, take)?;
            }
        }
        Ok(ENTRIES)
    }

    fn check(&mut self) -> Result<()> {
        let decoded = self.decoded.take().context("nothing was decoded")?;
        ensure!(decoded == message()?, "another message was decoded");
        Ok(())
    }
}
