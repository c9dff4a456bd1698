//! Unit of every connection between nodes.
//!
//! ```text
//! frame := length:u32le crc:u32le kind:u8 check:u24le body
//! ```
//!
//! `length` counts the bytes of `body` and `crc` is its CRC-32C. `check` is the low three
//! bytes of the CRC-32C of the nine bytes before it, so that a damaged length is never followed.

use super::closed::CloseReason;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use stele_types::checksum::crc32c;

/// Bytes before a frame's body.
pub const HEADER_BYTES: usize = 12;

/// Most bytes reserved for a frame before they arrive: a length alone takes no memory.
const RESERVE_BYTES_MAX: usize = 2 << 20;
/// Bytes reserved for reading when little room is left.
const BLOCK_BYTES: usize = 64 << 10;
/// With less room than this, another block is taken.
const ROOM_BYTES_MIN: usize = 4 << 10;
/// Bytes of the full blocks of a connection that are kept to be filled again: about as many as the
/// newest entries of a store, which stay in memory.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Kept blocks that are tried before a new one is allocated, the oldest first.
const TRIED_BLOCKS_MAX: usize = 4;

/// Content of a frame. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Identity of the dialling node.
    Hello = 1,
    /// Acceptance of a hello.
    Welcome = 2,
    /// Rejection of a hello, with the reason.
    Refused = 3,
    /// Keepalive.
    Alive = 4,
    /// Message of a peer.
    Message = 5,
    /// Header of an offered snapshot.
    Offer = 6,
    /// Acceptance of a snapshot, with the position from which it goes on.
    Accepted = 7,
    /// Refusal of a snapshot, before or after it was sent, with the reason.
    Declined = 8,
    /// Numbered chunk of a snapshot.
    Chunk = 9,
    /// Number of chunks and bytes, and their checksum.
    End = 10,
    /// The whole snapshot was received.
    Done = 11,
    /// Messages of peers.
    Messages = 12,
}

impl FrameKind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Alive,
        Self::Message,
        Self::Offer,
        Self::Accepted,
        Self::Declined,
        Self::Chunk,
        Self::End,
        Self::Done,
        Self::Messages,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Complete frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Content of the frame.
    pub kind: FrameKind,
    /// Slice of the connection's block; messages are slices of it.
    pub body: Bytes,
    /// CRC-32C of the body.
    pub crc: u32,
}

/// Encodes a frame's header.
pub fn header(kind: FrameKind, body_bytes: u32, body_crc: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&body_bytes.to_le_bytes());
    header[4..8].copy_from_slice(&body_crc.to_le_bytes());
    header[8] = kind as u8;
    let check = crc32c(&header[..9]).to_le_bytes();
    header[9..].copy_from_slice(&check[..3]);
    header
}

/// Encodes a small frame in one buffer.
pub fn whole(kind: FrameKind, body: &[u8]) -> Bytes {
    let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
    Bytes::from([&header(kind, bytes, crc32c(body)), body].concat())
}

#[derive(Clone, Copy)]
struct Expected {
    kind: FrameKind,
    bytes: usize,
    crc: u32,
}

/// Full blocks of a connection. A block is filled again once none of its frames is in use: new memory
/// costs a page fault for every 4 KiB, and a lock of the allocator.
#[derive(Default)]
struct Blocks {
    /// Each with its size, the oldest first. What is in use of it is not of this list.
    full: VecDeque<(usize, BytesMut)>,
    bytes: usize,
    /// Blocks taken since the last [`Blocks::release`].
    taken: usize,
}

impl Blocks {
    /// Returns an empty block of at least `bytes`.
    fn take(&mut self, bytes: usize) -> BytesMut {
        self.taken += 1;
        let mut tried = self.full.iter_mut().take(TRIED_BLOCKS_MAX);
        if let Some(at) = tried.position(|(_, block)| block.try_reclaim(bytes))
            && let Some((size, block)) = self.full.remove(at)
        {
            self.bytes -= size;
            return block;
        }
        BytesMut::with_capacity(bytes.next_power_of_two())
    }

    /// Keeps a block of `size` bytes.
    fn keep(&mut self, size: usize, mut block: BytesMut) {
        if !(BLOCK_BYTES..=RESERVE_BYTES_MAX).contains(&size) {
            return;
        }
        block.clear();
        self.full.push_back((size, block));
        self.bytes += size;
        while self.bytes > KEPT_BYTES_MAX {
            self.drop_oldest();
        }
    }

    /// Drops the blocks in excess of those taken since the last call.
    fn release(&mut self) {
        while self.full.len() > self.taken {
            self.drop_oldest();
        }
        self.taken = 0;
    }

