//! Reads a segment through a sliding window of whole aligned blocks.

use crate::dir::{Dir, Name};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::header::BLOCK_BYTES_MIN;
use crate::format::{Origin, SegmentHeader};
use std::path::Path;
use std::sync::Arc;
use stele_types::checksum::crc32c;
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::{AlignedBuf, VfsFile};

const WINDOW_BYTES: u64 = 1 << 20;
/// A multiple of every device's block.
const ALIGN_BYTES: u64 = 4096;

/// Content of a block where a frame could begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    Frame(FrameHeader),
    /// No whole frame. The header's bytes as they are, if the file is long enough.
    Other(Option<FrameHeader>),
}

#[derive(Debug)]
pub(crate) struct SegmentReader {
    file: Arc<dyn VfsFile>,
    id: FileId,
    len: u64,
    window: AlignedBuf,
    window_at: u64,
    pub header: SegmentHeader,
    pub bytes_read: u64,
}

impl SegmentReader {
    /// Opens a segment and checks its header. With `cached`, reads through the page cache.
    pub(crate) fn open(dir: &Dir, id: FileId, cached: bool) -> Result<Self> {
        let name = Name::Segment(id);
        let file = if cached { dir.open_read(name)? } else { dir.open_direct(name)? };
        let mut reader = Self {
            len: file.len()?,
            file,
            id,
            window: AlignedBuf::new(),
            window_at: 0,
            header: SegmentHeader {
                block_bytes: BLOCK_BYTES_MIN as u32,
                store: dir.store,
                file: id,
                previous: FileId(0),
                previous_end: 0,
                chain: 0,
                recycled: false,
                salt: None,
            },
            bytes_read: 0,
        };
        let path = reader.file.path().to_path_buf();
        let first = reader.range_ahead(0, BLOCK_BYTES_MIN, ALIGN_BYTES)?.unwrap_or_default();
        reader.header = SegmentHeader::decode(first, &path, dir.store, id)?;
        Ok(reader)
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.len
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.header.block_bytes
    }

    /// Returns what the checksums of the frames cover besides them.
    pub(crate) fn origin(&self) -> Origin {
        Origin { store: self.header.store, salt: self.header.salt }
    }

    pub(crate) fn corrupt(&self, at: u32, detail: impl Into<String>) -> Error {
        Error::corrupt(self.path(), u64::from(at), detail)
    }

    /// Drops the window and reads the file's length again.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.window.clear();
        self.len = self.file.len()?;
        Ok(())
    }

    /// Returns `bytes` at `at`; `None` when the file ends before.
    pub(crate) fn range(&mut self, at: u64, bytes: usize) -> Result<Option<&[u8]>> {
        self.range_ahead(at, bytes, WINDOW_BYTES)
    }

    fn range_ahead(&mut self, at: u64, bytes: usize, ahead: u64) -> Result<Option<&[u8]>> {
        let end = at + bytes as u64;
        if end > self.len {
            return Ok(None);
        }
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            let from = at - at % ALIGN_BYTES;
            let upto = end.max(from + ahead).next_multiple_of(ALIGN_BYTES);
            self.window.resize((upto - from) as usize);
            self.window.shrink_to(2 * WINDOW_BYTES as usize);
            let got = self.file.read_at(self.window.as_mut_slice(), from)?;
            self.window.resize(got);
            self.window_at = from;
            self.bytes_read += got as u64;
        }
        let begin = (at - self.window_at) as usize;
        Ok(self.window.as_slice().get(begin..begin + bytes))
    }

    /// Checks for a whole frame that belongs to exactly this position.
    pub(crate) fn probe(&mut self, at: u32) -> Result<Probe> {
        let Some(frame) = self.named(at)? else {
            let header = self.range(u64::from(at), FRAME_HEADER_BYTES)?;
            return Ok(Probe::Other(header.and_then(FrameHeader::decode)));
        };
        let body_crc = self.body(at, &frame)?.map(crc32c).unwrap_or_default();
        let whole = self.is_whole(&frame, body_crc);
        Ok(if whole { Probe::Frame(frame) } else { Probe::Other(Some(frame)) })
    }

    /// Returns the header at `at` if it names this position and the file is long enough for its
    /// body.
    pub(crate) fn named(&mut self, at: u32) -> Result<Option<FrameHeader>> {
        let here = Lsn::new(self.id, at);
        let len = self.len;
        let header = self.range(u64::from(at), FRAME_HEADER_BYTES)?.and_then(FrameHeader::decode);
        let fits = |frame: &FrameHeader| u64::from(at) + frame.bytes() <= len;
        Ok(header.filter(|frame| frame.is_at(here) && fits(frame)))
    }

    /// Whether a header matches a body with this checksum.
    pub(crate) fn is_whole(&self, frame: &FrameHeader, body_crc: u32) -> bool {
        // bug log.frame_crc_unchecked: return true;
        frame.checksum_with_crc(self.origin(), body_crc) == frame.crc
    }

    /// Returns the body of the frame at `at`; `None` when the file ends before.
    pub(crate) fn body(&mut self, at: u32, frame: &FrameHeader) -> Result<Option<&[u8]>> {
        self.range(u64::from(at) + FRAME_HEADER_BYTES as u64, frame.body_bytes as usize)
    }

    /// Returns the offset of the next frame.
    pub(crate) fn after(&self, at: u32, frame: &FrameHeader) -> u32 {
        let end = (u64::from(at) + frame.bytes()).next_multiple_of(u64::from(self.block_bytes()));
        u32::try_from(end).unwrap_or(u32::MAX)
    }
}
