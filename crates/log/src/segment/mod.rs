//! Segment files: reading frames, sealing with a sidecar, creating new ones.
//!
//! Creation of a segment. Header and carried regions are written and synced under a name that is
//! not a segment's, then the file is renamed, then the directory is synced, then the first batch is
//! written. A crash therefore leaves either no segment or a complete empty one, and the old frames
//! of a freed segment belong to another file.

pub(crate) mod chunks;
pub(crate) mod damaged_payloads;
pub(crate) mod scan;
pub(crate) mod sidecar;

use crate::dir::{Dir, Name};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::header::BLOCK_BYTES_MIN;
use crate::format::item::put_carried;
use crate::format::{CarriedRegion, Origin, SegmentHeader};
use scan::End;
use std::io::IoSlice;
use std::sync::Arc;
use stele_types::{Cause, Error, FileId, Lsn, Result};
use stele_vfs::{AlignedBuf, Create, Open, VfsFile};

#[derive(Debug)]
pub(crate) struct Begun {
    pub file: Arc<dyn VfsFile>,
    pub block_bytes: u32,
    pub origin: Origin,
    pub end: End,
    pub written_bytes: u64,
}

pub(crate) struct Begin<'a> {
    pub dir: &'a Dir,
    pub id: FileId,
    pub recycle: Option<FileId>,
    pub previous: (FileId, End),
    pub carried: &'a [CarriedRegion],
}

/// Creates a segment. Fails with `NoSpace` and changes nothing. After any other failure the log
/// must stop.
pub(crate) fn begin(how: &Begin<'_>, buffer: &mut AlignedBuf) -> Result<Begun> {
    let source = how.dir.path_of(Name::Free(how.recycle.unwrap_or(how.id)));
    let open = Open { write: true, create: Create::IfMissing, direct: how.dir.direct };
    let file = how.dir.vfs.open(&source, open)?;
    let begun = write(how, file, buffer).and_then(|begun| {
        how.dir.vfs.rename(&source, &how.dir.path_of(Name::Segment(how.id)))?;
        Ok(begun)
    });
    if begun.is_err() && how.recycle.is_none() {
        // It may hold the device's last free blocks; the next open removes what remains.
        let _ = how.dir.unlink(&source);
    }
    let mut begun = begun?;
    // A batch is acknowledged only in a segment with a durable name.
    // bug log.skip_dir_sync: skip
    how.dir.sync().map_err(fatal_if_full)?;
    // Errors name the segment, not the reused file.
    begun.file = how.dir.open_append(Name::Segment(how.id)).map_err(fatal_if_full)?;
    Ok(begun)
}

/// Turns a full device into a fatal error. Once the new name may be durable, appends to the old
/// segment would be lost after its end.
fn fatal_if_full(error: Error) -> Error {
    match error {
        Error::NoSpace(path) => {
            let source = std::io::Error::other("no space for the name of a new segment");
            Error::Io { op: "sync", path, source }
        }
        other => other,
    }
}

fn write(how: &Begin<'_>, file: Arc<dyn VfsFile>, buffer: &mut AlignedBuf) -> Result<Begun> {
    if how.recycle.is_none() && file.len()? > 0 {
        file.set_len(0)?;
    }
    let block_bytes = file.block_bytes().unwrap_or(BLOCK_BYTES_MIN).max(BLOCK_BYTES_MIN) as u32;
    let salt = Some(how.dir.vfs.random()?);
    let header = SegmentHeader {
        block_bytes,
        store: how.dir.store,
        file: how.id,
        previous: how.previous.0,
        previous_end: how.previous.1.at,
        chain: how.previous.1.chain,
        recycled: how.recycle.is_some(),
        salt,
    };
    let origin = Origin { store: how.dir.store, salt };
    buffer.clear();
    buffer.extend_from_slice(&header.encode());
    let crc = put_first_frame(how, &header, origin, buffer);
    buffer.pad_to_multiple(block_bytes as usize);
    file.write_at(&[IoSlice::new(buffer)], 0, Cause::Log)?;
    // The header is durable before the name: no segment is found without it.
    // bug log.skip_header_sync: skip
    file.sync_data()?;
    let end = End { at: buffer.len() as u32, chain: crc };
    Ok(Begun { file, block_bytes, origin, end, written_bytes: buffer.len() as u64 })
}

fn put_first_frame(
    how: &Begin<'_>,
    header: &SegmentHeader,
    origin: Origin,
    buffer: &mut AlignedBuf,
) -> u32 {
    let mut body = Vec::new();
    // bug log.skip_carry: skip
    how.carried.iter().for_each(|region| put_carried(&mut body, region));
    let mut frame = FrameHeader {
        body_bytes: body.len() as u32,
        crc: 0,
        at: Lsn::new(how.id, header.block_bytes),
        chain: header.chain,
        records: how.carried.len() as u32,
    };
    frame.crc = frame.checksum(origin, &body);
    debug_assert_eq!(frame.encode().len(), FRAME_HEADER_BYTES);
    buffer.extend_from_slice(&frame.encode());
    buffer.extend_from_slice(&body);
    frame.crc
}
