//! Walks a segment's frames and classifies its end.
//!
//! Invariant: a bad frame is truncated only where it can be a write that was in progress at a
//! crash. One frame is written at a time, so any valid frame after it proves that it was once
//! durable.

use super::chunks::ChunkReader;
use super::{scan, sidecar};
use crate::dir::{Dir, Name};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::header::BLOCK_BYTES_MIN;
use crate::format::{Form, Item, Items, Origin, SegmentHeader};
use crate::segment::damaged_payloads::{self, Passes};
use std::path::Path;
use std::sync::Arc;
use stele_types::checksum::{Crc32c, crc32c, crc32c_suffix};
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::{AlignedBuf, VfsFile};

/// End of the frames, and the crc of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub at: u32,
    pub chain: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailState {
    Nothing,
    /// A frame that confirms the last batch.
    Confirmed,
    Torn {
        bytes: u64,
        uncertain: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    All,
    /// Some of its payloads are unreadable.
    Some,
}

pub(crate) type FrameSink<'a> = dyn FnMut(&FrameHeader, &[u8], Payloads) -> Result<()> + 'a;

/// Calls `f` with each frame from the first block on. Stops at `until`, or at the first block
/// without a whole frame, unless `passes` accepts its damaged payloads. Fails when a frame is not
/// chained to the previous one: a write was lost.
pub(crate) fn frames(
    reader: &mut SegmentReader,
    until: Option<u32>,
    passes: &mut Passes<'_>,
    f: &mut FrameSink<'_>,
) -> Result<End> {
    let mut end = End { at: reader.block_bytes(), chain: reader.header.chain };
    // In a sealed segment, all frames up to its end are known to have been durable.
    let mut durable = until.unwrap_or_default();
    while until.is_none_or(|until| end.at < until) {
        let (frame, payloads) = match probe(reader, end.at)? {
            Probe::Frame(frame) => (frame, Payloads::All),
            Probe::Other(_) => match damaged_payloads::passed(reader, end, &mut durable, passes)? {
                Some(frame) => (frame, Payloads::Some),
                None => break,
            },
        };
        // bug log.chain_unchecked: never
        if frame.chain != end.chain {
            let detail = "frame is not chained to the previous one: a write was lost";
            return Err(reader.corrupt(end.at, detail));
        }
        if frame.records == 0 && frame.body_bytes == 0 && !is_first(reader, end.at) {
            // A confirming frame is not part of the log: the next batch overwrites it.
            break;
        }
        if let Some(body) = reader.body(end.at, &frame)? {
            f(&frame, body, payloads)?;
        }
        end = End { at: reader.after(end.at, &frame), chain: frame.crc };
    }
    Ok(end)
}

/// Probes a position. Reads again where the first read shows no whole frame.
///
/// Invariant: a wrong read is not the end of a log.
fn probe(reader: &mut SegmentReader, at: u32) -> Result<Probe> {
    let first = reader.probe(at)?;
    // bug log.wrong_read_ends_log: always
    if matches!(first, Probe::Frame(_)) {
        return Ok(first);
    }
    reader.refresh()?;
    reader.probe(at)
}

/// Whether this is the first frame, which carries regions and may be empty.
fn is_first(reader: &SegmentReader, at: u32) -> bool {
    at == reader.block_bytes()
}

/// Classifies what follows the last whole frame of the newest segment. Fails with `Corrupt` when a
/// valid frame lies further on: then the bytes at `end` were durable and are never truncated.
pub(crate) fn tail(reader: &mut SegmentReader, end: End) -> Result<TailState> {
    let first = reader.probe(end.at)?;
    if let Some(later) = later_frame(reader, end.at)? {
        let detail = damaged_payloads::describe(reader, end)?.unwrap_or_else(|| {
            format!("no complete batch here, but a valid one follows at {later}")
        });
        return Err(reader.corrupt(end.at, detail));
    }
    let header = match first {
        Probe::Frame(_) => return Ok(TailState::Confirmed),
        Probe::Other(None) => return Ok(TailState::Nothing),
        Probe::Other(Some(header)) => header,
    };
    let here = Lsn::new(reader.id(), end.at);
    if !is_trace(reader, end, &header)? {
        return Ok(TailState::Nothing);
    }
    let bytes = if header.at == here { header.bytes() } else { 0 };
    // A synced batch has a durable length: a batch longer than the file was never synced.
    let short = u64::from(end.at) + bytes > reader.file_bytes();
    Ok(TailState::Torn { bytes, uncertain: !short })
}

fn later_frame(reader: &mut SegmentReader, at: u32) -> Result<Option<u32>> {
    // bug log.cut_corruption: return Ok(None);
    match at.checked_add(reader.block_bytes()) {
        Some(next) => next_frame(reader, next),
        None => Ok(None),
    }
}

/// Whether part of a batch was written here. In a recycled segment old bytes are everywhere, so
/// only bytes count that name this segment or the chain.
fn is_trace(reader: &mut SegmentReader, end: End, header: &FrameHeader) -> Result<bool> {
    let named = header.at.file == reader.id() && reader.id() != FileId(0);
    if named || (header.chain == end.chain && end.chain != 0) {
        return Ok(true);
    }
    if reader.header.recycled {
        return Ok(false);
    }
    let mut at = u64::from(end.at);
    while at < reader.file_bytes() {
        let bytes = (reader.file_bytes() - at).min(u64::from(reader.block_bytes()));
        let block = reader.range(at, bytes as usize)?.unwrap_or_default();
        if block.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        at += bytes;
    }
    Ok(false)
}

/// Bodies are read one by one up to this multiple of the file's length.
const READS_OF_FILE: u64 = 2;
/// Maximum headers with bodies that are checksummed in one pass.
const HELD_MAX: usize = 1 << 20;
/// Bytes read at a time.
const STEP_BYTES: u64 = 64 << 10;

/// Returns the offset of the first whole frame at a block from `from` on. A value may contain many
/// headers of long frames: reading the body of each would take hours per segment.
pub(crate) fn next_frame(reader: &mut SegmentReader, from: u32) -> Result<Option<u32>> {
    let block = reader.block_bytes();
    let mut unread = READS_OF_FILE * reader.file_bytes();
    let mut held = Vec::new();
    let mut next = Some(from);
    while let Some(at) = next.filter(|at| u64::from(*at) < reader.file_bytes()) {
        next = at.checked_add(block);
        let Some(frame) = reader.named(at)? else { continue };
        if let Some(left) = unread.checked_sub(frame.bytes()) {
            unread = left;
            if let Probe::Frame(_) = reader.probe(at)? {
                return Ok(first_whole(reader, &held)?.or(Some(at)));
            }
            continue;
        }
        held.push(frame);
        if held.len() == HELD_MAX {
            if let Some(at) = first_whole(reader, &held)? {
                return Ok(Some(at));
            }
            held.clear();
        }
    }
    first_whole(reader, &held)
}

/// Returns the offset of the first of these frames that is whole. Uses the file's checksums up to
/// the beginnings and ends of their bodies, so the file is read once for all of them.
fn first_whole(reader: &mut SegmentReader, held: &[FrameHeader]) -> Result<Option<u32>> {
    let begin = |frame: &FrameHeader| u64::from(frame.at.offset) + FRAME_HEADER_BYTES as u64;
    let end = |frame: &FrameHeader| u64::from(frame.at.offset) + frame.bytes();
    let Some(mut at) = held.iter().map(begin).min() else { return Ok(None) };
    let mut places: Vec<u64> = held.iter().flat_map(|frame| [begin(frame), end(frame)]).collect();
    places.sort_unstable();
    places.dedup();
    let mut crc = Crc32c::new();
    let mut crcs = Vec::with_capacity(places.len());
    for place in &places {
        while at < *place {
            let bytes = (place - at).min(STEP_BYTES);
            crc.update(reader.range(at, bytes as usize)?.unwrap_or_default());
            at += bytes;
        }
        crcs.push(crc.finish());
    }
    let crc_up_to = |place: u64| {
        let found = places.binary_search(&place).ok();
        found.and_then(|i| crcs.get(i)).copied().unwrap_or_default()
    };
    let whole = held.iter().find(|frame| {
        let (before, all) = (crc_up_to(begin(frame)), crc_up_to(end(frame)));
        let body_crc = crc32c_suffix(before, all, u64::from(frame.body_bytes));
        reader.is_whole(frame, body_crc)
    });
    Ok(whole.map(|frame| frame.at.offset))
}

const WINDOW_BYTES: u64 = 1 << 20;
/// A multiple of every device's block.
const ALIGN_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    Frame(FrameHeader),
    /// No whole frame. The header's bytes as they are, if the file is long enough.
    Other(Option<FrameHeader>),
}

