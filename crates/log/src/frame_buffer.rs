//! The frame being made. What is final of a long one is on its way to the device while the rest is
//! summed and copied. Its first block, which holds the header and thus the checksum, is known last.

use stele_types::{Cause, Result};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES, VfsFile};

/// What is kept back of a frame until all of it is known.
const FIRST_BYTES: usize = MEMORY_ALIGN_BYTES;

/// Bytes worth a write of their own. Of 128, 256 and 384 KiB these brought batches of 1 MiB closest to
/// a bare write and sync on ext4 in memory: 256 to 0.71 of it, the others to 0.64, no parts to 0.61.
const PART_BYTES_MIN: usize = 256 << 10;

/// Where parts go before the frame is whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelinedWrite<'a> {
    pub file: &'a dyn VfsFile,
    pub at: u64,
}

#[derive(Debug)]
pub(crate) struct FrameBuffer<'a> {
    ahead: Option<PipelinedWrite<'a>>,
    /// The first block, once something behind it was given away.
    first: AlignedBuf,
    /// Parts given away, in order; `None` while the file has them.
    parts: Vec<Option<AlignedBuf>>,
    /// Where `rest`, which was not given away, begins.
    given: usize,
    rest: AlignedBuf,
    /// How giving a part away failed; then nothing more is given.
    failed: Result<()>,
}

impl<'a> FrameBuffer<'a> {
    /// An empty frame in the memory of `rest`.
    pub fn new(mut rest: AlignedBuf, ahead: Option<PipelinedWrite<'a>>) -> Self {
        rest.clear();
        let (first, parts) = (AlignedBuf::new(), Vec::new());
        Self { ahead, first, parts, given: 0, rest, failed: Ok(()) }
    }

    pub fn len(&self) -> usize {
        self.given + self.rest.len()
    }

    pub fn reserve(&mut self, more: usize) {
        self.rest.reserve(more);
    }

    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    pub fn pad_to_multiple(&mut self, block_bytes: usize) {
        // Parts are whole blocks.
        self.rest.pad_to_multiple(block_bytes);
    }

    /// Bytes that were not given away.
    pub fn get(&self, from: usize, to: usize) -> &[u8] {
        let kept = match from.checked_sub(self.given) {
            Some(from) => self.rest.get(from..to - self.given),
            None => self.first.get(from..to),
        };
        debug_assert!(kept.is_some(), "bytes {from} to {to} of a frame were given away");
        kept.unwrap_or_default()
    }

    /// Replaces bytes that were not given away.
    pub fn set(&mut self, from: usize, bytes: &[u8]) {
        let kept = match from.checked_sub(self.given) {
            Some(from) => self.rest.get_mut(from..from + bytes.len()),
            None => self.first.get_mut(from..from + bytes.len()),
        };
        debug_assert!(kept.is_some(), "bytes from {from} on of a frame were given away");
        if let Some(kept) = kept {
            kept.copy_from_slice(bytes);
        }
    }

    /// Whether a part is long enough to be given away.
    pub fn has_part(&self) -> bool {
        self.ahead.is_some() && self.failed.is_ok() && self.rest.len() >= PART_BYTES_MIN
    }

    /// Whether bytes up to `end` are kept until the frame is whole.
    pub fn keeps(&self, end: usize) -> bool {
        end <= FIRST_BYTES
    }

    /// Everything but the first block is as it will be: what is whole of it may go.
    pub fn give_part(&mut self) {
        let Some(ahead) = self.ahead.filter(|_| self.has_part()) else { return };
        if self.given == 0 {
            self.first = self.rest.split_front(FIRST_BYTES);
            self.given = FIRST_BYTES;
        }
        let bytes = self.rest.len() / MEMORY_ALIGN_BYTES * MEMORY_ALIGN_BYTES;
        let part = self.rest.split_front(bytes);
        self.start(ahead, part, self.given);
        self.given += bytes;
    }

    fn start(&mut self, ahead: PipelinedWrite<'_>, part: AlignedBuf, from: usize) {
        match ahead.file.start_write(part, ahead.at + from as u64, Cause::Log) {
            Ok(part) => self.parts.push(part),
            Err(error) => self.failed = Err(error),
        }
    }

    /// Whether a part was given away, and the rest must follow.
    pub fn is_begun(&self) -> bool {
        self.given > 0
    }

    /// Ends the frame: what is left of one that was begun is written too. All of it comes back in one
    /// piece; one that was not begun is still to be written.
    pub fn finish(mut self) -> Result<AlignedBuf> {
        let Some(ahead) = self.ahead.filter(|_| self.is_begun()) else { return Ok(self.rest) };
        let first = std::mem::take(&mut self.first);
        let rest = std::mem::take(&mut self.rest);
        if self.failed.is_ok() && !rest.is_empty() {
            self.start(ahead, rest, self.given);
        }
        if self.failed.is_ok() {
            self.start(ahead, first, 0);
        }
        // A sync covers only writes that have ended.
        let ended = ahead.file.finish_writes();
        self.failed?;
        let mut ended = ended?.into_iter();
        let parts = self.parts.into_iter().filter_map(|part| part.or_else(|| ended.next()));
        let mut parts: Vec<AlignedBuf> = parts.collect();
        let mut whole = parts.pop().unwrap_or_default();
        parts.into_iter().for_each(|part| whole.rejoin(part));
        Ok(whole)
    }

    /// Ends what was begun of a frame that is not to be. Without its first block it is none.
    pub fn abandon(self) -> Result<()> {
        if let Some(ahead) = self.ahead.filter(|_| self.is_begun()) {
            ahead.file.finish_writes()?;
        }
        self.failed
    }
}
