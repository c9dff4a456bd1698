//! Short reads of many values: through the page cache, or together past it.
//!
//! 1. Each read that goes through the page cache ([`crate::read_share::ScatteredReads`]) is tried there, without
//!    waiting ([`CachedPack::start`]), and requested from the device if it misses.
//! 2. Those that bypass it are requested with one call ([`Wave::start_batch`]).
//! 3. What the caller needs after these is requested too ([`Shared::will_read_many`]).
//! 4. Only then the first is awaited ([`Wave::finish`]).

use crate::read_many::{DIRECT_BYTES_MIN, ReadMode, STRETCH_BYTES_MAX, Stretch};
use crate::read_pool::{Pooled, ReadMany, ReadMemory, ReadPool};
use crate::shared::{Counters, Shared};
use std::iter::Peekable;
use std::sync::Arc;
use stele_types::{FileId, Locator, Result};
use stele_vfs::{BatchRead, ReadBatch, VfsFile};

/// Bytes of reads through the page cache that share a buffer; a longer read has its own.
const PACK_BYTES_MAX: usize = 64 << 10;

/// Returns the places of values that are needed after others.
pub(crate) type Ahead<'a> = &'a mut dyn FnMut() -> Vec<Locator>;

/// Reads through the page cache that share a buffer.
#[derive(Debug)]
struct CachedPack<'a> {
    reads: Vec<CachedRead<'a>>,
    memory: ReadMemory,
}

/// A short read.
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
    /// The same file past the page cache, if the read bypasses it.
    direct: Option<Arc<dyn VfsFile>>,
    /// It is measured when it is awaited, and was not requested: only so its time is that of the device.
    is_measured: bool,
}

/// What is done with short reads before they are awaited.
#[derive(Clone, Copy, Debug)]
struct Start {
    tries_cache: bool,
    requests: bool,
    may_wait: bool,
    /// The next read that misses is measured.
    measures: bool,
    /// Reads that miss may bypass the page cache.
    may_bypass: bool,
}

/// File of the last stretch. They are sorted, so that each file is looked up once.
#[derive(Debug, Default)]
struct LastFile(Option<(FileId, OpenFile)>);

#[derive(Clone, Debug)]
struct OpenFile {
    file: Arc<dyn VfsFile>,
    /// The same file past the page cache; `None` until it is needed, `Some(None)` where there is none.
    direct: Option<Option<Arc<dyn VfsFile>>>,
    /// Whether it was open before: otherwise nothing of it was tried in memory.
    was_open: bool,
}

/// Packs with reads that are not awaited.
#[derive(Default)]
struct Wave<'a> {
    packs: Vec<CachedPack<'a>>,
    reads: usize,
    bytes: u64,
}

/// Reads of a wave under way, with the memory that they came from.
struct Started {
    batch: ReadBatch,
    memory: Pooled,
    /// Bytes before each value in the blocks of its read.
    skipped: Vec<usize>,
}

