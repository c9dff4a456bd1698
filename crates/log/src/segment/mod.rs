//! Segment files: reading frames, sealing with a sidecar, creating new ones.
//!
//! Creation of a segment. Header and carried regions are written and synced under a name that is
//! not a segment's, then the file is renamed, then the directory is synced, then the first batch is
//! written. Its blocks are those of a freed segment, or zeros that no device wrote, or come with its batches.
//! A crash therefore leaves either no segment or a complete empty one, and the old frames
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
    /// Whether its blocks count as written: those of a freed segment, or zeros.
    pub recycled: bool,
}

pub(crate) struct Begin<'a> {
    pub dir: &'a Dir,
    pub id: FileId,
    pub recycle: Option<FileId>,
    /// Length that a segment gets at once without a freed one, if the device has zeros for it; 0 for none.
    pub zeroed_bytes: u64,
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
    let recycled = how.recycle.is_some() || is_zeroed(how, &*file)?;
    let block_bytes = file.block_bytes().unwrap_or(BLOCK_BYTES_MIN).max(BLOCK_BYTES_MIN) as u32;
    let salt = Some(how.dir.vfs.random()?);
    let header = SegmentHeader {
        block_bytes,
        store: how.dir.store,
        file: how.id,
        previous: how.previous.0,
        previous_end: how.previous.1.at,
        chain: how.previous.1.chain,
        recycled,
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
    Ok(Begun { file, block_bytes, origin, end, written_bytes: buffer.len() as u64, recycled })
}

/// Part of the free space that a segment without content takes at most: what the store counts as free
/// falls by as much at once, and the files of garbage collection need room beside it.
const ZEROED_OF_FREE: u64 = 16;

/// Gives a new segment its whole length in zeros, so that a sync in it commits no metadata, as in the
/// blocks of a freed one. Returns false, and leaves the file empty, where that is not to be had.
///
/// Invariant: a device without room for a segment of zeros takes one that grows.
/// Test: `a_new_segment_is_zeroes_where_the_device_has_them_and_room_for_many`.
fn is_zeroed(how: &Begin<'_>, file: &dyn VfsFile) -> Result<bool> {
    let bytes = how.zeroed_bytes;
    let free_bytes = how.dir.vfs.free_bytes(&how.dir.path).unwrap_or(0);
    // bug log.zeroes_fill_the_device: never
    if bytes == 0 || free_bytes / ZEROED_OF_FREE < bytes {
        return Ok(false);
    }
    match file.write_zeroes(bytes) {
        Err(Error::NoSpace(_)) => file.set_len(0).map(|()| false),
        done => done,
    }
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
