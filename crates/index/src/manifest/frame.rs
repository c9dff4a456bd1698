//! Byte layout of a manifest file, and a read-only dump of its frames, for inspection of a damaged
//! store.
//!
//! ```text
//! file   := header frame*
//! header := "STLMANIF" format:u32 number:u32 crc:u32 zeros to 32 B      crc of the 16 bytes before
//! frame  := "EDIT" body_len:u32 prev:u32 crc:u32 body zeros to a multiple of 8 B
//! ```
//! Integers are little-endian. `prev` is the crc of the previous frame (of the header, for the
//! first frame). `crc` covers number, the frame's offset, body_len, prev and body, so a frame is
//! valid only in one file at one offset.

use crate::manifest::{Change, read_all};
use std::path::Path;
use stele_types::checksum::{Crc32c, crc32c, crc32c_suffix};
use stele_types::size::FORMAT_VERSION;
use stele_types::{Error, Result};
use stele_vfs::{Open, Vfs};

const MAGIC: &[u8; 8] = b"STLMANIF";
const FRAME_MAGIC: &[u8; 4] = b"EDIT";
const HEADER_CRC_AT: usize = 16;
const FRAME_ALIGN_BYTES: usize = 8;
/// Distance between the known checksums of a search, in bytes.
const CRC_STEP_BYTES: usize = 512;
pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const FRAME_HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub number: u32,
    pub offset: u64,
    pub chain: u32,
}

/// One above the version of the other files: since edits are repeated and carry copies of footers,
/// earlier builds must refuse a manifest by its version. Manifests of earlier versions are read.
const MANIFEST_VERSION: u32 = FORMAT_VERSION + 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub offset: u64,
    /// Length with header and padding.
    pub bytes: u64,
    pub body: &'a [u8],
    prev: u32,
    crc: u32,
}

pub(crate) fn encode_header(number: u32) -> (Vec<u8>, End) {
    header_of(MANIFEST_VERSION, number)
}

pub(super) fn header_of(version: u32, number: u32) -> (Vec<u8>, End) {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    let chain = crc32c(&out);
    out.extend_from_slice(&chain.to_le_bytes());
    out.resize(HEADER_BYTES, 0);
    (out, End { number, offset: HEADER_BYTES as u64, chain })
}

/// Checks a file's header; `number` is the number in the file's name.
pub(crate) fn decode_header(path: &Path, bytes: &[u8], number: u32) -> Result<End> {
    let bad = |detail: &str| Error::corrupt(path, 0, detail);
    if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
        return Err(bad("not a manifest header"));
    }
    let found = word(bytes, 8).unwrap_or_default();
    if found > MANIFEST_VERSION {
        let path = path.to_path_buf();
        return Err(Error::NewerFormat { path, found, supported: MANIFEST_VERSION });
    }
    let chain = crc32c(bytes.get(..HEADER_CRC_AT).unwrap_or_default());
    if word(bytes, HEADER_CRC_AT) != Some(chain) {
        return Err(bad("manifest header does not match its checksum"));
    }
    if word(bytes, 12) != Some(number) {
        return Err(bad("manifest header has another number than the file name"));
    }
    Ok(End { number, offset: HEADER_BYTES as u64, chain })
}

/// Encodes a frame to be written at `end`; returns it and the end after it.
pub(crate) fn encode_frame(end: End, body: &[u8]) -> (Vec<u8>, End) {
    let crc = frame_crc(end.number, end.offset, end.chain, body.len(), crc32c(body));
    let mut out = Vec::with_capacity(FRAME_HEADER_BYTES + body.len() + FRAME_ALIGN_BYTES);
    out.extend_from_slice(FRAME_MAGIC);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&end.chain.to_le_bytes());
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(FRAME_ALIGN_BYTES), 0);
    let after = End { offset: end.offset + out.len() as u64, chain: crc, ..end };
    (out, after)
}

/// Returns the valid frame at `offset`, regardless of what it chains to.
pub(crate) fn frame_at(file: &[u8], number: u32, offset: u64) -> Option<Frame<'_>> {
    let (frame, _) = unchecked_frame_at(file, offset)?;
    let body_crc = crc32c(frame.body);
    (frame_crc(number, offset, frame.prev, frame.body.len(), body_crc) == frame.crc)
        .then_some(frame)
}

/// Parses a frame at `offset` without checking its checksum; also returns where its body begins.
fn unchecked_frame_at(file: &[u8], offset: u64) -> Option<(Frame<'_>, usize)> {
    let at = usize::try_from(offset).ok()?;
    let body_at = at.checked_add(FRAME_HEADER_BYTES)?;
    let header = file.get(at..body_at)?;
    if !header.starts_with(FRAME_MAGIC) {
        return None;
    }
    let (length, prev, crc) = (word(header, 4)? as usize, word(header, 8)?, word(header, 12)?);
    let body = file.get(body_at..body_at.checked_add(length)?)?;
    let bytes = (FRAME_HEADER_BYTES + length).next_multiple_of(FRAME_ALIGN_BYTES) as u64;
    Some((Frame { offset, bytes, body, prev, crc }, body_at))
}

