//! Read-only dump of a manifest's frames, for inspection of a damaged store.

use super::{Change, frame, read_all};
use std::path::Path;
use stele_types::{Error, Result};
use stele_vfs::{Open, Vfs};

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
    let header_bytes = frame::HEADER_BYTES as u64;
    let end = match frame::decode_header(path, &content, number) {
        Ok(end) => end,
        Err(error @ Error::NewerFormat { .. }) => return Err(error),
        Err(error) => {
            f(ManifestRecord { offset: 0, bytes: header_bytes, content: Err(error.to_string()) });
            frame::encode_header(number).1
        }
    };
    let mut search = frame::Search::new(&content, number);
    let mut chain = frame::Chain::new(&content, end);
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
