//! Walks a segment's frames and classifies its end.
//!
//! Invariant: a bad frame is truncated only where it can be a write that was in progress at a
//! crash. One frame is written at a time, so any valid frame after it proves that it was once
//! durable.
//!
//! Search for the next whole frame after damage. A value may contain many headers of long frames:
//! reading the body of each would take hours per segment.

use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::segment::damaged_payloads;
use crate::segment::damaged_payloads::Passes;
use crate::segment::reader::{Probe, SegmentReader};
use stele_types::checksum::{Crc32c, crc32c_suffix};
use stele_types::{FileId, Lsn, Result};

/// End of the frames, and the crc of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub at: u32,
    pub chain: u32,
}

/// What follows the last whole frame of the newest segment.
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

/// Readable part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    All,
    /// Some of its payloads are unreadable.
    Some,
}

/// Callback for each frame and its body.
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

/// Returns the offset of the first whole frame at a block from `from` on.
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
