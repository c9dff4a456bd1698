//! Memory of reads: reused buffers, and the values in them. Page faults of new memory take as long as a long read itself, and zeros
//! in a buffer that is filled at once are work in vain.

use crate::read_many::Stretch;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stele_types::Locator;
use stele_types::lock::{Mutex, rank};
use stele_vfs::AlignedBuf;

/// Bytes of free long buffers that are kept for later reads.
const LONG_KEPT_BYTES_MAX: usize = 12 << 20;
/// The same of short ones: those of 64 scans of 50 values of 1 KiB.
const SHORT_KEPT_BYTES_MAX: usize = 4 << 20;
/// Long buffers have multiples of this length: a large page, which a device reads as one segment.
const STEP_BYTES: usize = 2 << 20;
/// Smallest short buffer. The length of each is a power of two, so that at most half of it is not
/// used.
const SHORT_BYTES_MIN: usize = 16 << 10;

/// Free buffers for the reads of one log.
#[derive(Debug)]
pub(crate) struct ReadPool {
    long: Buffers,
    short: Buffers,
}

/// Memory of reads through the page cache.
#[derive(Debug)]
pub(crate) enum ReadMemory {
    /// Less than half of the smallest buffer: its own allocation.
    Own(Vec<u8>),
    Pooled(Pooled),
}

/// Free buffers of one kind.
#[derive(Clone, Debug)]
struct Buffers {
    free: Arc<Mutex<Vec<AlignedBuf>, { rank::LOG_READ_POOL }>>,
    /// Maximum bytes of all free buffers.
    kept_bytes_max: usize,
}

impl Default for ReadPool {
    fn default() -> Self {
        let buffers = |kept_bytes_max| Buffers { free: Arc::default(), kept_bytes_max };
        Self { long: buffers(LONG_KEPT_BYTES_MAX), short: buffers(SHORT_KEPT_BYTES_MAX) }
    }
}

impl ReadPool {
    /// Returns a buffer of `bytes` for a long read, with arbitrary content.
    pub(crate) fn take(&self, bytes: usize) -> Pooled {
        self.long.take_long(bytes)
    }

    /// Returns memory of `bytes`, with arbitrary content, for reads of short values.
    pub(crate) fn take_short(&self, bytes: usize) -> ReadMemory {
        if 2 * bytes < SHORT_BYTES_MIN {
            return ReadMemory::Own(vec![0; bytes]);
        }
        let length = bytes.next_power_of_two().max(SHORT_BYTES_MIN);
        ReadMemory::Pooled(self.short.take(bytes, length, || AlignedBuf::zeroed(length)))
    }

    /// Returns a buffer of `bytes`, with arbitrary content, for blocks that hold short values.
    pub(crate) fn take_blocks(&self, bytes: usize) -> Pooled {
        let length = bytes.next_power_of_two().max(SHORT_BYTES_MIN);
        match length <= SHORT_KEPT_BYTES_MAX / 4 {
            true => self.short.take(bytes, length, || AlignedBuf::zeroed(length)),
            false => self.long.take_long(bytes),
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.long.memory_bytes() + self.short.memory_bytes()
    }
}

impl Buffers {
    fn take_long(&self, bytes: usize) -> Pooled {
        let length = bytes.next_multiple_of(STEP_BYTES);
        self.take(bytes, length, || {
            let mut buffer = AlignedBuf::in_large_pages();
            buffer.resize(length);
            buffer
        })
    }

    fn take(&self, bytes: usize, length: usize, create: impl FnOnce() -> AlignedBuf) -> Pooled {
        let mut free = self.free.lock();
        // The one that was used last: the processor's cache may hold it.
        let fitting = free.iter().rposition(|buffer| buffer.len() == length);
        let kept = fitting.map(|at| free.remove(at));
        drop(free);
        let buffer = kept.unwrap_or_else(create);
        Pooled { buffer, bytes, pool: self.clone() }
    }