pub(crate) struct Chain<'a> {
    file: &'a [u8],
    pub end: End,
    last: &'a [u8],
    search: Search<'a>,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(file: &'a [u8], end: End) -> Self {
        Self { file, end, last: &[], search: Search::new(file, end.number) }
    }

    /// Returns the next frame, or `None` at the chain's end. Skips one damaged frame of an edit
    /// that was written twice: a damaged repetition adds nothing, and an intact repetition replaces
    /// a damaged edit.
    pub(crate) fn next(&mut self) -> Option<Frame<'a>> {
        let frame =
            self.at(self.end).or_else(|| self.past_repetition()).or_else(|| self.repetition())?;
        (self.end.offset, self.end.chain) = (frame.offset + frame.bytes, frame.crc);
        self.last = frame.body;
        Some(frame)
    }

    pub(crate) fn resume(&mut self, offset: u64, prev: u32) {
        (self.end.offset, self.end.chain, self.last) = (offset, prev, &[]);
    }

    fn at(&self, end: End) -> Option<Frame<'a>> {
        frame_at(self.file, end.number, end.offset).filter(|frame| frame.prev == end.chain)
    }

    /// Returns the frame after a damaged repetition. The repetition may also be lost: a crash can
    /// lose the earlier of two unsynced writes.
    fn past_repetition(&self) -> Option<Frame<'a>> {
        let bodies = [self.last, &[]];
        let mut past = bodies.into_iter().map(|body| encode_frame(self.end, body).1);
        // bug index.lost_confirmation_refused: `past.find_map(|past| self.at(past))` is `None`
        past.find_map(|past| self.at(past))
    }

    /// Returns the repetition of a damaged edit. Its offset and chain prove that nothing else was
    /// lost: they are those that follow exactly this edit.
    fn repetition(&mut self) -> Option<Frame<'a>> {
        // bug index.repetition_ignored: return None;
        let (offset, prev) = self.search.resume_from(self.end.offset)?;
        let frame = frame_at(self.file, self.end.number, offset)?;
        let after = encode_frame(self.end, frame.body).1;
        let follows = (after.offset, after.chain) == (offset, prev);
        // bug index.resume_anywhere: let follows = true;
        follows.then_some(frame)
    }
}

/// Returns whether any valid frame starts at or after `offset`. If so, what lies at `offset` was
/// durable, because each frame is synced before the next is written.
pub(crate) fn any_frame_from(file: &[u8], number: u32, offset: u64) -> bool {
    Search::new(file, number).resume_from(offset).is_some()
}

/// Search for valid frames after damage. Bytes that look like the header of a long frame may lie
/// anywhere; reading each body would take hours for a file of some MiB.
pub(crate) struct Search<'a> {
    file: &'a [u8],
    number: u32,
    /// Checksums of the file up to each multiple of [`CRC_STEP_BYTES`], computed by the first
    /// search.
    crcs: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(file: &'a [u8], number: u32) -> Self {
        Self { file, number, crcs: Vec::new() }
    }

    pub(crate) fn resume_from(&mut self, offset: u64) -> Option<(u64, u32)> {
        let mut places = (offset..self.file.len() as u64).step_by(FRAME_ALIGN_BYTES);
        places.find_map(|at| {
            let (frame, body_at) = unchecked_frame_at(self.file, at)?;
            let before = self.crc_to(body_at);
            let all = self.crc_to(body_at + frame.body.len());
            let body_crc = crc32c_suffix(before, all, frame.body.len() as u64);
            let crc = frame_crc(self.number, at, frame.prev, frame.body.len(), body_crc);
            (crc == frame.crc).then_some((at, frame.prev))
        })
    }

    fn crc_to(&mut self, end: usize) -> u32 {
        if self.crcs.is_empty() {
            let mut crc = Crc32c::new();
            self.crcs.push(crc.finish());
            let steps = self.file.chunks_exact(CRC_STEP_BYTES);
            self.crcs.extend(steps.map(|step| crc.update(step).finish()));
        }
        let steps = end / CRC_STEP_BYTES;
        let rest = self.file.get(steps * CRC_STEP_BYTES..end).unwrap_or_default();
        let crc = self.crcs.get(steps).copied().unwrap_or_default();
        Crc32c::new().update_with_crc(crc, 0).update(rest).finish()
    }
}

fn frame_crc(number: u32, offset: u64, prev: u32, body_bytes: usize, body_crc: u32) -> u32 {
    Crc32c::new()
        .update(&number.to_le_bytes())
        .update(&offset.to_le_bytes())
        .update(&(body_bytes as u32).to_le_bytes())
        .update(&prev.to_le_bytes())
        .update_with_crc(body_crc, body_bytes as u64)
        .finish()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let part: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(part))
}