    fn drop_oldest(&mut self) {
        if let Some((size, _)) = self.full.pop_front() {
            self.bytes -= size;
        }
    }
}

/// Decoder of frames from a stream of bytes; takes memory only as bytes arrive.
pub struct Frames {
    buffer: BytesMut,
    /// Size of the block of which the buffer is the end.
    block_bytes: usize,
    blocks: Blocks,
    expected: Option<Expected>,
    bytes_max: usize,
}

impl Frames {
    /// Creates a decoder of frames with at most `bytes_max` bytes of body.
    pub fn new(bytes_max: usize) -> Self {
        let (buffer, blocks) = (BytesMut::new(), Blocks::default());
        Self { buffer, block_bytes: 0, blocks, expected: None, bytes_max }
    }

    /// Changes the bound from now on.
    pub fn bound(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Returns the buffer for the next bytes of the stream; it has room.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = self.expected.map_or(0, |it| it.bytes.saturating_sub(self.buffer.len()));
        let spare = self.buffer.capacity() - self.buffer.len();
        if spare < missing.clamp(ROOM_BYTES_MIN, RESERVE_BYTES_MAX) {
            let reserve_max = RESERVE_BYTES_MAX.max(self.buffer.len());
            self.enter_block(missing.min(reserve_max).max(BLOCK_BYTES));
        }
        &mut self.buffer
    }

    /// Makes room for `more` bytes after those of the incomplete frame.
    fn enter_block(&mut self, more: usize) {
        if self.buffer.try_reclaim(more) {
            return;
        }
        let mut next = self.blocks.take(self.buffer.len() + more);
        let next_bytes = next.capacity();
        next.extend_from_slice(&self.buffer);
        let full = std::mem::replace(&mut self.buffer, next);
        self.blocks.keep(self.block_bytes, full);
        self.block_bytes = next_bytes;
    }

    /// Drops the blocks that were not needed since the last call. A connection calls it at intervals.
    pub(super) fn release_blocks(&mut self) {
        // bug server.receive_blocks_kept: skip
        self.blocks.release();
    }

    /// Returns the bytes of the incomplete body after a received header; 0 for none.
    pub(crate) fn begun_bytes(&self) -> usize {
        self.expected.map_or(0, |expected| expected.bytes)
    }

