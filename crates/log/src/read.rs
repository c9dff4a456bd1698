//! Reads of entries and of values by their locators: of one value with one positioned read of
//! exactly the value, or without waiting for the device; of many independent values, each handed
//! out as soon as it is read; of records to be moved, with the headers before them in sorted files.

use crate::dir::Name;
use crate::read_many::ReadMode;
use crate::read_pool::Unchecked;
use crate::shared::{Counters, Shared};
use crate::{Log, sorted};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::lock::{Mutex, rank};
use stele_types::{CommittedEntry, Error, Locator, LogIndex, Lsn, RegionId, Result};
use stele_vfs::{AlignedBuf, DeviceTimer, MEMORY_ALIGN_BYTES, VfsFile};

/// Metadata of a record, found from its locator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Position of the operation that first wrote the value.
    pub version: Lsn,
    /// The key; `None` in segments, where it cannot be found from the value.
    pub key: Option<Bytes>,
    /// Unix seconds, 0 for never; `None` in segments.
    pub expires_at_s: Option<u64>,
}

/// A longer value is allocated only if its file is long enough.
pub(crate) const TRUSTED_LENGTH_BYTES: u64 = 1 << 20;

/// Rejects a value beyond its file's end before allocating memory: a damaged locator may name any
/// length.
fn check_length(file: &dyn VfsFile, at: &Locator) -> Result<()> {
    let end = u64::from(at.offset) + u64::from(at.length);
    if u64::from(at.length) <= TRUSTED_LENGTH_BYTES || end <= file.len()? {
        return Ok(());
    }
    let detail = format!("value of {} bytes ends after the end of its file", at.length);
    Err(Error::corrupt(file.path(), u64::from(at.offset), detail))
}

impl Shared {
    /// Returns a value. Measures the read if it needs the device.
    pub(crate) fn get(&self, at: &Locator) -> Result<Bytes> {
        self.get_with(at, self.options.timer.as_ref())
    }

    /// Returns a value that was requested from the device before: the time of this read is not that
    /// of the device.
    pub(crate) fn get_requested(&self, at: &Locator) -> Result<Bytes> {
        self.get_with(at, None)
    }

    /// Returns a value that [`Log::get_cached`] did not find, without another attempt.
    ///
    /// Invariant: only a read that was tried in memory counts as one of the device.
    /// Test: `reads_count_if_they_needed_the_device`.
    pub(crate) fn get_missed(&self, at: &Locator) -> Result<Bytes> {
        let timer = self.options.timer.as_ref();
        let tried = self.file_in_memory(at).zip(timer);
        // bug log.missed_value_is_tried_again: let tried = tried.filter(|_| false);
        let Some((file, timer)) = tried else { return self.get(at) };
        self.read_whole(at, |value| timer.read_missed_at(&*file, value, u64::from(at.offset)))
    }

    fn get_with(&self, at: &Locator, timer: Option<&DeviceTimer>) -> Result<Bytes> {
        let file = self.handle(self.value_name(at.file)?)?;
        check_length(&*file, at)?;
        self.read_whole(at, |value| match timer {
            Some(timer) => timer.read_at(&*file, value, u64::from(at.offset)),
            None => file.read_at(value, u64::from(at.offset)),
        })
    }

