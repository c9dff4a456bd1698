//! The segments that recovery reads: an unbroken chain up to the newest.

use crate::RecoverFrom;
use crate::dir::{Dir, Name};
use crate::format::SegmentHeader;
use crate::segment::reader::SegmentReader;
use std::collections::BTreeSet;
use stele_types::{Error, FileId, Lsn, Result};

/// One segment of the chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub id: FileId,
    pub header: SegmentHeader,
}

/// Returns the chain, oldest first; empty when there is no segment. Fails with `Missing` when one
/// in between is missing.
pub(crate) fn links(
    dir: &Dir,
    segments: &BTreeSet<FileId>,
    from: &RecoverFrom,
) -> Result<Vec<Link>> {
    let Some(&newest) = segments.last() else { return Ok(Vec::new()) };
    if from.raft_from != FileId(0) && !segments.contains(&from.raft_from) {
        return Err(missing(dir, from.raft_from, "the first segment that the manifest needs"));
    }
    let has_index = from.raft_from != FileId(0) || from.checkpoint != Lsn::default();
    let mut chain = Vec::new();
    let mut id = newest;
    loop {
        let header = SegmentReader::open(dir, id, true)?.header;
        chain.push(Link { id, header });
        if id == from.raft_from || header.previous == FileId(0) {
            break;
        }
        if !segments.contains(&header.previous) {
            // Without an index the removed segments are unknown. If needed entries are lost with
            // them, their regions show a gap.
            if has_index {
                return Err(missing(dir, header.previous, "a segment in the middle of the log"));
            }
            break;
        }
        id = header.previous;
    }
    chain.reverse();
    Ok(chain)
}

fn missing(dir: &Dir, id: FileId, detail: &str) -> Error {
    Error::Missing { path: dir.path_of(Name::Segment(id)), detail: detail.to_string() }
}
