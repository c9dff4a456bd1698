//! The unit of every connection between nodes.
//!
//! ```text
//! frame := length:u32le crc:u32le kind:u8 check:u24le body
//! ```
//!
//! `length` counts the bytes of `body` and `crc` is its CRC-32C. `check` is the low three
//! bytes of the CRC-32C of the nine bytes before it, so that a damaged length is never followed.

use super::closed::CloseReason;
use bytes::{Buf, Bytes, BytesMut};
use stele_types::checksum::crc32c;
use stele_types::mutant;

/// Bytes before a frame's body.
pub const HEADER_BYTES: usize = 12;

/// Most that is reserved for a frame before its bytes arrive: a length alone takes no memory.
const AHEAD_BYTES_MAX: usize = 2 << 20;
/// Reserved for reading when little room is left.
const BLOCK_BYTES: usize = 64 << 10;
/// Less room than this asks for a new block.
const ROOM_BYTES_MIN: usize = 4 << 10;

/// What a frame holds. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who dials.
    Hello = 1,
    /// Who answers.
    Welcome = 2,
    /// Why it does not.
    Refused = 3,
    /// Nothing but a sign of life.
    Alive = 4,
    /// A peer's message.
    Message = 5,
    /// A snapshot's header.
    Offer = 6,
    /// The snapshot may come.
    Accepted = 7,
    /// It may not, or was not taken: why.
    Declined = 8,
    /// A numbered part of a snapshot.
    Chunk = 9,
    /// How many parts and bytes there were, and their checksum.
    End = 10,
    /// All of the snapshot was taken.
    Done = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
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
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A frame that came whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it holds.
    pub kind: Kind,
    /// Shares the connection's block; messages are slices of it.
    pub body: Bytes,
}

/// A frame's header.
pub fn header(kind: Kind, body_bytes: u32, body_crc: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&body_bytes.to_le_bytes());
    header[4..8].copy_from_slice(&body_crc.to_le_bytes());
    header[8] = kind as u8;
    let check = crc32c(&header[..9]).to_le_bytes();
    header[9..].copy_from_slice(&check[..3]);
    header
}

/// A small frame in one piece.
pub fn whole(kind: Kind, body: &[u8]) -> Bytes {
    let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
    Bytes::from([&header(kind, bytes, crc32c(body)), body].concat())
}

#[derive(Clone, Copy)]
struct Expected {
    kind: Kind,
    bytes: usize,
    crc: u32,
}

/// Cuts frames out of a stream of bytes, and takes memory only as bytes arrive.
pub struct Frames {
    buffer: BytesMut,
    expected: Option<Expected>,
    bytes_max: usize,
}

impl Frames {
    /// Frames whose bodies have at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), expected: None, bytes_max }
    }

    /// The same stream with another bound from now on.
    pub fn bound(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Where the next bytes of the stream are appended; it has room.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = self.expected.map_or(0, |it| it.bytes.saturating_sub(self.buffer.len()));
        let spare = self.buffer.capacity() - self.buffer.len();
        if spare < missing.clamp(ROOM_BYTES_MIN, AHEAD_BYTES_MAX) {
            let ahead = AHEAD_BYTES_MAX.max(self.buffer.len());
            self.buffer.reserve(missing.min(ahead).max(BLOCK_BYTES));
        }
        &mut self.buffer
    }

    /// Bytes of the body whose header came and that is not whole yet; 0 for none.
    pub fn begun_bytes(&self) -> usize {
        self.expected.map_or(0, |expected| expected.bytes)
    }

    /// Bytes held back, for bounds in tests.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next whole frame, or `None` until more bytes come. After an error the stream is lost.
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
        // Rule: no byte of a body is looked at before its checksum held.
        if crc32c(&body) != expected.crc && !mutant::active("server.frame_skips_crc") {
            return Err(CloseReason::Malformed("a frame's checksum does not hold"));
        }
        Ok(Some(Frame { kind: expected.kind, body }))
    }

    fn take_header(&mut self) -> Result<Option<Expected>, CloseReason> {
        let Some(&header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, c0, c1, c2, c3, kind, check @ ..] = header;
        let sum = crc32c(&[l0, l1, l2, l3, c0, c1, c2, c3, kind]).to_le_bytes();
        if sum[..3] != check {
            return Err(CloseReason::Malformed("a frame's header is damaged"));
        }
        let Some(kind) = Kind::from_number(kind) else {
            return Err(CloseReason::Malformed("an unknown kind of frame"));
        };
        let bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if bytes > self.bytes_max && !mutant::active("server.frame_unbounded") {
            return Err(CloseReason::Malformed("a frame longer than this connection may carry"));
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
        let wire: Vec<u8> = bodies.iter().flat_map(|body| whole(Kind::Message, body)).collect();
        let out = feed(&mut Frames::new(5000), &wire).unwrap();
        let out: Vec<_> = out.iter().map(|frame| &frame.body[..]).collect();
        assert_eq!(out, bodies);
    }

    // Catalogue: 33.
    #[test]
    fn every_flipped_bit_is_found() {
        let wire = whole(Kind::Message, b"body");
        for bit in 0..wire.len() * 8 {
            let mut bad = wire.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(feed(&mut Frames::new(1 << 20), &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_at_once() {
        let header = header(Kind::Message, 1001, 0);
        assert!(feed(&mut Frames::new(1000), &header).is_err());
    }

    #[test]
    fn a_length_alone_takes_no_memory() {
        let mut frames = Frames::new(128 << 20);
        assert_eq!(feed(&mut frames, &header(Kind::Message, 128 << 20, 0)).unwrap(), []);
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
        let wire = whole(Kind::Message, &[1; 88]);
        for _ in 0..1000 {
            frames.room().extend_from_slice(&wire);
            kept.push(frames.take().unwrap().unwrap().body);
        }
        let starts: Vec<usize> = kept.iter().map(|body| body.as_ptr() as usize).collect();
        let jumps = starts.windows(2).filter(|pair| pair[1] != pair[0] + wire.len()).count();
        assert!(jumps <= 2, "{} blocks for 100 kB", jumps + 1);
    }

    #[test]
    fn garbage_never_panics() {
        for seed in 0..2000 {
            let mut chance = Prng::new(seed);
            let mut wire = whole(Kind::Message, &[3; 40]).to_vec();
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