impl Shared {
    /// Reads stretches, those that the page cache holds through it. Requests all misses from the device
    /// before it waits for the first: otherwise each read would wait by itself. Returns false if it may
    /// not wait for one that misses.
    pub(crate) fn read_all_cached(
        &self,
        at: &[Locator],
        stretches: Vec<Stretch<'_>>,
        (how, ahead): (ReadMode, Option<Ahead<'_>>),
        to: &mut ReadMany,
    ) -> Result<bool> {
        // One read alone need not be requested first.
        let requests = stretches.len() > 1 && how.may_wait;
        // bug log.missed_values_are_tried_again: `!how.is_missed` is `true`
        let tries_cache = !how.is_missed && (requests || !how.may_wait);
        let (may_wait, measures) = (how.may_wait, how.is_missed);
        let may_bypass = requests && tries_cache && how.may_bypass && self.options.direct;
        let mut start = Start { tries_cache, requests, may_wait, measures, may_bypass };
        let (mut file, mut stretches) = (LastFile::default(), stretches.into_iter().peekable());
        let mut wave = Wave::default();
        while let Some(mut pack) =
            CachedPack::next(&mut stretches, how.pending_max, &self.read_pool)
        {
            if wave.reads.saturating_add(pack.reads.len()) > how.pending_max {
                std::mem::take(&mut wave).finish(self, at, None, to)?;
            }
            let Some((misses, bytes)) = pack.start(self, &mut file, &mut start)? else {
                return Ok(false);
            };
            if misses == 0 {
                pack.finish(self, at, to)?;
                continue;
            }
            wave.packs.push(pack);
            (wave.reads, wave.bytes) = (wave.reads + misses, wave.bytes + bytes);
            if wave.bytes >= STRETCH_BYTES_MAX {
                std::mem::take(&mut wave).finish(self, at, None, to)?;
            }
        }
        wave.finish(self, at, ahead, to)?;
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
}

impl LastFile {
    /// Returns the handle of a file; `None` if it may not be opened now.
    fn of(
        &mut self,
        shared: &Shared,
        file: FileId,
        may_wait: bool,
    ) -> Result<Option<&mut OpenFile>> {
        if self.0.as_ref().is_none_or(|(last, _)| *last != file) {
            let open = |file, was_open| OpenFile { file, direct: None, was_open };
            self.0 = match shared.open_handle(file) {
                Some(found) => Some((file, open(found, true))),
                None if may_wait => {
                    Some((file, open(shared.handle(shared.value_name(file)?)?, false)))
                }
                None => None,
            };
        }
        Ok(self.0.as_mut().map(|(_, open)| open))
    }
}

impl OpenFile {
    /// Returns the handle past the page cache of a file of the machine.
    fn direct(&mut self, shared: &Shared, file: FileId) -> Option<Arc<dyn VfsFile>> {
        let open = || {
            let opened = shared.value_name(file).and_then(|name| shared.handle_direct(name));
            opened.ok().filter(|file| file.kernel_file().is_some())
        };
        self.direct.get_or_insert_with(open).clone()
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

    /// Reads what the page cache holds and requests from the device what goes through it: returns the
    /// number of reads that are not done and their bytes. `None` if it may not wait for one.
    fn start(
        &mut self,
        shared: &Shared,
        last: &mut LastFile,
        how: &mut Start,
    ) -> Result<Option<(usize, u64)>> {
        let (mut misses, mut bytes) = (0, 0);
        for read in &mut self.reads {
            let id = read.stretch.file;
            let Some(open) = last.of(shared, id, how.may_wait)? else {
                return Ok(None);
            };
            let (from, part) = (read.stretch.range.start, read.within(&mut self.memory));
            let bypasses = how.may_bypass && !shared.scattered_reads.is_cached(id, from);
            let direct = if bypasses { open.direct(shared, id) } else { None };
            // A try that misses makes the kernel read the pages: what bypasses them is not tried.
            // bug log.bypassing_reads_are_tried: `direct.is_none()` is `true`
            let is_tried = direct.is_none() && how.tries_cache;
            let found = is_tried && open.file.read_cached_at(part, from)?;
            if is_tried && how.may_bypass {
                shared.scattered_reads.note(id, from, found);
            }
            if found {
                read.got = part.len();
                continue;
            }
            // bug log.read_in_memory_waits: never
            if !how.may_wait {
                return Ok(None);
            }
            // bug log.untried_read_is_measured: `open.was_open` is `true`
            let is_measured = open.was_open && std::mem::take(&mut how.measures);
            if how.requests && !is_measured && direct.is_none() {
                open.file.will_read(from, part.len() as u64);
            }
            (misses, bytes) = (misses + 1, bytes + part.len() as u64);
            read.pending = Some(Pending { file: open.file.clone(), direct, is_measured });
        }
        Ok(Some((misses, bytes)))
    }

    /// Waits for the reads and cuts the values out.
    fn finish(mut self, shared: &Shared, at: &[Locator], to: &mut ReadMany) -> Result<()> {
        for read in &mut self.reads {
            if let Some(Pending { file, is_measured, .. }) = read.pending.take() {
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

    /// Returns the blocks that hold it, if it bypasses the page cache, and the bytes before it there.
    fn blocks(&self) -> Option<(BatchRead, usize)> {
        let file = self.pending.as_ref()?.direct.clone()?;
        let block_bytes = file.block_bytes()? as u64;
        let offset = self.stretch.range.start / block_bytes * block_bytes;
        let bytes = (self.stretch.range.end - offset).next_multiple_of(block_bytes) as usize;
        Some((BatchRead { file, offset, bytes }, (self.stretch.range.start - offset) as usize))
    }
}

impl Wave<'_> {
    /// Starts the reads that bypass the page cache, with one call for as many as the queue of a device
    /// holds. Where the system has no queue for them, they are requested through the page cache.
    fn start_batch(&self, shared: &Shared) -> Option<Started> {
        let reads = || self.packs.iter().flat_map(|pack| &pack.reads);
        let (blocks, skipped): (Vec<BatchRead>, Vec<usize>) =
            reads().filter_map(CachedRead::blocks).unzip();
        if blocks.is_empty() {
            return None;
        }
        let (count, bytes) = (blocks.len() as u64, blocks.iter().map(|read| read.bytes).sum());
        let mut memory = shared.read_pool.take_blocks(bytes);
        match ReadBatch::start(blocks, memory.lend()) {
            Ok(batch) => {
                Counters::add(&shared.counters.batched_reads, count);
                Some(Started { batch, memory, skipped })
            }
            Err(lent) => {
                memory.give_back(lent);
                for read in reads() {
                    if let Some(Pending { file, direct: Some(_), .. }) = &read.pending {
                        file.will_read(read.stretch.range.start, read.stretch.bytes() as u64);
                    }
                }
                None
            }
        }
    }

    /// Requests what is needed after these reads, waits for them, and cuts the values out.
    fn finish(
        mut self,
        shared: &Shared,
        at: &[Locator],
        ahead: Option<Ahead<'_>>,
        to: &mut ReadMany,
    ) -> Result<()> {
        let started = self.start_batch(shared);
        if let Some(ahead) = ahead {
            shared.will_read_many(&ahead());
        }
        if let Some(started) = started {
            self.finish_batch(started);
        }
        self.packs.into_iter().try_for_each(|pack| pack.finish(shared, at, to))
    }

    /// Waits for the reads that bypass the page cache. One that failed is read again with the others.
    fn finish_batch(&mut self, started: Started) {
        let Started { batch, mut memory, skipped } = started;
        let (blocks, got) = batch.finish();
        let mut begin = 0;
        let mut results = skipped.into_iter().zip(got);
        for pack in &mut self.packs {
            for read in &mut pack.reads {
                let Some((of, _)) = read.blocks() else { continue };
                let Some((skip, got)) = results.next() else { continue };
                // bug log.bypassed_value_begins_with_its_block: let skip = 0;
                if let Ok(got) = got {
                    let found = blocks.get(begin + skip..begin + got).unwrap_or_default();
                    let part = read.within(&mut pack.memory);
                    let bytes = found.len().min(part.len());
                    if let (Some(to), Some(from)) = (part.get_mut(..bytes), found.get(..bytes)) {
                        to.copy_from_slice(from);
                    }
                    (read.got, read.pending) = (bytes, None);
                }
                begin += of.bytes;
            }
        }
        memory.give_back(blocks);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Log, LogOptions, RecoverFrom};
    use std::sync::Arc;
    use stele_types::{Cause, Locator, Lsn};
    use stele_vfs::{Open, RealVfs, Vfs};

    fn value(n: u64) -> Vec<u8> {
        (0..3000 + n).map(|at| (at * 31 + n * 7) as u8).collect()
    }

    #[test]
    fn scattered_reads_that_bypass_the_page_cache_are_one_batch_of_right_values() {
        let dir = std::env::temp_dir().join(format!("stele-log-batch-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let vfs = Arc::new(RealVfs::new());
        vfs.create_dir_all(&dir).unwrap();
        let begin = RecoverFrom::default();
        let (log, _) = Log::open(vfs.clone(), &dir, LogOptions::default(), begin).unwrap();
        let mut places: Vec<Locator> = Vec::new();
        for _ in 0..3 {
            let mut writer = log.sorted_writer(Cause::Sort).unwrap();
            for _ in 0..3000 {
                let n = places.len() as u64;
                let key = n.to_be_bytes();
                places.push(writer.append(&key, Lsn::default(), 0, &value(n)).unwrap());
            }
            writer.finish().unwrap();
        }
        let path = dir.join(format!("{:08x}.val", places[0].file.0));
        let probe = vfs.open(&path, Open { direct: true, ..Open::READ }).unwrap();
        let is_direct = probe.block_bytes().is_some();
        // Too far apart to be read together.
        let asked = |last: usize| (0..last).rev().step_by(11).collect::<Vec<usize>>();
        let read = |asked: &[usize]| {
            let at: Vec<Locator> = asked.iter().map(|&n| places[n]).collect();
            let before = log.stats().batched_reads;
            let values = log.get_many(&at).unwrap();
            assert!(values.iter().zip(asked).all(|(found, &n)| *found == value(n as u64)));
            log.stats().batched_reads - before
        };
        assert_eq!(read(&asked(9000)), 0, "what may be read again goes through the page cache");
        log.shared.scattered_reads.bypass_all();
        let others = asked(8995);
        let batched = read(&others);
        assert!(!is_direct || batched == others.len() as u64, "{batched} of {}", others.len());
        let is_held = others.iter().filter(|&&n| log.shared.is_in_memory(&places[n])).count();
        assert!(!is_direct || is_held < others.len() / 10, "{is_held} are in the page cache");
        // A value that ends after its file, as a damaged locator names it.
        let last = Locator { length: 1 << 16, ..places[8999] };
        assert!(log.get_many(&[places[7], places[4000], last]).is_err());
        drop(log);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