    fn memory_bytes(&self) -> u64 {
        self.free.lock().iter().map(|buffer| buffer.capacity() as u64).sum()
    }
}

/// A buffer that returns to its pool when the last value in it is dropped.
#[derive(Debug)]
pub(crate) struct Pooled {
    buffer: AlignedBuf,
    bytes: usize,
    pool: Buffers,
}

impl Pooled {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.buffer.as_mut_slice().get_mut(..bytes).unwrap_or_default()
    }

    /// Takes the buffer out, for [`Pooled::give_back`].
    pub(crate) fn lend(&mut self) -> AlignedBuf {
        std::mem::take(&mut self.buffer)
    }

    pub(crate) fn give_back(&mut self, buffer: AlignedBuf) {
        self.buffer = buffer;
    }

    /// Returns the bytes of memory it holds, which may exceed the requested ones.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the buffer as bytes that values can share.
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
        if self.buffer.is_empty() || self.buffer.len() > self.pool.kept_bytes_max {
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

impl ReadMemory {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Own(memory) => memory,
            Self::Pooled(memory) => memory.as_mut_slice(),
        }
    }

    /// Returns the bytes of memory it holds.
    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Own(memory) => memory.capacity(),
            Self::Pooled(memory) => memory.capacity(),
        }
    }

    /// Returns the memory as bytes that values can share.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Own(memory) => memory.into(),
            Self::Pooled(memory) => memory.into_bytes(),
        }
    }
}

/// Bytes read for a value, not yet compared with its checksum. [`crate::Log::checked`] turns them
/// into a value.
#[derive(Clone, Debug, Default)]
pub struct Unchecked(pub(crate) Bytes);

impl Unchecked {
    /// Splits off the first `at` bytes; `None` if there are fewer.
    pub(crate) fn split(mut self, at: usize) -> Option<(Bytes, Bytes)> {
        (at <= self.0.len()).then(|| (self.0.split_to(at), self.0))
    }
}

/// Result of a read of many values. They share the memory of their reads, and none has a reference to it
/// of its own: a scan passes most of them on without one.
#[derive(Debug, Default)]
pub struct ReadMany {
    pub(crate) memory: Vec<Bytes>,
    /// In the order of the locators.
    pub(crate) values: Vec<ReadPlace>,
    /// Number of stretches read; 1 if all values are neighbours.
    pub reads: usize,
    /// Bytes requested from files, whole blocks where the page cache is bypassed.
    pub read_bytes: u64,
}

/// Place of a value in the memory of its read; the default is that of a value that was not read, as where
/// a file ends early.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadPlace {
    memory: u32,
    begin: u32,
    bytes: u32,
}

impl ReadPlace {
    fn within(self) -> Range<usize> {
        let begin = self.begin as usize;
        begin..begin + self.bytes as usize
    }
}

impl ReadMany {
    /// Creates the result of a read that failed as a whole: each of `count` values must be read by itself.
    pub fn failed(count: usize) -> Self {
        Self { values: vec![ReadPlace::default(); count], reads: count, ..Self::default() }
    }

    /// Returns the memory that holds the value read for a locator, which was number `number` of those
    /// requested, and the value's part of it. `None` if that does not match the checksum: then the caller
    /// must use [`crate::Log::get`], which may wait.
    pub fn checked(&self, number: usize, at: &Locator) -> Option<(&Bytes, Range<usize>)> {
        let place = *self.values.get(number)?;
        let memory = self.memory.get(place.memory as usize)?;
        let is_whole = at.check(memory.get(place.within())?).is_ok();
        // bug log.in_memory_unchecked: let is_whole = true;
        is_whole.then_some((memory, place.within()))
    }

    /// Returns what was read for each locator, in their order; each keeps the memory of its read.
    pub fn into_values(self) -> Vec<Unchecked> {
        let memory = |place: &ReadPlace| self.memory.get(place.memory as usize);
        let value = |place| memory(place).map(|bytes| bytes.slice(place.within()));
        self.values.iter().map(|place| Unchecked(value(place).unwrap_or_default())).collect()
    }

