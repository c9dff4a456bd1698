//! Reading many values: one read for each stretch of neighbours, its values cut out of it. Of many
//! short ones those that are not in memory are all asked of the device before the first is waited for.

use crate::long_reads::PIECE_BYTES;
use crate::read::TRUSTED_LENGTH_BYTES;
use crate::shared::Shared;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stele_types::{FileId, Locator, Result};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES, VfsFile};

/// Unwanted bytes between two values that are still read along: cheaper than another read.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// The same for work in the background that wants many short values, as long as they are no more than
/// 32 KiB for each.
pub const NEAR_BYTES_MAX: u64 = 128 << 10;
/// What a device reads in one piece while it serves one more short read: 40 to 50 thousand of these a
/// second, or 1.3 GB/s.
const BYTES_OF_READ: u64 = 32 << 10;
const SHORT_VALUE_BYTES_MAX: u32 = 4 << 10;
/// Longest read for more than one value: values of 4 MiB and what lies between them. A device
/// serves the parts of one long read at the same time.
const STRETCH_BYTES_MAX: u64 = (4 << 20) + (256 << 10);
/// Of the buffers of such reads, kept for the next ones.
pub(crate) const BUFFERS_KEPT_BYTES_MAX: usize = 12 << 20;
/// Reads that may go past the page cache are at least so long: see [`crate::long_reads`].
const DIRECT_BYTES_MIN: u64 = 256 << 10;
/// Reads that work in the background has under way at a time. A device takes reads before writes: beside
/// 64 of them at once, a batch of the log took twice as long (p99 of puts while all is written over: 27
/// and 16 ms), and no more was collected.
const BACKGROUND_READS_MAX: usize = 8;

/// How values are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Reads from here on may go past the page cache; 0: all do, and none comes from it.
    direct_bytes_min: u64,
    /// Short reads under way at a time.
    asked_max: usize,
    /// Unwanted bytes before a short value that may be read along.
    gap_bytes_max: u64,
}

impl How {
    /// Someone waits.
    pub const AT_ONCE: Self = Self {
        direct_bytes_min: DIRECT_BYTES_MIN,
        asked_max: usize::MAX,
        gap_bytes_max: GAP_BYTES_MAX,
    };
    /// Nobody waits, and others use the device.
    pub const IN_BACKGROUND: Self =
        Self { asked_max: BACKGROUND_READS_MAX, gap_bytes_max: NEAR_BYTES_MAX, ..Self::AT_ONCE };
    /// What the device has, not the page cache.
    pub const FROM_DEVICE: Self = Self { direct_bytes_min: 0, ..Self::AT_ONCE };

    fn reads_along(&self, next: &Locator, gap: u64) -> bool {
        gap <= self.gap_bytes_max && next.length <= SHORT_VALUE_BYTES_MAX
    }
}

/// Bytes read for a value and not compared with its checksum: [`crate::Log::checked`] makes a value
/// of them.
#[derive(Clone, Debug, Default)]
pub struct Unchecked(Bytes);

impl Unchecked {
    /// The first `at` bytes and the others; `None` if there are fewer.
    pub(crate) fn split(mut self, at: usize) -> Option<(Bytes, Bytes)> {
        (at <= self.0.len()).then(|| (self.0.split_to(at), self.0))
    }
}

/// What was read for many values.
#[derive(Debug, Default)]
pub struct ReadMany {
    /// In the order of the places; short where a file ends early.
    pub values: Vec<Unchecked>,
    /// Stretches read: one if all lie side by side.
    pub reads: usize,
}

/// Neighbours that one read takes.
struct Stretch<'a> {
    file: FileId,
    /// From the first byte of the first value to the last one of the last.
    range: Range<u64>,
    /// Which of the places, sorted.
    wanted: &'a [usize],
    wanted_bytes: u64,
}

/// A read through the page cache that the device was asked for.
struct Asked<'a> {
    stretch: Stretch<'a>,
    file: Arc<dyn VfsFile>,
    bytes: Vec<u8>,
}

/// A read of whole blocks, past the page cache where not by pieces.
struct DirectRead<'a> {
    stretch: Stretch<'a>,
    file: Arc<dyn VfsFile>,
    /// The same file through the page cache; `None` where the device itself is asked.
    cached: Option<Arc<dyn VfsFile>>,
    begin: u64,
    bytes: usize,
}

/// Reads past the page cache that share one buffer, which is long; short ones end where a file does.
#[derive(Default)]
struct Pack<'a> {
    reads: Vec<DirectRead<'a>>,
    bytes: usize,
}

impl Shared {
    pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        let read = self.read_many(at)?.values;
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

    pub fn read_many(&self, at: &[Locator]) -> Result<ReadMany> {
        self.read_many_so(at, How::AT_ONCE)
    }

