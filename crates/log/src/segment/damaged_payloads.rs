//! Holes: entries whose payload is damaged in a frame that is proven to be whole otherwise.
//!
//! A frame's checksum is over store, header and body, and each entry says its payload's. Out of the
//! checksums of parts that of the whole can be made: if the frame's own is met when what the entries
//! say stands in for their damaged payloads, then all of it but those payloads is as it was written,
//! these entries' heads included. So it is known for certain what is lost, and a copy can be told.

use super::reader::{Probe, SegmentReader};
use super::scan::End;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{Content, EntryItem, Form, FrameHeader, Item, Items};
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{LogIndex, Lsn, RegionId, Result, Term, mutant};

/// An entry whose payload is damaged, and nothing else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedPayload {
    /// Its region.
    pub region: RegionId,
    /// Its index.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// Where its payload lies. An entry may lie at two places.
    pub at: Lsn,
    /// Bytes of its payload.
    pub bytes: u32,
    /// CRC-32C of its payload.
    pub crc: u32,
    /// Where its frame begins.
    pub(crate) frame: u32,
}

impl DamagedPayload {
    /// Whether these bytes are the payload.
    pub fn is(&self, payload: &[u8]) -> bool {
        payload.len() == self.bytes as usize && crc32c(payload) == self.crc
    }
}

/// Whether a walk goes on behind a frame with this hole.
pub(crate) type Passes<'a> = dyn FnMut(&DamagedPayload) -> bool + 'a;

/// For walks that end at damage of any kind.
pub(crate) fn none(_: &DamagedPayload) -> bool {
    false
}

/// For walks that take what they need, and find out themselves whether it is lost.
pub(crate) fn any(_: &DamagedPayload) -> bool {
    true
}

/// The frame with holes that lies at `end`, if a walk passes its holes. It must be known that the
/// frame was durable: below `durable` it is; else a whole frame must follow, with nothing but such
/// frames in between, and `durable` says so from then on. One frame is under way at a time: what
/// nothing follows may be a torn write, of which any part may be missing, and stays one.
pub(crate) fn passed(
    reader: &mut SegmentReader,
    end: End,
    durable: &mut u32,
    passes: &mut Passes<'_>,
) -> Result<Option<FrameHeader>> {
    let Some(mut frame) = proven(reader, end)? else { return Ok(None) };
    if end.at >= *durable {
        let next = End { at: reader.after(end.at, &frame), chain: frame.crc };
        match whole_behind(reader, next)? {
            Some(at) => *durable = at,
            None if mutant::active("log.hole_unconfirmed") => {}
            None => return Ok(None),
        }
        // What is given is what is proven: the bytes may have been read anew.
        let Some(again) = proven(reader, end)? else { return Ok(None) };
        frame = again;
    }
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let mut passed = true;
    each(&frame, body, &mut |hole| passed &= passes(hole));
    Ok(passed.then_some(frame))
}

/// Says what is lost in the frame at `end`, if that can be mended.
pub(crate) fn describe(reader: &mut SegmentReader, end: End) -> Result<Option<String>> {
    let Some(frame) = proven(reader, end)? else { return Ok(None) };
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let (mut first, mut count) = (None, 0);
    each(&frame, body, &mut |hole| {
        first.get_or_insert(*hole);
        count += 1;
    });
    Ok(first.map(|DamagedPayload { region, index, .. }| {
        format!(
            "payloads of {count} entries are damaged, and nothing else of their batch; the first \
             is entry {index} of region {region}; a node of a cluster gets them from other replicas"
        )
    }))
}

/// The frame at `end`, if it has holes and is proven to be whole but for them.
pub(crate) fn proven(reader: &mut SegmentReader, end: End) -> Result<Option<FrameHeader>> {
    let named = reader.named(end.at)?.filter(|frame| frame.chain == end.chain);
    let fits = |frame: &FrameHeader| u32::try_from(u64::from(end.at) + frame.bytes()).is_ok();
    let Some(frame) = named.filter(fits) else { return Ok(None) };
    let body = reader.body(end.at, &frame)?.unwrap_or_default();
    let Some(crc) = crc_as_written(&frame, body) else { return Ok(None) };
    let is_proven = reader.is_whole(&frame, crc) || mutant::active("log.hole_unproven");
    Ok(is_proven.then_some(frame))
}

/// Gives the holes of a frame.
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

/// Takes what can't be read out of an item of a frame with holes.
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

/// Where the first whole frame lies, from `end` on over frames with holes only.
fn whole_behind(reader: &mut SegmentReader, mut end: End) -> Result<Option<u32>> {
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

/// The checksum of a body whose damaged payloads are as their entries say. `None` when none is
/// damaged, or when the bytes make no sense.
fn crc_as_written(frame: &FrameHeader, body: &[u8]) -> Option<u32> {
    let begin = body_at(frame);
    let mut items = Items::new(Form::Frame, begin, body);
    let (mut crc, mut summed) = (Crc32c::new(), 0);
    while let Some(item) = items.next_item() {
        let Item::Entry(entry) = item? else { continue };
        if is_intact(&entry) {
            continue;
        }
        let from = entry.at.offset.checked_sub(begin.offset)? as usize;
        crc.update(body.get(summed..from)?).update_with_crc(entry.crc, u64::from(entry.bytes));
        summed = from + entry.bytes as usize;
    }
    (summed > 0).then_some(())?;
    Some(crc.update(body.get(summed..)?).finish())
}
