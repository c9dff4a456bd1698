//! Damaged payloads: entries with a damaged payload in a frame that is proven to be intact
//! otherwise.
//!
//! A frame's checksum covers store, header and body, and each entry holds its payload's checksum.
//! The checksum of the whole can be computed from those of its parts. If the frame's checksum
//! matches when the stored checksums stand for the damaged payloads, then everything except those
//! payloads is as written, including the headers of these entries. So it is certain what is lost,
//! and a copy can be verified.

use super::scan::{End, Probe, SegmentReader};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{Content, EntryItem, Form, FrameHeader, Item, Items};
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{LogIndex, Lsn, RegionId, Result, Term};

/// An entry of which only the payload is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedPayload {
    /// The entry's region.
    pub region: RegionId,
    /// The entry's index.
    pub index: LogIndex,
    /// The entry's term.
    pub term: Term,
    /// Position of the payload. An entry may have two positions.
    pub at: Lsn,
    /// Bytes of the payload.
    pub bytes: u32,
    /// CRC-32C of the payload.
    pub crc: u32,
    pub(crate) frame: u32,
}

impl DamagedPayload {
    /// Whether these bytes are the payload.
    pub fn is(&self, payload: &[u8]) -> bool {
        payload.len() == self.bytes as usize && crc32c(payload) == self.crc
    }
}

/// Decides whether a walk continues after a frame with this damaged payload.
pub(crate) type Passes<'a> = dyn FnMut(&DamagedPayload) -> bool + 'a;

/// For walks that stop at any damage.
pub(crate) fn none(_: &DamagedPayload) -> bool {
    false
}

/// For walks that check themselves whether the payloads they need are lost.
pub(crate) fn any(_: &DamagedPayload) -> bool {
    true
}

/// Returns the frame with damaged payloads at `end`, if `passes` accepts all of them.
///
/// Invariant: such a frame is known to have been durable. Below `durable` it is. Otherwise a whole
/// frame must follow, with only such frames in between; then `durable` is raised. One frame is
/// written at a time: a frame that nothing follows may be a torn write, of which any part may be
/// missing, and is treated as one.
pub(crate) fn passed(
    reader: &mut SegmentReader,
    end: End,
    durable: &mut u32,
    passes: &mut Passes<'_>,
) -> Result<Option<FrameHeader>> {
    let Some(mut frame) = proven(reader, end)? else { return Ok(None) };
    if end.at >= *durable {
        let next = End { at: reader.after(end.at, &frame), chain: frame.crc };
        match next_whole_frame(reader, next)? {
            Some(at) => *durable = at,
            // bug log.hole_unconfirmed: `return Ok(None)` is `()`
            None => return Ok(None),
        }
        // The proven frame is returned: the bytes may have been read again.
        let Some(again) = proven(reader, end)? else { return Ok(None) };
        frame = again;
    }
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let mut passed = true;
    each(&frame, body, &mut |damaged| passed &= passes(damaged));
    Ok(passed.then_some(frame))
}

/// Describes what is lost in the frame at `end`, if it can be repaired.
pub(crate) fn describe(reader: &mut SegmentReader, end: End) -> Result<Option<String>> {
    let Some(frame) = proven(reader, end)? else { return Ok(None) };
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let (mut first, mut count) = (None, 0);
    each(&frame, body, &mut |damaged| {
        first.get_or_insert(*damaged);
        count += 1;
    });
    Ok(first.map(|DamagedPayload { region, index, .. }| {
        format!(
            "only the payloads of {count} entries of this batch are damaged; the first \
             is entry {index} of region {region}; other replicas of a cluster can restore them"
        )
    }))
}

/// Returns the frame at `end` if it has damaged payloads and is proven to be intact otherwise.
pub(crate) fn proven(reader: &mut SegmentReader, end: End) -> Result<Option<FrameHeader>> {
    let named = reader.named(end.at)?.filter(|frame| frame.chain == end.chain);
    let fits = |frame: &FrameHeader| u32::try_from(u64::from(end.at) + frame.bytes()).is_ok();
    let Some(frame) = named.filter(fits) else { return Ok(None) };
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let Some(crc) = crc_as_written(&frame, body) else { return Ok(None) };
    let is_proven = reader.is_whole(&frame, crc);
    // bug log.hole_unproven: let is_proven = true;
    Ok(is_proven.then_some(frame))
}

pub(crate) fn each(frame: &FrameHeader, body: &[u8], f: &mut dyn FnMut(&DamagedPayload)) {
    let mut items = Items::new(Form::Frame, body_at(frame), body);
    while let Some(Some(item)) = items.next_item() {
        if let Item::Entry(entry) = item
            && !is_intact(&entry)
        {
            f(&DamagedPayload {
                region: entry.region,
                index: entry.index,
                term: entry.term,
                at: entry.at,
                bytes: entry.bytes,
                crc: entry.crc,
                frame: frame.at.offset,
            });
        }
    }
}

/// Replaces an unreadable payload in an item by [`Content::Lost`].
pub(crate) fn without_damage<'a>(item: Item<'a>) -> Item<'a> {
    match item {
        Item::Entry(entry) if !is_intact(&entry) => {
            Item::Entry(EntryItem { content: Content::Lost, ..entry })
        }
        other => other,
    }
}

pub(crate) fn is_intact(entry: &EntryItem<'_>) -> bool {
    matches!(entry.content, Content::Payload(payload) if crc32c(payload) == entry.crc)
}

/// Returns the offset of the first whole frame from `end` on, across frames with damaged payloads
/// only.
fn next_whole_frame(reader: &mut SegmentReader, mut end: End) -> Result<Option<u32>> {
    loop {
        if let Probe::Frame(_) = reader.probe(end.at)? {
            return Ok(Some(end.at));
        }
        let Some(frame) = proven(reader, end)? else { return Ok(None) };
        end = End { at: reader.after(end.at, &frame), chain: frame.crc };
    }
}

fn body_at(frame: &FrameHeader) -> Lsn {
    Lsn::new(frame.at.file, frame.at.offset + FRAME_HEADER_BYTES as u32)
}

/// Computes the checksum of a body with the stored checksums in place of damaged payloads. Returns
/// `None` when no payload is damaged, or for malformed bytes.
fn crc_as_written(frame: &FrameHeader, body: &[u8]) -> Option<u32> {
    let begin = body_at(frame);
    let mut items = Items::new(Form::Frame, begin, body);
    let (mut crc, mut checksummed) = (Crc32c::new(), 0);
    while let Some(item) = items.next_item() {
        let Item::Entry(entry) = item? else { continue };
        if is_intact(&entry) {
            continue;
        }
        let from = entry.at.offset.checked_sub(begin.offset)? as usize;
        crc.update(body.get(checksummed..from)?).update_with_crc(entry.crc, u64::from(entry.bytes));
        checksummed = from + entry.bytes as usize;
    }
    (checksummed > 0).then_some(())?;
    Some(crc.update(body.get(checksummed..)?).finish())
}
