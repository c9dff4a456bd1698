//! Fences of blocks, rebuilt from the blocks, which contain their lengths.

use super::block::Block;
use super::fences::{Fences, separator};
use stele_types::{Error, Result, RunId, mutant};
use stele_vfs::VfsFile;

/// Consecutive blocks with damaged fences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    /// Number of the first block, its offset, and the separator below it.
    pub(super) first: usize,
    pub(super) start: u64,
    pub(super) below: &'a [u8],
    /// Offset after the last block.
    pub(super) end: u64,
    /// Number of blocks, if it is known.
    pub(super) blocks: Option<usize>,
}

/// Size of a block in the file, its first key and its last key.
type Outline = (u64, Vec<u8>, Vec<u8>);

/// Returns the result; `None` for damage.
pub(super) fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Rebuilds fences over all intact blocks from the start of a span. The rest, if any, is
/// unreadable: one pseudo-block holds its bytes. If the number of blocks is known, empty ones fill
/// it up: blocks after the span keep their numbers, and masks their blocks.
pub(super) fn rebuild_fences(file: &dyn VfsFile, id: RunId, span: &Span<'_>) -> Result<Fences> {
    let mut fences = Fences::starting_at(span.first, span.start);
    let mut last_key: Option<Vec<u8>> = None;
    let has_more = |fences: &Fences| span.blocks.is_none_or(|blocks| fences.len() < blocks);
    while fences.data_end() < span.end && has_more(&fences) {
        let at = fences.data_end();
        let outline = unless_damaged(outline_at(file, id, at, span.end - at))?.flatten();
        let ascends = |(_, first, _): &Outline| last_key.as_ref().is_none_or(|last| last < first);
        let Some((bytes, first, last)) = outline.filter(ascends) else { break };
        let fence = last_key.as_ref().map_or(span.below, |below| separator(below, &first));
        fences.push(fence, bytes);
        last_key = Some(last);
    }
    let left = span.end - fences.data_end();
    let missing = match span.blocks {
        Some(blocks) => blocks - fences.len(),
        None => usize::from(left > 0),
    };
    if missing == 0 && left == 0 {
        return Ok(fences.ready());
    }
    if missing == 0 {
        let detail = "blocks end before their fences";
        return Err(Error::corrupt(file.path(), fences.data_end(), detail));
    }
    // The first key above those of the last intact block.
    let fence = match last_key {
        Some(last) => [&last[..], &[0]].concat(),
        None => span.below.to_vec(),
    };
    fences.set_unreadable_from(fences.end());
    if !mutant::active("index.rubble_left_out") {
        fences.push(&fence, left);
        (1..missing).for_each(|_| fences.push(&fence, 0));
    }
    Ok(fences.ready())
}

/// Returns the block at an offset of the file, if there is one of at most `bytes_max` bytes.
fn outline_at(file: &dyn VfsFile, id: RunId, at: u64, bytes_max: u64) -> Result<Option<Outline>> {
    let mut start = [0; 4];
    file.read_exact_at(&mut start, at)?;
    let bytes = Block::bytes_on_disk(&start).filter(|bytes| *bytes as u64 <= bytes_max);
    let Some(bytes) = bytes else { return Ok(None) };
    let mut raw = vec![0; bytes];
    file.read_exact_at(&mut raw, at)?;
    let block = Block::open(file.path(), id, at, &raw.into())?;
    let key = |slot: usize| {
        let entry = block.entry(slot)?;
        Some([block.shared(), block.suffix(&entry)].concat())
    };
    let ends = key(0).zip(key(block.count().saturating_sub(1)));
    Ok(ends.map(|(first, last)| (bytes as u64, first, last)))
}