/// Reads a segment through a sliding window of whole aligned blocks.
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

    pub(crate) fn origin(&self) -> Origin {
        Origin { store: self.header.store, salt: self.header.salt }
    }

    pub(crate) fn corrupt(&self, at: u32, detail: impl Into<String>) -> Error {
        Error::corrupt(self.path(), u64::from(at), detail)
    }

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

    pub(crate) fn after(&self, at: u32, frame: &FrameHeader) -> u32 {
        let end = (u64::from(at) + frame.bytes()).next_multiple_of(u64::from(self.block_bytes()));
        u32::try_from(end).unwrap_or(u32::MAX)
    }
}

pub(crate) type ItemSink<'a> = dyn FnMut(&Item<'_>) -> Result<()> + 'a;

pub(crate) fn of_frame(
    path: &std::path::Path,
    frame: &FrameHeader,
    body: &[u8],
    payloads: Payloads,
    f: &mut ItemSink<'_>,
) -> Result<()> {
    let begin = Lsn::new(frame.at.file, frame.at.offset + FRAME_HEADER_BYTES as u32);
    let mut items = Items::new(Form::Frame, begin, body);
    while let Some(item) = items.next_item() {
        let malformed =
            || Error::corrupt(path, u64::from(frame.at.offset), "batch with malformed records");
        let item = item.ok_or_else(malformed)?;
        match payloads {
            Payloads::All => f(&item)?,
            Payloads::Some => f(&damaged_payloads::without_damage(item))?,
        }
    }
    Ok(())
}

