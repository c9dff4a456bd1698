//! Reads of many values: one read for each stretch of neighbouring values. Short reads that miss
//! the page cache are all requested from the device before the first is awaited. Neighbours in the
//! order of position share a buffer, and the handle of their file.

use crate::read::{PIECE_BYTES, TRUSTED_LENGTH_BYTES};
use crate::read_pool::{ReadMany, ReadMemory, ReadPlace, ReadPool, Unchecked};
use crate::shared::Shared;
use bytes::Bytes;
use std::iter::Peekable;
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
const STRETCH_BYTES_MAX: u64 = (4 << 20) + (256 << 10);
/// Bytes of reads through the page cache that share a buffer; a longer read has its own.
const PACK_BYTES_MAX: usize = 64 << 10;
/// Minimum length of a read that may bypass the page cache: see [`crate::read::LongReads`].
const DIRECT_BYTES_MIN: u64 = 256 << 10;
/// Maximum concurrent reads of background work. A device serves reads before writes: beside 64
/// concurrent reads, a batch of the log took twice as long (p99 of puts during a full overwrite: 27
/// and 16 ms), and garbage collection freed no more.
const BACKGROUND_READS_MAX: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMode {
    /// Minimum bytes of a read that may bypass the page cache; 0: all reads bypass it.
    direct_bytes_min: u64,
    /// Maximum concurrent short reads.
    pending_max: usize,
    /// Maximum unrequested bytes before a short value that is read along.
    gap_bytes_max: u64,
    /// Whether a read is at most twice as long as its values, whatever the gaps.
    is_mostly_values: bool,
    /// Whether reads may wait for the device, and open files.
    may_wait: bool,
    /// Whether the values were not in the page cache just now: the first read is measured.
    is_missed: bool,
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
    };
    /// For reads of what was just tried in memory, each value by itself.
    pub(crate) const MISSED: Self = Self { is_missed: true, ..Self::FOREGROUND };
    /// For reads of what memory holds.
    pub(crate) const IN_MEMORY: Self = Self { may_wait: false, ..Self::FOREGROUND };
    /// For background reads, while foreground work uses the device.
    pub(crate) const BACKGROUND: Self = Self {
        pending_max: BACKGROUND_READS_MAX,
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
    file: FileId,
    /// From the first byte of the first value to the last byte of the last (exclusive end).
    range: Range<u64>,
    /// Indices of the requested locators, sorted by position.
    pub wanted: &'a [usize],
    pub wanted_bytes: u64,
}

/// Reads through the page cache that share a buffer.
#[derive(Debug)]
struct CachedPack<'a> {
    reads: Vec<CachedRead<'a>>,
    memory: ReadMemory,
}

/// A read through the page cache.
#[derive(Debug)]
struct CachedRead<'a> {
    stretch: Stretch<'a>,
    /// Position in the buffer of the pack.
    begin: usize,
    /// Bytes read.
    got: usize,
    pending: Option<Pending>,
}

/// Read of the device that is not awaited.
#[derive(Debug)]
struct Pending {
    file: Arc<dyn VfsFile>,
    /// It is measured when it is awaited, and was not requested: only so its time is that of the device.
    is_measured: bool,
}

/// What is done with reads through the page cache before they are awaited.
#[derive(Clone, Copy, Debug)]
struct Start {
    tries_cache: bool,
    requests: bool,
    may_wait: bool,
    /// The next read that misses is measured.
    measures: bool,
}

/// File of the last stretch. They are sorted, so that each file is looked up once.
#[derive(Debug, Default)]
struct LastFile(Option<(FileId, OpenFile)>);

#[derive(Clone, Debug)]
struct OpenFile {
    file: Arc<dyn VfsFile>,
    /// Whether it was open before: otherwise nothing of it was tried in memory.
    was_open: bool,
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

