//! Reads of many values, or of many records to be moved, with the record headers before them in
//! sorted files: one read for each stretch of neighbouring values. Short reads that miss the page
//! cache are all requested from the device before the first is awaited.

use crate::dir::Name;
use crate::read::{PIECE_BYTES, TRUSTED_LENGTH_BYTES};
use crate::shared::Shared;
use crate::sorted;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stele_types::lock::{Mutex, rank};
use stele_types::{FileId, Locator, Lsn, Result};
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
/// Bytes of buffers of such reads that are kept for later reads.
pub(crate) const BUFFERS_KEPT_BYTES_MAX: usize = 12 << 20;
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
}

impl ReadMode {
    /// For reads that a caller waits for.
    pub(crate) const FOREGROUND: Self = Self {
        direct_bytes_min: DIRECT_BYTES_MIN,
        pending_max: usize::MAX,
        gap_bytes_max: GAP_BYTES_MAX,
    };
    /// For background reads, while foreground work uses the device.
    pub(crate) const BACKGROUND: Self = Self {
        pending_max: BACKGROUND_READS_MAX,
        gap_bytes_max: NEAR_BYTES_MAX,
        ..Self::FOREGROUND
    };
    /// For reads of the device itself, past the page cache.
    pub(crate) const FROM_DEVICE: Self = Self { direct_bytes_min: 0, ..Self::FOREGROUND };

    fn may_read_gap(&self, next: &Locator, gap: u64) -> bool {
        gap <= self.gap_bytes_max && next.length <= SHORT_VALUE_BYTES_MAX
    }
}

/// Bytes read for a value, not yet compared with its checksum. [`crate::Log::checked`] turns them
/// into a value.
#[derive(Clone, Debug, Default)]
pub struct Unchecked(Bytes);

impl Unchecked {
    /// Splits off the first `at` bytes; `None` if there are fewer.
    pub(crate) fn split(mut self, at: usize) -> Option<(Bytes, Bytes)> {
        (at <= self.0.len()).then(|| (self.0.split_to(at), self.0))
    }
}

/// Result of a read of many values.
#[derive(Debug, Default)]
pub struct ReadMany {
    /// In the order of the locators; shorter where a file ends early.
    pub values: Vec<Unchecked>,
    /// Number of stretches read; 1 if all values are neighbours.
    pub reads: usize,
    /// Bytes requested from files, whole blocks where the page cache is bypassed.
    pub read_bytes: u64,
}

struct Stretch<'a> {
    file: FileId,
    /// From the first byte of the first value to the last byte of the last (exclusive end).
    range: Range<u64>,
    /// Indices of the requested locators, sorted by position.
    wanted: &'a [usize],
    wanted_bytes: u64,
}

struct PendingRead<'a> {
    stretch: Stretch<'a>,
    file: Arc<dyn VfsFile>,
    bytes: Vec<u8>,
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
        let read = self.read_many(at)?.values;
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

    pub(crate) fn read_many_with(&self, at: &[Locator], how: ReadMode) -> Result<ReadMany> {
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&i| at.get(i).map(|at| (at.file, at.offset)));
        let mut read = ReadMany::default();
        read.values.resize_with(at.len(), Unchecked::default);
        let (mut cached, mut pack) = (Vec::new(), Pack::default());
        let mut rest = order.as_slice();
        while let Some(stretch) = Stretch::first_of(at, &mut rest, how) {
            read.reads += 1;
            if stretch.range.end - stretch.range.start < how.direct_bytes_min {
                read.read_bytes += stretch.bytes() as u64;
                cached.push(stretch);
                continue;
            }
            // Unrequested bytes of background reads must not evict what other reads use.
            let is_kept = how.pending_max > BACKGROUND_READS_MAX || stretch.is_mostly_wanted();
            let by_pieces = how.direct_bytes_min > 0 && is_kept;
            let next = self.direct_read(stretch, by_pieces)?;
            read.read_bytes += next.bytes as u64;
            if pack.bytes + next.bytes > STRETCH_BYTES_MAX as usize {
                self.read_pack(at, std::mem::take(&mut pack), &mut read.values)?;
            }
            pack.bytes += next.bytes;
            pack.reads.push(next);
        }
        self.read_pack(at, pack, &mut read.values)?;
        self.read_all_cached(at, cached, how.pending_max, &mut read.values)?;
        Ok(read)
    }

    /// Reads stretches through the page cache. Requests all misses from the device before it waits
    /// for the first: otherwise each read would wait by itself.
    fn read_all_cached(
        &self,
        at: &[Locator],
        stretches: Vec<Stretch<'_>>,
        pending_max: usize,
        to: &mut [Unchecked],
    ) -> Result<()> {
        let is_one = stretches.len() == 1;
        let (mut asked, mut pending_bytes) = (Vec::new(), 0);
        for stretch in stretches {
            let file = self.handle(self.value_name(stretch.file)?)?;
            let mut bytes = vec![0; stretch.bytes()];
            if !is_one && file.read_cached_at(&mut bytes, stretch.range.start)? {
                stretch.cut_all(at, bytes, to);
                continue;
            }
            if !is_one {
                file.will_read(stretch.range.start, bytes.len() as u64);
            }
            pending_bytes += bytes.len() as u64;
            asked.push(PendingRead { stretch, file, bytes });
            if pending_bytes >= STRETCH_BYTES_MAX || asked.len() >= pending_max {
                PendingRead::wait(std::mem::take(&mut asked), at, to)?;
                pending_bytes = 0;
            }
        }
        PendingRead::wait(asked, at, to)
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

    fn read_pack(&self, at: &[Locator], pack: Pack<'_>, to: &mut [Unchecked]) -> Result<()> {
        let wanted_bytes: u64 = pack.reads.iter().map(|read| read.stretch.wanted_bytes).sum();
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
        let (bytes, memory_bytes): (Bytes, u64) = if (pack.bytes as u64) < DIRECT_BYTES_MIN {
            // Pooled buffers are much longer.
            let mut blocks = AlignedBuf::zeroed(pack.bytes);
            read_into(blocks.as_mut_slice())?;
            (Bytes::copy_from_slice(&blocks), pack.bytes as u64)
        } else {
            let mut buffer = self.read_pool.take(pack.bytes);
            read_into(buffer.as_mut_slice())?;
            let memory_bytes = buffer.capacity() as u64;
            (buffer.into_bytes(), memory_bytes)
        };
        let shared = 2 * wanted_bytes >= memory_bytes;
        let mut begin = 0;
        for (read, got) in pack.reads.iter().zip(got) {
            let part = bytes.slice(begin..begin + got);
            read.stretch.cut(at, read.begin, &part, shared, to);
            begin += read.bytes;
        }
        Ok(())
    }
}

