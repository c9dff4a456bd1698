//! The items of a segment, from its sidecar if that is complete, otherwise from its frames.

use super::damaged_payloads::{self, Passes};
use super::reader::SegmentReader;
use super::scan::{self, End, Payloads};
use super::{chunks::ChunkReader, sidecar};
use crate::dir::Dir;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{Form, FrameHeader, Item, Items};
use stele_types::{Error, FileId, Lsn, Result};

pub(crate) type ItemSink<'a> = dyn FnMut(&Item<'_>) -> Result<()> + 'a;

/// Passes the items of one frame that was read from `path` to `f`.
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

/// Passes the items of a sidecar to `f`.
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

/// Passes the items of a segment to `f`, from its sidecar or its frames. A sidecar is read twice,
/// first for its checksums: no item may be passed twice if the second half turns out to be damaged.
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