    /// Returns the bytes of the buffer and of the kept blocks, for bounds in tests.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity() + self.blocks.bytes
    }

    /// Returns the next complete frame, or `None` until more bytes arrive. After an error the
    /// stream must not be read.
    pub fn take(&mut self) -> Result<Option<Frame>, CloseReason> {
        let expected = match self.expected {
            Some(expected) => expected,
            None => match self.take_header()? {
                Some(expected) => *self.expected.insert(expected),
                None => return Ok(None),
            },
        };
        if self.buffer.len() < expected.bytes {
            return Ok(None);
        }
        self.expected = None;
        let body = self.buffer.split_to(expected.bytes).freeze();
        // Invariant: a body is not read before its checksum is verified.
        // bug server.frame_skips_crc: never
        if crc32c(&body) != expected.crc {
            return Err(CloseReason::Malformed("a frame's checksum does not match"));
        }
        Ok(Some(Frame { kind: expected.kind, body, crc: expected.crc }))
    }

    fn take_header(&mut self) -> Result<Option<Expected>, CloseReason> {
        let Some(&header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, c0, c1, c2, c3, kind, check @ ..] = header;
        let computed = crc32c(&[l0, l1, l2, l3, c0, c1, c2, c3, kind]).to_le_bytes();
        if computed[..3] != check {
            return Err(CloseReason::Malformed("a frame's header is damaged"));
        }
        let Some(kind) = FrameKind::from_number(kind) else {
            return Err(CloseReason::Malformed("unknown kind of frame"));
        };
        let bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        // bug server.frame_unbounded: never
        if bytes > self.bytes_max {
            return Err(CloseReason::Malformed("a frame is longer than this connection may carry"));
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(Expected { kind, bytes, crc: u32::from_le_bytes([c0, c1, c2, c3]) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::Prng;

    fn feed(frames: &mut Frames, bytes: &[u8]) -> Result<Vec<Frame>, CloseReason> {
        let mut out = Vec::new();
        for part in bytes.chunks(7) {
            frames.room().extend_from_slice(part);
            while let Some(frame) = frames.take()? {
                out.push(frame);
            }
        }
        Ok(out)
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bodies = [&b""[..], b"x", &[7; 5000]];
        let wire: Vec<u8> =
            bodies.iter().flat_map(|body| whole(FrameKind::Message, body)).collect();
        let out = feed(&mut Frames::new(5000), &wire).unwrap();
        let out: Vec<_> = out.iter().map(|frame| &frame.body[..]).collect();
        assert_eq!(out, bodies);
    }

    // Catalogue: 33.
    #[test]
    fn every_flipped_bit_is_found() {
        let wire = whole(FrameKind::Message, b"body");
        for bit in 0..wire.len() * 8 {
            let mut bad = wire.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(feed(&mut Frames::new(1 << 20), &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_at_once() {
        let header = header(FrameKind::Message, 1001, 0);
        assert!(feed(&mut Frames::new(1000), &header).is_err());
    }

    #[test]
    fn a_length_alone_takes_no_memory() {
        let mut frames = Frames::new(128 << 20);
        assert_eq!(feed(&mut frames, &header(FrameKind::Message, 128 << 20, 0)).unwrap(), []);
        frames.room();
        assert!(frames.held_bytes() <= 3 << 20, "{}", frames.held_bytes());
        for _ in 0..6 {
            frames.room().extend_from_slice(&[0; 1 << 20]);
        }
        assert!(frames.held_bytes() <= 16 << 20, "{}", frames.held_bytes());
    }

    #[test]
    fn small_frames_share_blocks() {
        let mut frames = Frames::new(1 << 20);
        let mut kept = Vec::new();
        let wire = whole(FrameKind::Message, &[1; 88]);
        for _ in 0..1000 {
            frames.room().extend_from_slice(&wire);
            kept.push(frames.take().unwrap().unwrap().body);
        }
        let starts: Vec<usize> = kept.iter().map(|body| body.as_ptr() as usize).collect();
        let jumps = starts.windows(2).filter(|pair| pair[1] != pair[0] + wire.len()).count();
        assert!(jumps <= 2, "{} blocks for 100 kB", jumps + 1);
    }

    /// Receives `count` frames of `bytes` and returns their bodies.
    fn receive(frames: &mut Frames, count: u8, bytes: usize) -> Vec<Bytes> {
        let receive = |n: u8| {
            let wire = whole(FrameKind::Message, &vec![n; bytes]);
            for part in wire.chunks(ROOM_BYTES_MIN) {
                frames.room().extend_from_slice(part);
            }
            frames.take().unwrap().unwrap().body
        };
        (0..count).map(receive).collect()
    }

    #[test]
    fn a_block_is_filled_again_once_its_frames_are_gone_and_never_before() {
        let mut frames = Frames::new(1 << 20);
        let first = receive(&mut frames, 40, 30_000);
        let places: Vec<_> = first.iter().map(|body| body.as_ptr()).collect();
        assert!(frames.held_bytes() > 39 * 30_000);
        let second = receive(&mut frames, 40, 30_000);
        let is_whole = |bodies: &[Bytes]| {
            bodies.iter().enumerate().all(|(n, body)| body[..] == vec![n as u8; 30_000])
        };
        assert!(is_whole(&first) && is_whole(&second));
        drop(first);
        let third = receive(&mut frames, 40, 30_000);
        assert!(is_whole(&second) && is_whole(&third));
        let reused = third.iter().filter(|body| places.contains(&body.as_ptr())).count();
        assert!(reused > 30, "{reused} of 40");
    }

    #[test]
    fn the_blocks_of_a_burst_are_bounded_and_are_released_once_it_is_over() {
        let mut frames = Frames::new(1 << 20);
        let kept: Vec<Bytes> = (0..20).flat_map(|_| receive(&mut frames, 20, 100_000)).collect();
        assert!(frames.held_bytes() <= KEPT_BYTES_MAX + 2 * BLOCK_BYTES);
        assert!(frames.held_bytes() > KEPT_BYTES_MAX / 2);
        drop(kept);
        frames.release_blocks();
        assert!(frames.held_bytes() > KEPT_BYTES_MAX / 2, "they were needed since the last call");
        frames.release_blocks();
        assert!(frames.held_bytes() <= 4 * BLOCK_BYTES, "{}", frames.held_bytes());
    }

    #[test]
    fn garbage_never_panics() {
        for seed in 0..2000 {
            let mut chance = Prng::new(seed);
            let mut wire = whole(FrameKind::Message, &[3; 40]).to_vec();
            for _ in 0..chance.below(4) {
                let at = chance.below(wire.len() as u64) as usize;
                wire[at] = chance.draw() as u8;
            }
            wire.truncate(chance.below(wire.len() as u64 + 1) as usize);
            wire.extend((0..chance.below(64)).map(|_| chance.draw() as u8));
            let mut frames = Frames::new(1 << 10);
            let _ = feed(&mut frames, &wire);
            assert!(frames.held_bytes() <= 2 * BLOCK_BYTES, "seed {seed}");
        }
    }
}
