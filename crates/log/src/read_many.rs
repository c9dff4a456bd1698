//! Reads of many values: one read for each stretch of neighbouring values. Neighbours in the order of
//! position share a buffer, and the handle of their file. Long reads bypass the page cache; short ones are in
//! `read_cached`.

use crate::read::TRUSTED_LENGTH_BYTES;
use crate::read_cached::Ahead;
use crate::read_pool::{ReadMany, ReadPlace, Unchecked};
use crate::read_share::PIECE_BYTES;
use crate::shared::Shared;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stele_types::{FileId, Locator, Result};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES, VfsFile};

/// Maximum unrequested bytes between two values of one read: cheaper than another read.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// The same for background work that reads many short values, as long as the unrequested bytes are
/// at most 32 KiB per value.
pub const NEAR_BYTES_MAX: u64 = 128 << 10;
/// Bytes a device reads sequentially in the time of one more short read: 40 to 50 thousand short
/// reads a second, or 1.3 GB/s.
const BYTES_OF_READ: u64 = 32 << 10;
const SHORT_VALUE_BYTES_MAX: u32 = 4 << 10;
/// Maximum read for more than one value: values of 4 MiB and the gaps between them. A device
/// serves the parts of one long read at the same time.
pub(crate) const STRETCH_BYTES_MAX: u64 = (4 << 20) + (256 << 10);
/// Minimum length of a read that may bypass the page cache: see [`crate::read_share::LongReads`].
pub(crate) const DIRECT_BYTES_MIN: u64 = 256 << 10;
/// Maximum concurrent reads of background work. A device serves reads before writes: beside 64
/// concurrent reads, a batch of the log took twice as long (p99 of puts during a full overwrite: 27
/// and 16 ms), and garbage collection freed no more.
const BACKGROUND_READS_MAX: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMode {
    /// Minimum bytes of a read that may bypass the page cache; 0: all reads bypass it.
    direct_bytes_min: u64,
    /// Maximum concurrent short reads.
    pub pending_max: usize,
    /// Maximum unrequested bytes before a short value that is read along.
    gap_bytes_max: u64,
    /// Whether a read is at most twice as long as its values, whatever the gaps.
    is_mostly_values: bool,
    /// Whether reads may wait for the device, and open files.
    pub may_wait: bool,
    /// Whether the values were not in the page cache just now: the first read is measured.
    pub is_missed: bool,
    /// Whether short reads that the page cache does not hold may bypass it.
    pub may_bypass: bool,
}

impl ReadMode {
    /// For reads that a caller waits for.
    pub(crate) const FOREGROUND: Self = Self {
        direct_bytes_min: DIRECT_BYTES_MIN,
        pending_max: usize::MAX,
        gap_bytes_max: GAP_BYTES_MAX,
        is_mostly_values: false,
        may_wait: true,
        is_missed: false,
        may_bypass: true,
    };
    /// For reads of what was just tried in memory, each value by itself.
    pub(crate) const MISSED: Self = Self { is_missed: true, ..Self::FOREGROUND };
    /// For reads of what memory holds.
    pub(crate) const IN_MEMORY: Self = Self { may_wait: false, ..Self::FOREGROUND };
    /// For background reads, while foreground work uses the device.
    pub(crate) const BACKGROUND: Self = Self {
        pending_max: BACKGROUND_READS_MAX,
        may_bypass: false,
        gap_bytes_max: NEAR_BYTES_MAX,
        ..Self::FOREGROUND
    };
    /// For reads of values that come into key order. They are scattered over all files, so that gaps
    /// are most of a long read; the scans that paid for the sort left many of them in the page cache.
    ///
    /// Invariant: a sort requests at most two bytes for each byte of its values.
    /// Test: `a_sort_reads_at_most_two_bytes_for_each_byte_of_its_values`.
    pub(crate) const SORT: Self = Self { is_mostly_values: true, ..Self::BACKGROUND };
    /// For reads of the device itself, past the page cache.
    pub(crate) const FROM_DEVICE: Self = Self { direct_bytes_min: 0, ..Self::FOREGROUND };

    fn may_read_gap(&self, next: &Locator, gap: u64) -> bool {
        gap <= self.gap_bytes_max && next.length <= SHORT_VALUE_BYTES_MAX
    }

    /// Returns whether so many bytes are not too many for a read of these values.
    fn may_read(&self, bytes: u64, wanted_bytes: u64) -> bool {
        // bug log.sort_reads_gaps: return true;
        !self.is_mostly_values || bytes <= 2 * wanted_bytes
    }
}

/// Neighbouring values that one read covers.
#[derive(Debug)]
pub(crate) struct Stretch<'a> {
    pub file: FileId,
    /// From the first byte of the first value to the last byte of the last (exclusive end).
    pub range: Range<u64>,
    /// Indices of the requested locators, sorted by position.
    pub wanted: &'a [usize],
    pub wanted_bytes: u64,
}