    pub fn read_many_so(&self, at: &[Locator], how: How) -> Result<ReadMany> {
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&i| at.get(i).map(|at| (at.file, at.offset)));
        let mut read = ReadMany::default();
        read.values.resize_with(at.len(), Unchecked::default);
        let (mut cached, mut pack) = (Vec::new(), Pack::default());
        let mut rest = order.as_slice();
        while let Some(stretch) = Stretch::first_of(at, &mut rest, how) {
            read.reads += 1;
            if stretch.range.end - stretch.range.start < how.direct_bytes_min {
                cached.push(stretch);
                continue;
            }
            // What work in the background reads along must not push out what others read.
            let is_kept = how.asked_max > BACKGROUND_READS_MAX || stretch.is_mostly_wanted();
            let by_pieces = how.direct_bytes_min > 0 && is_kept;
            let next = self.direct_read(stretch, by_pieces)?;
            if pack.bytes + next.bytes > STRETCH_BYTES_MAX as usize {
                self.read_pack(at, std::mem::take(&mut pack), &mut read.values)?;
            }
            pack.bytes += next.bytes;
            pack.reads.push(next);
        }
        self.read_pack(at, pack, &mut read.values)?;
        self.read_all_cached(at, cached, how.asked_max, &mut read.values)?;
        Ok(read)
    }

    /// Through the page cache. What it does not hold is asked of the device before it is waited for:
    /// one after the other, each read would wait by itself.
    fn read_all_cached(
        &self,
        at: &[Locator],
        stretches: Vec<Stretch<'_>>,
        asked_max: usize,
        to: &mut [Unchecked],
    ) -> Result<()> {
        let is_one = stretches.len() == 1;
        let (mut asked, mut asked_bytes) = (Vec::new(), 0);
        for stretch in stretches {
            let file = self.handles.get(&self.dir, self.value_name(stretch.file)?)?;
            let mut bytes = vec![0; stretch.bytes()];
            if !is_one && file.read_cached_at(&mut bytes, stretch.range.start)? {
                stretch.cut_all(at, bytes, to);
                continue;
            }
            if !is_one {
                file.will_read(stretch.range.start, bytes.len() as u64);
            }
            asked_bytes += bytes.len() as u64;
            asked.push(Asked { stretch, file, bytes });
            if asked_bytes >= STRETCH_BYTES_MAX || asked.len() >= asked_max {
                Asked::wait(std::mem::take(&mut asked), at, to)?;
                asked_bytes = 0;
            }
        }
        Asked::wait(asked, at, to)
    }

    fn direct_read<'a>(&self, stretch: Stretch<'a>, by_pieces: bool) -> Result<DirectRead<'a>> {
        let Range { start, end } = stretch.range;
        let align = MEMORY_ALIGN_BYTES as u64;
        let name = self.value_name(stretch.file)?;
        let file = self.handles.get_direct(&self.dir, name)?;
        let cached = by_pieces.then(|| self.handles.get(&self.dir, name)).transpose()?;
        // A damaged locator may name any length.
        let end = if end - start > TRUSTED_LENGTH_BYTES { end.min(file.len()?) } else { end };
        let (begin, end) = (start - start % align, end.max(start).next_multiple_of(align));
        Ok(DirectRead { stretch, file, cached, begin, bytes: (end - begin) as usize })
    }

    /// Each piece past the page cache or through it, neighbours that go past it at once.
    fn read_long(&self, read: &DirectRead<'_>, memory: &mut [u8]) -> Result<usize> {
        let Some(cached) = &read.cached else { return read.file.read_at(memory, read.begin) };
        let mut done = 0;
        for (is_cached, bytes) in self.parts(read.stretch.file, read.begin, memory.len()) {
            let Some(part) = memory.get_mut(done..done + bytes) else { break };
            let from = read.begin + done as u64;
            let got = if is_cached {
                let found = cached.read_cached_at(part, from)?;
                if !found {
                    // All of the piece: the next read may want another part of it.
                    cached.will_read(from / PIECE_BYTES * PIECE_BYTES, PIECE_BYTES);
                }
                let got = if found { bytes } else { cached.read_at(part, from)? };
                // What ends with the file is never found as a whole.
                if got == bytes {
                    self.long_reads.learn(found);
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

    /// The parts of a long read in their order: whether each goes through the page cache, and its bytes.
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

impl Asked<'_> {
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
    /// Takes the first stretch away from places that are sorted; `None` when there is none.
    fn first_of(at: &[Locator], order: &mut &'a [usize], how: How) -> Option<Self> {
        let (wanted, rest) = order.split_at(taken_together(at, order, how).min(order.len()));
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

    /// [`Stretch::cut`] of a read that took nothing else.
    fn cut_all(&self, at: &[Locator], bytes: Vec<u8>, to: &mut [Unchecked]) {
        let shared = self.is_mostly_wanted();
        self.cut(at, self.range.start, &bytes.into(), shared, to);
    }

    /// Cuts the values out of what was read from `begin` on. They share it if the values read into
    /// its memory are most of that. Else each is copied: kept ones must not keep what nobody asked
    /// for.
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

/// How many of the places, sorted, one read takes.
fn taken_together(at: &[Locator], order: &[usize], how: How) -> usize {
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
                    || how.reads_along(next, gap) && gap_bytes <= taken as u64 * BYTES_OF_READ;
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