    /// Returns the value that `read` reads into memory of its length, or if it does not match its
    /// checksum, the one on the device.
    fn read_whole(
        &self,
        at: &Locator,
        read: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<Bytes> {
        let mut value = vec![0; at.length as usize];
        let got = read(&mut value)?;
        if got == value.len() && at.check(&value).is_ok() {
            return Ok(value.into());
        }
        self.get_direct(self.value_name(at.file)?, at)
    }

    /// Returns the file of a value if the value is read without waiting for the device when the page
    /// cache holds it.
    fn file_in_memory(&self, at: &Locator) -> Option<Arc<dyn VfsFile>> {
        let is_short = u64::from(at.length) <= TRUSTED_LENGTH_BYTES;
        self.open_handle(at.file).filter(|_| is_short)
    }

    /// Checks that the device holds the value. Bypasses the page cache.
    pub(crate) fn check(&self, at: &Locator) -> Result<()> {
        let name = self.value_name(at.file)?;
        check_length(&*self.handle(name)?, at)?;
        self.get_direct(name, at).map(|_| ())
    }

    /// Reads a value from the device. The page cache may hold a block from before a direct write,
    /// and memory may have flipped a bit: only a mismatch on the device is damage.
    fn get_direct(&self, name: Name, at: &Locator) -> Result<Bytes> {
        let file = self.dir.open_direct(name)?;
        let begin = u64::from(at.offset);
        let align = MEMORY_ALIGN_BYTES as u64;
        let from = begin - begin % align;
        let upto = (begin + u64::from(at.length)).next_multiple_of(align);
        let mut blocks = AlignedBuf::zeroed((upto - from) as usize);
        let got = file.read_at(blocks.as_mut_slice(), from)?;
        let within = (begin - from) as usize..(begin - from) as usize + at.length as usize;
        let value = blocks.get(..got).and_then(|blocks| blocks.get(within)).unwrap_or_default();
        if at.check(value).is_err() {
            let detail = format!("value of {} bytes does not match its checksum", at.length);
            return Err(Error::corrupt(file.path(), begin, detail));
        }
        Counters::add(&self.counters.direct_retries, 1);
        Ok(Bytes::copy_from_slice(value))
    }

    pub(crate) fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        let mut entries = Vec::new();
        let mut missing = Vec::new();
        for (index, place) in self.places(region, from, to, bytes_max)? {
            let cached = self.cache.get(place.at);
            if cached.is_none() {
                let Lsn { file, offset } = place.at;
                let at = Locator { file, offset, length: place.bytes(), crc: place.crc };
                missing.push((entries.len(), at));
            }
            entries.push(CommittedEntry {
                term: place.term,
                index,
                is_command: place.is_command(),
                payload: cached.unwrap_or_default(),
            });
        }
        let places: Vec<Locator> = missing.iter().map(|(_, at)| *at).collect();
        for ((i, _), payload) in missing.into_iter().zip(self.get_many(&places)?) {
            if let Some(entry) = entries.get_mut(i) {
                entry.payload = payload;
            }
        }
        Ok(entries)
    }

    fn places(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<(LogIndex, crate::region::Place)>> {
        let state = self.state.read();
        let Some(log) = state.regions.get(region) else { return Ok(Vec::new()) };
        if from <= log.truncated.0 && from < to {
            let truncated = log.truncated.0;
            return Err(Error::invalid(format!(
                "entries of region {region} up to {truncated} are truncated; {from} was requested"
            )));
        }
        let mut places = Vec::new();
        let mut bytes = 0;
        for index in from.0..to.0.min(log.last().0.next().0) {
            let Some(place) = log.place(LogIndex(index)) else { break };
            bytes += place.bytes() as usize;
            if bytes > bytes_max && !places.is_empty() {
                break;
            }
            places.push((LogIndex(index), *place));
        }
        Ok(places)
    }

    pub(crate) fn record_of(&self, at: &Locator) -> Result<RecordHeader> {
        match self.value_name(at.file)? {
            name @ Name::Sorted(_) => {
                let file = self.handle(name)?;
                let (fields, key) = sorted::header_before(file.as_ref(), self.dir.store, at)?;
                let expires_at_s = Some(fields.expires_at_s);
                Ok(RecordHeader { version: fields.version, key: Some(key), expires_at_s })
            }
            _ => Ok(RecordHeader { version: at.lsn(), key: None, expires_at_s: None }),
        }
    }

    pub(crate) fn read_records(
        &self,
        places: &[(usize, Locator)],
        how: ReadMode,
    ) -> Result<Vec<Unchecked>> {
        let whole = |(key_bytes, at): &(usize, Locator)| {
            let before = self.bytes_before(*key_bytes, at)?;
            Ok(Locator { offset: at.offset - before, length: at.length + before, ..*at })
        };
        let whole: Vec<Locator> = places.iter().map(whole).collect::<Result<_>>()?;
        Ok(self.read_many_with(&whole, how)?.into_values())
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

impl Log {
    /// Returns the value at a locator if its file is open and the page cache holds it. Returns
    /// `None` otherwise, also when it does not match its checksum: then the caller must use
    /// [`Log::get_missed`], which may wait. Allocates nothing for a value that it does not find.
    pub fn get_cached(&self, at: &Locator) -> Result<Option<Bytes>> {
        let Some(file) = self.shared.file_in_memory(at) else { return Ok(None) };
        with_memory(at.length as usize, |memory| {
            if !file.read_cached_at(memory, u64::from(at.offset))? {
                return Ok(None);
            }
            let is_whole = at.check(memory).is_ok();
            // bug log.cached_unchecked: let is_whole = true;
            Ok(is_whole.then(|| Bytes::copy_from_slice(memory)))
        })
    }

    /// [`Log::get`] of a value that was requested by [`Log::will_read`]: the read is not measured.
    pub fn get_requested(&self, at: &Locator) -> Result<Bytes> {
        self.shared.get_requested(at)
    }

    /// [`Log::get`] of a value that [`Log::get_cached`] did not find: it is not tried again without
    /// waiting.
    pub fn get_missed(&self, at: &Locator) -> Result<Bytes> {
        self.shared.get_missed(at)
    }
}

/// Longest value that is tried in the memory of its thread.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// Memory of attempts to read a value without waiting: most of those that fail would allocate and
    /// fill it in vain.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with memory of so many bytes, of any content.
fn with_memory<T>(bytes: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    if bytes > SCRATCH_BYTES_MAX {
        return f(&mut vec![0; bytes]);
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < bytes {
            scratch.resize(bytes.next_power_of_two(), 0);
        }
        f(scratch.get_mut(..bytes).unwrap_or_default())
    })
}

/// Bytes that are requested from the device before the first of them is awaited. A longer value is
/// requested by itself.
const REQUESTED_BYTES_MAX: u64 = 4 << 20;

impl Log {
    /// Reads each value and passes it to `take` with its place in `at`: first those that the page
    /// cache holds, then the others in the order of their positions. The device works on many of
    /// them at the same time. Each value has its own buffer and its own result.
    pub fn read_each(&self, at: &[Locator], mut take: impl FnMut(usize, Result<Bytes>)) {
        let mut order: Vec<(usize, &Locator)> = at.iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, at)| (at.file, at.offset));
        if order.len() > 1 {
            // A failed lookup is repeated as a read.
            order.retain(|&(i, at)| match self.get_cached(at) {
                Ok(Some(value)) => {
                    take(i, Ok(value));
                    false
                }
                _ => true,
            });
        }
        let (mut requested, mut pending_bytes) = (0, 0);
        for (read, &(i, at)) in order.iter().enumerate() {
            // The last one alone is read at once.
            while order.len() > read + 1
                && let Some((_, next)) = order.get(requested)
                && (pending_bytes < REQUESTED_BYTES_MAX || requested == read)
            {
                self.will_read(next);
                pending_bytes += u64::from(next.length);
                requested += 1;
            }
            let is_one = order.len() == 1;
            let value = if is_one { self.get(at) } else { self.get_requested(at) };
            take(i, value);
            pending_bytes = pending_bytes.saturating_sub(u64::from(at.length));
        }
    }