/// One frame, or a stretch of bytes without a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRecord {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Length with header and padding.
    pub bytes: u64,
    /// The frame's changes, or what is wrong.
    pub content: std::result::Result<Vec<Change>, String>,
}

/// Passes every frame of the manifest at `path` to `f`; reports and skips damaged stretches.
pub fn inspect(vfs: &dyn Vfs, path: &Path, f: &mut dyn FnMut(ManifestRecord)) -> Result<()> {
    let number = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix("manifest-")?.parse().ok())
        .ok_or_else(|| Error::invalid(format!("{} is not a manifest name", path.display())))?;
    let content = read_all(&*vfs.open(path, Open::READ)?)?;
    let header_bytes = HEADER_BYTES as u64;
    let end = match decode_header(path, &content, number) {
        Ok(end) => end,
        Err(error @ Error::NewerFormat { .. }) => return Err(error),
        Err(error) => {
            f(ManifestRecord { offset: 0, bytes: header_bytes, content: Err(error.to_string()) });
            encode_header(number).1
        }
    };
    let mut search = Search::new(&content, number);
    let mut chain = Chain::new(&content, end);
    while chain.end.offset < content.len() as u64 {
        let start = chain.end.offset;
        if let Some(frame) = chain.next() {
            if frame.offset > start {
                let (bytes, detail) =
                    (frame.offset - start, "damaged edit with a repetition, or damaged repetition");
                f(ManifestRecord { offset: start, bytes, content: Err(detail.to_owned()) });
            }
            let changes = Change::decode_all(frame.body).ok_or("unknown change".to_owned());
            f(ManifestRecord { offset: frame.offset, bytes: frame.bytes, content: changes });
            continue;
        }
        let Some((next, prev)) = search.resume_from(start) else {
            let detail = "no valid frame from here to the end".to_owned();
            let bytes = content.len() as u64 - start;
            f(ManifestRecord { offset: start, bytes, content: Err(detail) });
            break;
        };
        chain.resume(next, prev);
        let detail = if next == start { "does not chain to the previous frame" } else { "damaged" };
        f(ManifestRecord { offset: start, bytes: next - start, content: Err(detail.to_owned()) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_chain_and_a_frame_is_valid_at_its_own_place_only() {
        let (mut file, mut end) = encode_header(3);
        for body in [&b"one"[..], b"", b"three three"] {
            let (frame, after) = encode_frame(end, body);
            file.extend_from_slice(&frame);
            end = after;
        }
        let mut chain = Chain::new(&file, decode_header(Path::new("m"), &file, 3).unwrap());
        let bodies: Vec<&[u8]> = std::iter::from_fn(|| chain.next()).map(|f| f.body).collect();
        assert_eq!(bodies, [&b"one"[..], b"", b"three three"]);
        assert_eq!(chain.end, end);
        assert!(frame_at(&file, 4, HEADER_BYTES as u64).is_none());
        let moved = [&file[..HEADER_BYTES], &[0; 8], &file[HEADER_BYTES..]].concat();
        assert!(!any_frame_from(&moved, 3, HEADER_BYTES as u64));
        assert!(any_frame_from(&file, 3, HEADER_BYTES as u64 + 8));
        assert!(decode_header(Path::new("m"), &file, 4).is_err());
        file[9] = 1;
        assert!(matches!(decode_header(Path::new("m"), &file, 3), Err(Error::NewerFormat { .. })));
    }

    #[test]
    fn a_frame_is_found_after_any_number_of_headers_of_long_ones() {
        let (mut file, end) = encode_header(3);
        const HEADERS: usize = 1 << 19;
        let bytes = HEADER_BYTES + HEADERS * FRAME_ALIGN_BYTES;
        // Each header states a body up to the middle of the file, or to its end.
        for at in (HEADER_BYTES..bytes).step_by(FRAME_ALIGN_BYTES) {
            file.extend_from_slice(FRAME_MAGIC);
            let length =
                if at < bytes / 2 { bytes / 2 - at } else { bytes.saturating_sub(at + 16) };
            file.extend_from_slice(&(length as u32).to_le_bytes());
        }
        assert!(!any_frame_from(&file, 3, end.offset));
        let after = End { offset: file.len() as u64, ..end };
        file.extend_from_slice(&encode_frame(after, b"valid").0);
        let mut search = Search::new(&file, 3);
        let started = std::time::Instant::now();
        assert_eq!(search.resume_from(end.offset), Some((after.offset, end.chain)));
        assert_eq!(search.resume_from(after.offset + 8), None);
        assert!(started.elapsed().as_secs() < 20, "each header costs a read of all that follows");
    }
}
