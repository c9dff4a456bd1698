//! Search for the next whole frame after damage. A value may contain many headers of long frames:
//! reading the body of each would take hours per segment.

use super::reader::{Probe, SegmentReader};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use stele_types::Result;
use stele_types::checksum::{Crc32c, crc32c_suffix};

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