    /// Requests a value from the device, for a later [`Log::get_requested`]. A failure shows when the value
    /// is read.
    pub fn will_read(&self, at: &Locator) {
        let shared = &self.shared;
        let file = shared.value_name(at.file).and_then(|name| shared.handle(name));
        if let Ok(file) = file {
            file.will_read(u64::from(at.offset), u64::from(at.length));
        }
    }
}

const OVERHEAD_BYTES: u64 = 64;

/// Payloads of the most recent entries by position. Direct writes leave none of them in the page
/// cache, and replication reads the newest entries. Invariant: positions ascend and are never
/// reused, so no entry here is stale.
#[derive(Debug)]
pub(crate) struct EntryCache {
    bytes_max: u64,
    recent: Mutex<Recent, { rank::LOG_ENTRY_CACHE }>,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Recent {
    /// In ascending order of position.
    entries: VecDeque<(Lsn, Bytes)>,
    bytes: u64,
}

fn weight(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD_BYTES
}

impl EntryCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max as u64,
            recent: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Adds a batch's payloads and evicts the oldest above the limit.
    pub(crate) fn insert<'a>(&self, payloads: impl Iterator<Item = (Lsn, &'a Bytes)>) {
        if self.bytes_max == 0 {
            return;
        }
        let mut recent = self.recent.lock();
        for (at, payload) in payloads {
            debug_assert!(recent.entries.back().is_none_or(|(last, _)| *last < at));
            recent.bytes += weight(payload);
            recent.entries.push_back((at, payload.clone()));
            while recent.bytes > self.bytes_max {
                let Some((_, oldest)) = recent.entries.pop_front() else { break };
                recent.bytes -= weight(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, at: Lsn) -> Option<Bytes> {
        let found = {
            let recent = self.recent.lock();
            let place = recent.entries.binary_search_by_key(&at, |(at, _)| *at).ok();
            place.and_then(|place| recent.entries.get(place)).map(|(_, payload)| payload.clone())
        };
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.recent.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn the_newest_stay_within_the_limit() {
        let cache = EntryCache::new(1000);
        let payload = Bytes::from(vec![7; 136]);
        let at = |n: u32| Lsn::new(FileId(1 + n / 6), 512 * (n % 6));
        cache.insert((0..12).map(|n| (at(n), &payload)));
        assert_eq!(cache.used_bytes(), 1000);
        let found: Vec<u32> = (0..13).filter(|n| cache.get(at(*n)).is_some()).collect();
        assert_eq!(found, [7, 8, 9, 10, 11]);
        cache.insert([(at(12), &Bytes::from(vec![0; 1000]))].into_iter());
        assert_eq!((cache.used_bytes(), cache.get(at(11)), cache.get(at(12))), (0, None, None));
    }
}
