//! Walks a segment's frames and classifies its end.
//!
//! Invariant: a bad frame is truncated only where it can be a write that was in progress at a
//! crash. One frame is written at a time, so any valid frame after it proves that it was once
//! durable.

use super::damaged_payloads::{self, Passes};
use super::later;
use super::reader::{Probe, SegmentReader};
use crate::format::FrameHeader;
use stele_types::{FileId, Lsn, Result, mutant};

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
        if frame.chain != end.chain && !mutant::active("log.chain_unchecked") {
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
    if matches!(first, Probe::Frame(_)) || mutant::active("log.wrong_read_ends_log") {
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
    if mutant::active("log.cut_corruption") {
        return Ok(None);
    }
    match at.checked_add(reader.block_bytes()) {
        Some(next) => later::next_frame(reader, next),
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
