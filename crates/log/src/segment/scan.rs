//! Walks a segment's frames, and decides what an end means.
//!
//! The rule: a bad frame is cut off only where it can be a write that was under way at a crash.
//! One frame is under way at a time, so anything valid after it proves that it was durable once.

use super::damaged_payloads::{self, Passes};
use super::later;
use super::reader::{Probe, SegmentReader};
use crate::format::FrameHeader;
use stele_types::{FileId, Lsn, Result, mutant};

/// Where frames ended, and the crc of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub at: u32,
    pub chain: u32,
}

/// What lies behind the last whole frame of the newest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    /// A frame that confirms the last batch.
    Confirmed,
    Torn {
        bytes: u64,
        uncertain: bool,
    },
}

/// How much of a frame can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payloads {
    All,
    /// Some of its payloads can't be.
    Some,
}

/// What is called with each frame and its body.
pub(crate) type FrameSink<'a> = dyn FnMut(&FrameHeader, &[u8], Payloads) -> Result<()> + 'a;

/// Calls `f` with each frame from the first block on. Stops at `until`, or at the first block that
/// holds no whole frame, nor one with holes that `passes` lets pass. Fails when a frame is not
/// chained to the one before: a write was lost.
pub(crate) fn frames(
    reader: &mut SegmentReader,
    until: Option<u32>,
    passes: &mut Passes<'_>,
    f: &mut FrameSink<'_>,
) -> Result<End> {
    let mut end = End { at: reader.block_bytes(), chain: reader.header.chain };
    // Where a sealed segment ends, its frames are known to have been durable up to there.
    let mut durable = until.unwrap_or_default();
    while until.is_none_or(|until| end.at < until) {
        let (frame, payloads) = match reader.probe(end.at)? {
            Probe::Frame(frame) => (frame, Payloads::All),
            Probe::Other(_) => match damaged_payloads::passed(reader, end, &mut durable, passes)? {
                Some(frame) => (frame, Payloads::Some),
                None => break,
            },
        };
        if frame.chain != end.chain && !mutant::active("log.chain_unchecked") {
            let detail = "frame is not chained to the one before it: a write was lost";
            return Err(reader.corrupt(end.at, detail));
        }
        if frame.records == 0 && frame.body_bytes == 0 && !is_first(reader, end.at) {
            // A confirming frame is no part of the log: the next batch takes its place.
            break;
        }
        if let Some(body) = reader.body(end.at, &frame)? {
            f(&frame, body, payloads)?;
        }
        end = End { at: reader.after(end.at, &frame), chain: frame.crc };
    }
    Ok(end)
}

/// The first frame carries regions, and may carry none.
fn is_first(reader: &SegmentReader, at: u32) -> bool {
    at == reader.block_bytes()
}

/// Looks behind the last whole frame of the newest segment. Fails with `Corrupt` when a valid frame
/// lies further on: what is at `end` was durable, and is never cut.
pub(crate) fn behind(reader: &mut SegmentReader, end: End) -> Result<Behind> {
    let first = reader.probe(end.at)?;
    if let Some(later) = later_frame(reader, end.at)? {
        let detail = damaged_payloads::describe(reader, end)?
            .unwrap_or_else(|| format!("no whole batch here, but a valid one follows at {later}"));
        return Err(reader.corrupt(end.at, detail));
    }
    let header = match first {
        Probe::Frame(_) => return Ok(Behind::Confirmed),
        Probe::Other(None) => return Ok(Behind::Nothing),
        Probe::Other(Some(header)) => header,
    };
    let here = Lsn::new(reader.id(), end.at);
    if !is_trace(reader, end, &header)? {
        return Ok(Behind::Nothing);
    }
    let bytes = if header.at == here { header.bytes() } else { 0 };
    // A synced batch has its length durable: what the file is too short for was never synced.
    let short = u64::from(end.at) + bytes > reader.file_bytes();
    Ok(Behind::Torn { bytes, uncertain: !short })
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

/// Whether something of a batch was written here. In a recycled segment old bytes are everywhere,
/// so only what names this segment or the chain counts.
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