pub(crate) fn of_sidecar(reader: &ChunkReader, f: &mut ItemSink<'_>) -> Result<()> {
    let segment = Lsn::new(reader.footer.file, 0);
    reader.each(&mut |at, chunk| {
        let mut items = Items::new(Form::Sidecar, segment, chunk);
        while let Some(item) = items.next_item() {
            f(&item.ok_or_else(|| reader.corrupt(at, "sidecar with malformed records"))?)?;
        }
        Ok(())
    })
}

/// Passes the items of the frames of a segment below `until` to `f`; without it, up to the first
/// bad frame.
pub(crate) fn of_frames(
    dir: &Dir,
    segment: FileId,
    until: Option<u32>,
    passes: &mut Passes<'_>,
    f: &mut ItemSink<'_>,
) -> Result<End> {
    let mut reader = SegmentReader::open(dir, segment, true)?;
    let path = reader.path().to_path_buf();
    let end = scan::frames(&mut reader, until, passes, &mut |frame, body, payloads| {
        of_frame(&path, frame, body, payloads, f)
    })?;
    match until {
        Some(until) if end.at < until => {
            Err(reader.corrupt(end.at, "no complete batch here, but the segment continues"))
        }
        _ => Ok(end),
    }
}

/// Passes the items of a segment to `f`, from its sidecar if that is complete, otherwise from its
/// frames. A sidecar is read twice, first for its checksums: no item may be passed twice if the
/// second half turns out to be damaged.
pub(crate) fn of_segment(
    dir: &Dir,
    segment: FileId,
    until: Option<u32>,
    passes: &mut Passes<'_>,
    f: &mut ItemSink<'_>,
) -> Result<()> {
    if let Ok(reader) = sidecar::open(dir, segment)
        && until.is_none_or(|until| sidecar::summary(&reader.footer).0.at == until)
        && reader.each(&mut |_, _| Ok(())).is_ok()
    {
        return of_sidecar(&reader, f);
    }
    of_frames(dir, segment, until, passes, f).map(|_| ())
}