impl PendingRead<'_> {
    fn wait(all: Vec<Self>, at: &[Locator], to: &mut [Unchecked]) -> Result<()> {
        for Self { stretch, file, mut bytes } in all {
            let got = file.read_at(&mut bytes, stretch.range.start)?;
            bytes.truncate(got);
            stretch.cut_all(at, bytes, to);
        }
        Ok(())
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

    /// [`Stretch::cut`] for a read of this stretch alone.
    fn cut_all(&self, at: &[Locator], bytes: Vec<u8>, to: &mut [Unchecked]) {
        let shared = self.is_mostly_wanted();
        self.cut(at, self.range.start, &bytes.into(), shared, to);
    }

    /// Cuts the values out of the bytes read from `begin` on. With `shared` they share that memory;
    /// otherwise each is copied, so that a kept value does not keep unrequested bytes in memory.
    fn cut(&self, at: &[Locator], begin: u64, read: &Bytes, shared: bool, to: &mut [Unchecked]) {
        for &i in self.wanted {
            let (Some(slot), Some(at)) = (to.get_mut(i), at.get(i)) else { continue };
            let from = (u64::from(at.offset) - begin) as usize;
            let within = from..from + at.length as usize;
            let Some(value) = read.get(within.clone()) else { continue };
            slot.0 = if shared { read.slice(within) } else { Bytes::copy_from_slice(value) };
        }
    }
}

fn end_of(at: &Locator) -> u64 {
    u64::from(at.offset) + u64::from(at.length)
}