    /// Keeps the values of stretches that were read into `memory`, of which so many bytes are allocated:
    /// each with the position in its file of the first byte read, and the part of the memory that was
    /// filled. Values that are less than half of it are copied: kept ones would keep it.
    pub(crate) fn keep<'a>(
        &mut self,
        at: &[Locator],
        (memory, allocated_bytes): (Bytes, usize),
        stretches: impl Iterator<Item = (&'a Stretch<'a>, u64, Range<usize>)> + Clone,
    ) {
        let wanted_bytes: u64 = stretches.clone().map(|(stretch, ..)| stretch.wanted_bytes).sum();
        // bug log.values_keep_unrequested_bytes: `allocated_bytes` is `0`
        let is_shared = 2 * wanted_bytes >= allocated_bytes as u64;
        let number = self.memory.len() as u32;
        let mut copied = Vec::with_capacity(if is_shared { 0 } else { wanted_bytes as usize });
        for (stretch, begin, part) in stretches {
            let read = memory.get(part.clone()).unwrap_or_default();
            for &i in stretch.wanted {
                let (Some(place), Some(at)) = (self.values.get_mut(i), at.get(i)) else { continue };
                let from = (u64::from(at.offset) - begin) as usize;
                let Some(value) = read.get(from..from + at.length as usize) else { continue };
                let mut begin = part.start + from;
                if !is_shared {
                    begin = copied.len();
                    copied.extend_from_slice(value);
                }
                *place = ReadPlace { memory: number, begin: begin as u32, bytes: at.length };
            }
        }
        self.memory.push(if is_shared { memory } else { copied.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = STEP_BYTES as u64;

    fn long_buffers(kept_bytes_max: usize) -> Buffers {
        Buffers { free: Arc::default(), kept_bytes_max }
    }

    #[test]
    fn a_buffer_comes_back_when_its_last_value_goes_and_few_are_kept() {
        let pool = long_buffers(2 * STEP_BYTES);
        let mut buffer = pool.take_long(40_000);
        buffer.as_mut_slice().fill(7);
        let value = buffer.into_bytes().slice(100..200);
        assert_eq!(pool.memory_bytes(), 0);
        let other = value.clone();
        drop(value);
        assert_eq!((other.len(), pool.memory_bytes()), (100, 0));
        drop(other);
        assert_eq!(pool.memory_bytes(), STEP);
        assert_eq!(pool.take_long(50_000).as_ref().len(), 50_000);
        drop((0..9).map(|_| pool.take_long(1000)).collect::<Vec<_>>());
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        drop(pool.take_long(2 * STEP_BYTES + 1));
        assert_eq!(pool.memory_bytes(), 2 * STEP, "longer buffers are not kept");
    }

    #[test]
    fn buffers_fit_their_reads_and_those_of_a_length_no_longer_asked_for_go() {
        let pool = long_buffers(2 * STEP_BYTES);
        drop([pool.take_long(1), pool.take_long(1)]);
        let long = pool.take_long(STEP_BYTES + 1);
        assert_eq!((long.capacity() as u64, pool.memory_bytes()), (2 * STEP, 2 * STEP));
        drop(long);
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        let again = pool.take_long(STEP_BYTES + 1);
        assert_eq!((again.capacity() as u64, pool.memory_bytes()), (2 * STEP, 0));
    }

    #[test]
    fn short_reads_use_at_least_half_of_their_memory_and_give_it_back() {
        let pool = ReadPool::default();
        for bytes in [0, 1, 8 << 10, (8 << 10) + 1, 50_000, (64 << 10) + 1, 256 << 10] {
            let mut memory = pool.take_short(bytes);
            assert_eq!(memory.as_mut_slice().len(), bytes);
            assert!(memory.capacity() <= 2 * bytes, "{} of {bytes}", memory.capacity());
            drop(memory.into_bytes());
        }
        let kept = pool.memory_bytes();
        assert_eq!(kept, (16 + 64 + 128 + 256) << 10, "one of each length");
        drop((0..200).map(|_| pool.take_short(50_000)).collect::<Vec<_>>());
        assert_eq!(pool.memory_bytes(), SHORT_KEPT_BYTES_MAX as u64);
    }
}