    /// [`Shared::read_many`], which calls `ahead` before it waits for scattered values, and requests from
    /// the device what that returns: the device works on it while these are read and used.
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
        ahead: Option<&mut dyn FnMut() -> Vec<Locator>>,
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
        let ahead = ahead.filter(|_| cached.len() > 1);
        let is_read = self.read_all_cached(at, cached, (how, ahead), &mut read)?;
        Ok(is_read.then_some(read))
    }

    /// Reads stretches through the page cache. Requests all misses from the device before it waits
    /// for the first: otherwise each read would wait by itself. Returns false if it may not wait for
    /// one that misses.
    fn read_all_cached(
        &self,
        at: &[Locator],
        stretches: Vec<Stretch<'_>>,
        (how, ahead): (ReadMode, Option<&mut dyn FnMut() -> Vec<Locator>>),
        to: &mut ReadMany,
    ) -> Result<bool> {
        // One read alone need not be requested first.
        let requests = stretches.len() > 1 && how.may_wait;
        // bug log.missed_values_are_tried_again: `!how.is_missed` is `true`
        let tries_cache = !how.is_missed && (requests || !how.may_wait);
        let (may_wait, measures) = (how.may_wait, how.is_missed);
        let mut start = Start { tries_cache, requests, may_wait, measures };
        let (mut file, mut stretches) = (LastFile::default(), stretches.into_iter().peekable());
        let (mut waiting, mut pending, mut pending_bytes) = (Vec::new(), 0_usize, 0);
        while let Some(mut pack) =
            CachedPack::next(&mut stretches, how.pending_max, &self.read_pool)
        {
            if pending.saturating_add(pack.reads.len()) > how.pending_max {
                CachedPack::finish_all(&mut waiting, self, at, to)?;
                (pending, pending_bytes) = (0, 0);
            }
            let Some((misses, bytes)) = pack.start(self, &mut file, &mut start)? else {
                return Ok(false);
            };
            if misses == 0 {
                pack.finish(self, at, to)?;
                continue;
            }
            waiting.push(pack);
            (pending, pending_bytes) = (pending + misses, pending_bytes + bytes);
            if pending_bytes >= STRETCH_BYTES_MAX {
                CachedPack::finish_all(&mut waiting, self, at, to)?;
                (pending, pending_bytes) = (0, 0);
            }
        }
        if let Some(ahead) = ahead {
            self.will_read_many(&ahead());
        }
        CachedPack::finish_all(&mut waiting, self, at, to)?;
        Ok(true)
    }

    /// Requests values from the device. Those of long reads are not: these bypass the page cache. A failure
    /// shows when a value is read.
    ///
    /// Invariant: at most [`STRETCH_BYTES_MAX`] bytes are requested, with the gaps between values.
    /// Test: `what_is_read_ahead_is_bounded_and_asked_for_once`.
    fn will_read_many(&self, at: &[Locator]) {
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&i| at.get(i).map(|at| (at.file, at.offset)));
        let (mut rest, mut file, mut bytes) = (order.as_slice(), LastFile::default(), 0);
        while let Some(stretch) = Stretch::first_of(at, &mut rest, ReadMode::FOREGROUND) {
            let next_bytes = stretch.bytes() as u64;
            if next_bytes >= DIRECT_BYTES_MIN {
                continue;
            }
            // bug log.reads_ahead_without_bound: never
            if bytes + next_bytes > STRETCH_BYTES_MAX {
                return;
            }
            bytes += next_bytes;
            if let Ok(Some(open)) = file.of(self, stretch.file, true) {
                open.file.will_read(stretch.range.start, next_bytes);
            }
        }
    }

    /// Returns whether memory holds the begin of a value.
    pub(crate) fn is_in_memory(&self, at: &Locator) -> bool {
        let found = |file: Arc<dyn VfsFile>| file.read_cached_at(&mut [0], u64::from(at.offset));
        self.open_handle(at.file).is_some_and(|file| found(file).unwrap_or(false))
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

impl LastFile {
    /// Returns the handle of a file; `None` if it may not be opened now.
    fn of(&mut self, shared: &Shared, file: FileId, may_wait: bool) -> Result<Option<&OpenFile>> {
        if self.0.as_ref().is_none_or(|(last, _)| *last != file) {
            self.0 = match shared.open_handle(file) {
                Some(open) => Some((file, OpenFile { file: open, was_open: true })),
                None if may_wait => {
                    let open = shared.handle(shared.value_name(file)?)?;
                    Some((file, OpenFile { file: open, was_open: false }))
                }
                None => None,
            };
        }
        Ok(self.0.as_ref().map(|(_, open)| open))
    }
}

impl<'a> CachedPack<'a> {
    /// Takes the first stretches off that share a buffer; `None` when none is left.
    fn next(
        stretches: &mut Peekable<impl Iterator<Item = Stretch<'a>>>,
        reads_max: usize,
        pool: &ReadPool,
    ) -> Option<Self> {
        let (mut reads, mut bytes) = (Vec::new(), 0);
        while reads.len() < reads_max
            && let Some(stretch) =
                stretches.next_if(|next| reads.is_empty() || bytes + next.bytes() <= PACK_BYTES_MAX)
        {
            let begin = bytes;
            bytes += stretch.bytes();
            reads.push(CachedRead { stretch, begin, got: 0, pending: None });
        }
        (!reads.is_empty()).then(|| Self { reads, memory: pool.take_short(bytes) })
    }

    /// Reads what the page cache holds and requests the rest from the device: returns the number of
    /// these reads and their bytes. `None` if it may not wait for one.
    fn start(
        &mut self,
        shared: &Shared,
        last: &mut LastFile,
        how: &mut Start,
    ) -> Result<Option<(usize, u64)>> {
        let (mut misses, mut bytes) = (0, 0);
        for read in &mut self.reads {
            let Some(open) = last.of(shared, read.stretch.file, how.may_wait)? else {
                return Ok(None);
            };
            let OpenFile { file, was_open } = open;
            let (from, part) = (read.stretch.range.start, read.within(&mut self.memory));
            if how.tries_cache && file.read_cached_at(part, from)? {
                read.got = part.len();
                continue;
            }
            // bug log.read_in_memory_waits: never
            if !how.may_wait {
                return Ok(None);
            }
            // bug log.untried_read_is_measured: `*was_open` is `true`
            let is_measured = *was_open && std::mem::take(&mut how.measures);
            if how.requests && !is_measured {
                file.will_read(from, part.len() as u64);
            }
            (misses, bytes) = (misses + 1, bytes + part.len() as u64);
            read.pending = Some(Pending { file: file.clone(), is_measured });
        }
        Ok(Some((misses, bytes)))
    }

    /// Waits for the reads of some packs and cuts the values out.
    fn finish_all(
        packs: &mut Vec<Self>,
        shared: &Shared,
        at: &[Locator],
        to: &mut ReadMany,
    ) -> Result<()> {
        packs.drain(..).try_for_each(|pack| pack.finish(shared, at, to))
    }

    fn finish(mut self, shared: &Shared, at: &[Locator], to: &mut ReadMany) -> Result<()> {
        for read in &mut self.reads {
            if let Some(Pending { file, is_measured }) = read.pending.take() {
                let from = read.stretch.range.start;
                let part = read.within(&mut self.memory);
                read.got = match shared.options.timer.as_ref().filter(|_| is_measured) {
                    Some(timer) => timer.read_missed_at(&*file, part, from)?,
                    None => file.read_at(part, from)?,
                };
            }
        }
        let allocated_bytes = self.memory.capacity();
        let parts = self.reads.iter().map(|CachedRead { stretch, begin, got, .. }| {
            (stretch, stretch.range.start, *begin..begin + got)
        });
        to.keep(at, (self.memory.into_bytes(), allocated_bytes), parts);
        Ok(())
    }
}

impl CachedRead<'_> {
    fn within<'m>(&self, memory: &'m mut ReadMemory) -> &'m mut [u8] {
        let part = self.begin..self.begin + self.stretch.bytes();
        memory.as_mut_slice().get_mut(part).unwrap_or_default()
    }
}

impl<'a> Stretch<'a> {
    /// Takes the first stretch off the sorted locators; `None` when none is left.
    fn first_of(at: &[Locator], order: &mut &'a [usize], how: ReadMode) -> Option<Self> {
        let (wanted, rest) = order.split_at(stretch_places(at, order, how).min(order.len()));
        *order = rest;
        let places = || wanted.iter().filter_map(|&i| at.get(i));
        let first = places().next()?;
        let end = places().map(end_of).max().unwrap_or_default();
        let wanted_bytes = places().map(|at| u64::from(at.length)).sum();
        Some(Self { file: first.file, range: u64::from(first.offset)..end, wanted, wanted_bytes })
    }

    fn bytes(&self) -> usize {
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