/// A read of whole blocks. It bypasses the page cache, except for pieces that go through it.
struct DirectRead<'a> {
    stretch: Stretch<'a>,
    file: Arc<dyn VfsFile>,
    /// The same file through the page cache; `None` if all pieces bypass it.
    cached: Option<Arc<dyn VfsFile>>,
    begin: u64,
    bytes: usize,
}

/// Direct reads that share one long buffer. A read is shorter if its file ends early.
#[derive(Default)]
struct Pack<'a> {
    reads: Vec<DirectRead<'a>>,
    bytes: usize,
}

impl Shared {
    pub(crate) fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        let read = self.read_many(at)?.into_values();
        at.iter().zip(read).map(|(at, read)| self.checked(at, read)).collect()
    }

    pub(crate) fn checked(&self, at: &Locator, read: Unchecked) -> Result<Bytes> {
        if at.check(&read.0).is_ok() { Ok(read.0) } else { self.get(at) }
    }

    /// Compares a direct read with the value's checksum; on a mismatch reads the device once more.
    pub(crate) fn check_read(&self, at: &Locator, read: &Unchecked) -> Result<()> {
        if at.check(&read.0).is_ok() { Ok(()) } else { self.check(at) }
    }

    pub(crate) fn read_many(&self, at: &[Locator]) -> Result<ReadMany> {
        self.read_many_with(at, ReadMode::FOREGROUND)
    }

    /// [`Shared::read_many`], which calls `ahead` after it requested these values, and requests from the
    /// device what that returns: the device works on it while these are read and used.
    pub(crate) fn read_many_ahead(
        &self,
        at: &[Locator],
        ahead: impl FnOnce() -> Vec<Locator>,
    ) -> Result<ReadMany> {
        let mut ahead = Some(ahead);
        let mut ahead = || ahead.take().map_or_else(Vec::new, |ahead| ahead());
        let read = self.try_read_many(at, ReadMode::FOREGROUND, Some(&mut ahead))?;
        Ok(read.unwrap_or_default())
    }

    /// Reads values that are in memory; `None` if one is not. Never waits for the device.
    pub(crate) fn read_many_in_memory(&self, at: &[Locator]) -> Result<Option<ReadMany>> {
        self.try_read_many(at, ReadMode::IN_MEMORY, None)
    }

    pub(crate) fn read_many_with(&self, at: &[Locator], how: ReadMode) -> Result<ReadMany> {
        // Only reads that may not wait are without a result.
        Ok(self.try_read_many(at, how, None)?.unwrap_or_default())
    }

    fn try_read_many(
        &self,
        at: &[Locator],
        how: ReadMode,
        ahead: Option<Ahead<'_>>,
    ) -> Result<Option<ReadMany>> {
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&i| at.get(i).map(|at| (at.file, at.offset)));
        let mut read = ReadMany::default();
        read.values.resize(at.len(), ReadPlace::default());
        let (mut cached, mut pack) = (Vec::new(), Pack::default());
        let mut rest = order.as_slice();
        while let Some(stretch) = Stretch::first_of(at, &mut rest, how) {
            read.reads += 1;
            if stretch.range.end - stretch.range.start < how.direct_bytes_min {
                read.read_bytes += stretch.bytes() as u64;
                cached.push(stretch);
                continue;
            }
            if !how.may_wait {
                return Ok(None);
            }
            // Unrequested bytes of background reads must not evict what other reads use.
            let is_kept = how.pending_max > BACKGROUND_READS_MAX || stretch.is_mostly_wanted();
            let by_pieces = how.direct_bytes_min > 0 && is_kept;
            let next = self.direct_read(stretch, by_pieces)?;
            read.read_bytes += next.bytes as u64;
            if pack.bytes + next.bytes > STRETCH_BYTES_MAX as usize {
                self.read_pack(at, std::mem::take(&mut pack), &mut read)?;
            }
            pack.bytes += next.bytes;
            pack.reads.push(next);
        }
        self.read_pack(at, pack, &mut read)?;
        // What follows long reads is probably long as well, and is not read ahead.
        let ahead = ahead.filter(|_| !cached.is_empty());
        let is_read = self.read_all_cached(at, cached, (how, ahead), &mut read)?;
        Ok(is_read.then_some(read))
    }

    fn direct_read<'a>(&self, stretch: Stretch<'a>, by_pieces: bool) -> Result<DirectRead<'a>> {
        let Range { start, end } = stretch.range;
        let align = MEMORY_ALIGN_BYTES as u64;
        let name = self.value_name(stretch.file)?;
        let file = self.handle_direct(name)?;
        let cached = by_pieces.then(|| self.handle(name)).transpose()?;
        // A damaged locator may name any length.
        let end = if end - start > TRUSTED_LENGTH_BYTES { end.min(file.len()?) } else { end };
        let (begin, end) = (start - start % align, end.max(start).next_multiple_of(align));
        Ok(DirectRead { stretch, file, cached, begin, bytes: (end - begin) as usize })
    }

    /// Reads each piece directly or through the page cache; neighbouring direct pieces are one
    /// read.
    fn read_long(&self, read: &DirectRead<'_>, memory: &mut [u8]) -> Result<usize> {
        let Some(cached) = &read.cached else { return read.file.read_at(memory, read.begin) };
        let mut done = 0;
        for (is_cached, bytes) in self.parts(read.stretch.file, read.begin, memory.len()) {
            let Some(part) = memory.get_mut(done..done + bytes) else { break };
            let from = read.begin + done as u64;
            let got = if is_cached {
                let found = cached.read_cached_at(part, from)?;
                if !found {
                    // The whole piece: the next read may need another part of it.
                    cached.will_read(from / PIECE_BYTES * PIECE_BYTES, PIECE_BYTES);
                }
                let got = if found { bytes } else { cached.read_at(part, from)? };
                // A piece that ends with the file is never found as a whole.
                if got == bytes {
                    self.long_reads.note_lookup(found);
                }
                got
            } else {
                read.file.read_at(part, from)?
            };
            done += got;
            if got < bytes {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the parts of a long read in order: whether each goes through the page cache, and its
    /// bytes.
    fn parts(&self, file: FileId, begin: u64, bytes: usize) -> Vec<(bool, usize)> {
        let end = begin + bytes as u64;
        let mut parts: Vec<(bool, usize)> = Vec::new();
        let mut at = begin;
        while at < end {
            let piece = at / PIECE_BYTES;
            let next = end.min((piece + 1) * PIECE_BYTES);
            let (is_cached, bytes) = (self.long_reads.is_cached(file, piece), (next - at) as usize);
            match parts.last_mut() {
                Some((false, before)) if !is_cached => *before += bytes,
                _ => parts.push((is_cached, bytes)),
            }
            at = next;
        }
        parts
    }

    fn read_pack(&self, at: &[Locator], pack: Pack<'_>, to: &mut ReadMany) -> Result<()> {
        if pack.reads.is_empty() {
            return Ok(());
        }
        let mut got = Vec::with_capacity(pack.reads.len());
        let mut read_into = |memory: &mut [u8]| {
            let mut rest = memory;
            for read in &pack.reads {
                let (part, after) = std::mem::take(&mut rest).split_at_mut(read.bytes);
                got.push(self.read_long(read, part)?);
                rest = after;
            }
            Ok(())
        };
        let memory: (Bytes, usize) = if (pack.bytes as u64) < DIRECT_BYTES_MIN {
            // Pooled buffers are much longer.
            let mut blocks = AlignedBuf::zeroed(pack.bytes);
            read_into(blocks.as_mut_slice())?;
            (Bytes::copy_from_slice(&blocks), pack.bytes)
        } else {
            let mut buffer = self.read_pool.take(pack.bytes);
            read_into(buffer.as_mut_slice())?;
            let allocated_bytes = buffer.capacity();
            (buffer.into_bytes(), allocated_bytes)
        };
        let mut begin = 0;
        let parts = pack.reads.iter().zip(got).map(|(read, got)| {
            let part = begin..begin + got;
            begin += read.bytes;
            (&read.stretch, read.begin, part)
        });
        to.keep(at, memory, parts.collect::<Vec<_>>().into_iter());
        Ok(())
    }
}

impl<'a> Stretch<'a> {
    /// Takes the first stretch off the sorted locators; `None` when none is left.
    pub(crate) fn first_of(at: &[Locator], order: &mut &'a [usize], how: ReadMode) -> Option<Self> {
        let (wanted, rest) = order.split_at(stretch_places(at, order, how).min(order.len()));
        *order = rest;
        let places = || wanted.iter().filter_map(|&i| at.get(i));
        let first = places().next()?;
        let end = places().map(end_of).max().unwrap_or_default();
        let wanted_bytes = places().map(|at| u64::from(at.length)).sum();
        Some(Self { file: first.file, range: u64::from(first.offset)..end, wanted, wanted_bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    fn is_mostly_wanted(&self) -> bool {
        self.wanted_bytes * 2 >= self.bytes() as u64
    }
}

fn end_of(at: &Locator) -> u64 {
    u64::from(at.offset) + u64::from(at.length)
}

/// Returns how many of the sorted locators one read covers.
fn stretch_places(at: &[Locator], order: &[usize], how: ReadMode) -> usize {
    let mut span: Option<(FileId, u64, u64)> = None;
    let (mut taken, mut gap_bytes, mut wanted_bytes) = (0, 0, 0);
    for &i in order {
        let Some(next) = at.get(i) else { break };
        wanted_bytes += u64::from(next.length);
        match &mut span {
            None => span = Some((next.file, u64::from(next.offset), end_of(next))),
            Some((file, begin, end)) => {
                let gap = u64::from(next.offset).saturating_sub(*end);
                gap_bytes += gap;
                let near = gap <= GAP_BYTES_MAX
                    || how.may_read_gap(next, gap) && gap_bytes <= taken as u64 * BYTES_OF_READ;
                let whole = end_of(next).max(*end) - *begin;
                let is_long = whole > STRETCH_BYTES_MAX || !how.may_read(whole, wanted_bytes);
                if next.file != *file || !near || is_long {
                    break;
                }
                *end = end_of(next).max(*end);
            }
        }
        taken += 1;
    }
    taken.max(1)
}