/// Returns how many of the sorted locators one read covers.
fn stretch_places(at: &[Locator], order: &[usize], how: ReadMode) -> usize {
    let mut span: Option<(FileId, u64, u64)> = None;
    let (mut taken, mut gap_bytes) = (0, 0);
    for &i in order {
        let Some(next) = at.get(i) else { break };
        match &mut span {
            None => span = Some((next.file, u64::from(next.offset), end_of(next))),
            Some((file, begin, end)) => {
                let gap = u64::from(next.offset).saturating_sub(*end);
                gap_bytes += gap;
                let near = gap <= GAP_BYTES_MAX
                    || how.may_read_gap(next, gap) && gap_bytes <= taken as u64 * BYTES_OF_READ;
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

/// Buffer lengths are multiples of this: a large page, which a device reads as one segment.
const STEP_BYTES: usize = 2 << 20;

/// Reused buffers of long reads. Page faults of new memory take as long as the read itself.
#[derive(Clone, Debug)]
pub(crate) struct ReadPool {
    free: Arc<Mutex<Vec<AlignedBuf>, { rank::LOG_READ_POOL }>>,
    kept_bytes_max: usize,
}

impl ReadPool {
    /// Creates a pool that keeps at most `kept_bytes_max` of free buffers.
    pub(crate) fn new(kept_bytes_max: usize) -> Self {
        Self { free: Arc::default(), kept_bytes_max }
    }

    /// Returns a buffer of `bytes` with arbitrary content.
    pub(crate) fn take(&self, bytes: usize) -> Pooled {
        let length = bytes.next_multiple_of(STEP_BYTES);
        let mut free = self.free.lock();
        let fitting = free.iter().position(|buffer| buffer.len() == length);
        let kept = fitting.map(|at| free.swap_remove(at));
        drop(free);
        let buffer = kept.unwrap_or_else(|| {
            let mut buffer = AlignedBuf::in_large_pages();
            buffer.resize(length);
            buffer
        });
        Pooled { buffer, bytes, pool: self.clone() }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.free.lock().iter().map(|buffer| buffer.capacity() as u64).sum()
    }
}

/// A buffer that returns to its pool when the last value in it is dropped.
#[derive(Debug)]
pub(crate) struct Pooled {
    buffer: AlignedBuf,
    bytes: usize,
    pool: ReadPool,
}

impl Pooled {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.buffer.as_mut_slice().get_mut(..bytes).unwrap_or_default()
    }

    /// Returns the bytes of memory it holds, which may exceed the requested ones.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice().get(..self.bytes).unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.buffer.len() > self.pool.kept_bytes_max {
            return;
        }
        let mut free = self.pool.free.lock();
        free.push(std::mem::take(&mut self.buffer));
        let mut bytes: usize = free.iter().map(|buffer| buffer.len()).sum();
        // The buffers that were free longest go first: current reads use buffers of this length.
        while bytes > self.pool.kept_bytes_max {
            bytes -= free.remove(0).len();
        }
    }
}

impl Shared {
    pub(crate) fn read_records(&self, places: &[(usize, Locator)]) -> Result<Vec<Unchecked>> {
        let whole = |(key_bytes, at): &(usize, Locator)| {
            let before = self.bytes_before(*key_bytes, at)?;
            Ok(Locator { offset: at.offset - before, length: at.length + before, ..*at })
        };
        let whole: Vec<Locator> = places.iter().map(whole).collect::<Result<_>>()?;
        Ok(self.read_many_with(&whole, ReadMode::BACKGROUND)?.values)
    }

    pub(crate) fn record(&self, key: &[u8], at: &Locator, read: Unchecked) -> Result<(Bytes, Lsn)> {
        let before = self.bytes_before(key.len(), at)? as usize;
        if let Some((header, value)) = read.split(before)
            && at.check(&value).is_ok()
        {
            if before == 0 {
                return Ok((value, self.record_of(at)?.version));
            }
            let place = Lsn::new(at.file, at.offset - before as u32);
            if let Some(fields) = sorted::header_of(&header, self.dir.store, place, key)
                && fields.value_crc == at.crc
            {
                return Ok((value, fields.version));
            }
        }
        Ok((self.get(at)?, self.record_of(at)?.version))
    }

    /// Returns the bytes of the record header before a value; 0 in segments, where it is not
    /// needed, and for a damaged locator, which may name any position.
    fn bytes_before(&self, key_bytes: usize, at: &Locator) -> Result<u32> {
        let before = match self.value_name(at.file)? {
            Name::Sorted(_) => sorted::bytes_before_value(key_bytes),
            _ => 0,
        };
        let fits = before <= at.offset && at.length.checked_add(before).is_some();
        Ok(if fits { before } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = STEP_BYTES as u64;

    #[test]
    fn a_buffer_comes_back_when_its_last_value_goes_and_few_are_kept() {
        let pool = ReadPool::new(2 * STEP_BYTES);
        let mut buffer = pool.take(40_000);
        buffer.as_mut_slice().fill(7);
        let value = buffer.into_bytes().slice(100..200);
        assert_eq!(pool.memory_bytes(), 0);
        let other = value.clone();
        drop(value);
        assert_eq!((other.len(), pool.memory_bytes()), (100, 0));
        drop(other);
        assert_eq!(pool.memory_bytes(), STEP);
        assert_eq!(pool.take(50_000).as_ref().len(), 50_000);
        drop((0..9).map(|_| pool.take(1000)).collect::<Vec<_>>());
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        drop(pool.take(2 * STEP_BYTES + 1));
        assert_eq!(pool.memory_bytes(), 2 * STEP, "longer buffers are not kept");
    }

    #[test]
    fn buffers_fit_their_reads_and_those_of_a_length_no_longer_asked_for_go() {
        let pool = ReadPool::new(2 * STEP_BYTES);
        drop([pool.take(1), pool.take(1)]);
        let long = pool.take(STEP_BYTES + 1);
        assert_eq!((long.capacity() as u64, pool.memory_bytes()), (2 * STEP, 2 * STEP));
        drop(long);
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        let again = pool.take(STEP_BYTES + 1);
        assert_eq!((again.capacity() as u64, pool.memory_bytes()), (2 * STEP, 0));
    }
}
