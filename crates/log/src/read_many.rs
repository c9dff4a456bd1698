//! Reading many values: one read for each stretch of neighbours, its values cut out of it.

use crate::read::TRUSTED_LENGTH_BYTES;
use crate::shared::Shared;
use bytes::Bytes;
use std::ops::Range;
use stele_types::{FileId, Locator, Result};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES};

/// Unwanted bytes between two values that are still read along: cheaper than another read.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Longest read for more than one value: values of 4 MiB and what lies between them. A device
/// serves the parts of one long read at the same time.
pub(crate) const STRETCH_BYTES_MAX: u64 = (4 << 20) + (256 << 10);
/// Reads from here on go past the page cache: it would only copy them, and drop what others need.
const DIRECT_BYTES_MIN: u64 = 256 << 10;

/// Bytes read for a value and not compared with its checksum: [`crate::Log::checked`] makes a value
/// of them.
#[derive(Clone, Debug, Default)]
pub struct Unchecked(Bytes);

/// One read.
struct Stretch {
    /// Offset of the first byte in the file.
    begin: u64,
    bytes: Bytes,
    /// What the bytes keep in memory.
    memory_bytes: u64,
}

impl Shared {
    pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        let read = self.read_many(at)?;
        at.iter().zip(read).map(|(at, read)| self.checked(at, read)).collect()
    }

    pub fn checked(&self, at: &Locator, read: Unchecked) -> Result<Bytes> {
        if at.check(&read.0).is_ok() { Ok(read.0) } else { self.get(at) }
    }

    /// What was read for a value past the page cache, compared with its checksum; read once more if
    /// it does not match.
    pub fn check_read(&self, at: &Locator, read: &Unchecked) -> Result<()> {
        if at.check(&read.0).is_ok() { Ok(()) } else { self.check(at) }
    }

    /// In the order of the places; short where a file ends early.
    pub fn read_many(&self, at: &[Locator]) -> Result<Vec<Unchecked>> {
        self.read_many_past(at, DIRECT_BYTES_MIN)
    }

    /// [`Shared::read_many`], with reads from so many bytes on past the page cache.
    pub fn read_many_past(&self, at: &[Locator], direct_bytes_min: u64) -> Result<Vec<Unchecked>> {
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&i| at.get(i).map(|at| (at.file, at.offset)));
        let mut read = vec![Unchecked::default(); at.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let (group, after) = rest.split_at(taken_together(at, rest));
            self.read_group(at, group, direct_bytes_min, &mut read)?;
            rest = after;
        }
        Ok(read)
    }

    fn read_group(
        &self,
        at: &[Locator],
        group: &[usize],
        direct_bytes_min: u64,
        read: &mut [Unchecked],
    ) -> Result<()> {
        let wanted = || group.iter().filter_map(|&i| Some((i, at.get(i)?)));
        let Some((_, first)) = wanted().next() else { return Ok(()) };
        let end = wanted().map(|(_, at)| end_of(at)).max().unwrap_or_default();
        let whole = u64::from(first.offset)..end;
        let stretch = self.read_stretch(first.file, whole, direct_bytes_min)?;
        let wanted_bytes: u64 = wanted().map(|(_, at)| u64::from(at.length)).sum();
        // Values share what was read if they are most of it. Else each is copied: kept ones must not
        // keep what nobody asked for.
        let shared = 2 * wanted_bytes >= stretch.memory_bytes;
        for (i, at) in wanted() {
            let from = (u64::from(at.offset) - stretch.begin) as usize;
            let within = from..from + at.length as usize;
            let (Some(slot), Some(value)) = (read.get_mut(i), stretch.bytes.get(within.clone()))
            else {
                continue;
            };
            slot.0 =
                if shared { stretch.bytes.slice(within) } else { Bytes::copy_from_slice(value) };
        }
        Ok(())
    }

    /// At least `begin..end` of a file, as far as it goes.
    fn read_stretch(
        &self,
        file: FileId,
        Range { start: begin, end }: Range<u64>,
        direct_bytes_min: u64,
    ) -> Result<Stretch> {
        let name = self.value_name(file)?;
        if end - begin < direct_bytes_min {
            let mut bytes = vec![0; (end - begin) as usize];
            let got = self.handles.get(&self.dir, name)?.read_at(&mut bytes, begin)?;
            let memory_bytes = bytes.len() as u64;
            bytes.truncate(got);
            return Ok(Stretch { begin, bytes: bytes.into(), memory_bytes });
        }
        let align = MEMORY_ALIGN_BYTES as u64;
        let file = self.handles.get_direct(&self.dir, name)?;
        // A damaged locator may name any length.
        let end = if end - begin > TRUSTED_LENGTH_BYTES { end.min(file.len()?) } else { end };
        let (begin, end) = (begin - begin % align, end.max(begin).next_multiple_of(align));
        if end - begin < DIRECT_BYTES_MIN {
            // A pooled buffer is as long as the longest read.
            let mut blocks = AlignedBuf::zeroed((end - begin) as usize);
            let got = file.read_at(blocks.as_mut_slice(), begin)?;
            let bytes = Bytes::copy_from_slice(blocks.get(..got).unwrap_or_default());
            return Ok(Stretch { begin, memory_bytes: bytes.len() as u64, bytes });
        }
        let mut buffer = self.read_pool.take((end - begin) as usize);
        let got = file.read_at(buffer.as_mut_slice(), begin)?;
        let memory_bytes = buffer.capacity() as u64;
        Ok(Stretch { begin, bytes: buffer.into_bytes().slice(..got), memory_bytes })
    }
}

fn end_of(at: &Locator) -> u64 {
    u64::from(at.offset) + u64::from(at.length)
}

/// How many of the places, sorted, one read takes.
fn taken_together(at: &[Locator], order: &[usize]) -> usize {
    let mut span: Option<(FileId, u64, u64)> = None;
    let mut taken = 0;
    for &i in order {
        let Some(next) = at.get(i) else { break };
        match &mut span {
            None => span = Some((next.file, u64::from(next.offset), end_of(next))),
            Some((file, begin, end)) => {
                let near = u64::from(next.offset) <= *end + GAP_BYTES_MAX;
                let whole = end_of(next).max(*end) - *begin;
                if next.file != *file || !near || whole > STRETCH_BYTES_MAX {
                    break;
                }
                *end = end_of(next).max(*end);
            }
        }
        taken += 1;
    }
    taken.max(1)
}
