//! Slices of a walk over the index: first keys and locations of values, then the values.

use super::Shared;
use super::value_cache::ValueCache;
use bytes::Bytes;
use stele_index::{ValueSlice, ViewIter};
use stele_log::{RECORD_OVERHEAD_BYTES, ReadMany};
use stele_storage::{FoundPair, Passed, SharedSlice};
use stele_types::{Error, Locator, Result};

/// Limits for the pairs and bytes that a scan fetches together.
pub(crate) const SLICE_PAIRS_MAX: usize = 4096;
const SLICE_BYTES_MAX: u64 = 4 << 20;
/// Pairs, and bytes of each key, for which a slice has memory before it grows.
const EXPECTED_PAIRS_MAX: usize = 64;
const EXPECTED_KEY_BYTES: usize = 32;
/// Largest gap between values that are read together.
const NEAR_BYTES: u64 = 16 << 10;

/// Returns the places of values that are requested from the device while others are read; called at most once.
pub(crate) type Ahead<'a> = Option<&'a mut dyn FnMut() -> Vec<Locator>>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub pairs_max: usize,
    /// Bytes of keys and values; the pair that reaches the limit is the last.
    pub bytes_max: u64,
    pub keys_only: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Slice {
    /// Keys and inline values, one after the other.
    memory: Vec<u8>,
    pairs: Vec<SlicePair>,
    /// Locations of the values in value files, in the order of the pairs.
    places: Vec<Locator>,
    bytes: u64,
    value_bytes: u64,
    /// Number of values near the one before.
    near: usize,
}

#[derive(Clone, Copy, Debug)]
struct SlicePair {
    /// Ends of the key and the inline value in the slice's memory; a pair begins where the last
    /// ended.
    key_end: u32,
    value_end: u32,
    is_located: bool,
    expires_at_s: u64,
}

impl Slice {
    /// Collects the next pairs of `iter`; empty at its end.
    pub(crate) fn collect(iter: &mut ViewIter, extent: Extent) -> Result<Self> {
        match Self::collect_until_failure(iter, extent) {
            (slice, None) => Ok(slice),
            (_, Some(error)) => Err(error),
        }
    }

    /// Collects the next pairs of `iter`, up to one that cannot be read. Returns that failure too.
    pub(crate) fn collect_until_failure(
        iter: &mut ViewIter,
        extent: Extent,
    ) -> (Self, Option<Error>) {
        let mut slice = Self::default();
        let failure = slice.fill(iter, extent).err();
        (slice, failure)
    }

    fn fill(&mut self, iter: &mut ViewIter, extent: Extent) -> Result<()> {
        let pairs_max = extent.pairs_max.min(SLICE_PAIRS_MAX);
        let expected = pairs_max.min(EXPECTED_PAIRS_MAX);
        self.memory.reserve(expected * EXPECTED_KEY_BYTES);
        self.pairs.reserve(expected);
        self.places.reserve(if extent.keys_only { 0 } else { expected });
        let bytes_max = extent.bytes_max.min(SLICE_BYTES_MAX);
        while self.pairs.len() < pairs_max && self.bytes < bytes_max && iter.advance()? {
            let (key, value, expires_at_s) = iter.pair()?;
            self.push(key, value, expires_at_s, extent.keys_only);
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: ValueSlice<'_>, expires_at_s: u64, keys_only: bool) {
        self.memory.extend_from_slice(key);
        let key_end = self.memory.len() as u32;
        let (mut is_located, mut value_bytes) = (false, 0);
        match value {
            _ if keys_only => {}
            ValueSlice::Inline(value) => {
                self.memory.extend_from_slice(value);
                value_bytes = value.len() as u64;
            }
            ValueSlice::At(at) => {
                self.near += usize::from(self.places.last().is_some_and(|last| near(last, &at)));
                self.places.push(at);
                (is_located, value_bytes) = (true, u64::from(at.length));
            }
        }
        let value_end = self.memory.len() as u32;
        self.pairs.push(SlicePair { key_end, value_end, is_located, expires_at_s });
        self.value_bytes += value_bytes;
        self.bytes += key.len() as u64 + value_bytes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the locations of its values in value files.
    pub(crate) fn places(&self) -> &[Locator] {
        &self.places
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// Returns what describes its pairs.
    pub(crate) fn passed(&self) -> Passed {
        Passed::new(self.len(), self.value_bytes, self.first_key(), self.last_key())
    }

    /// Removes the last pair, of which the value is then not read.
    pub(crate) fn remove_last(&mut self) {
        let Some(last) = self.pairs.pop() else { return };
        let begin = self.pairs.last().map_or(0, |pair| pair.value_end);
        let mut value_bytes = u64::from(last.value_end - last.key_end);
        if last.is_located
            && let Some(at) = self.places.pop()
        {
            value_bytes = u64::from(at.length);
            self.near -= usize::from(self.places.last().is_some_and(|before| near(before, &at)));
        }
        self.memory.truncate(begin as usize);
        self.value_bytes -= value_bytes;
        self.bytes -= u64::from(last.key_end - begin) + value_bytes;
    }

    pub(crate) fn reads(&self) -> usize {
        self.places.len() - self.near
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        let end = self.pairs.first().map_or(0, |first| first.key_end as usize);
        self.memory.get(..end).unwrap_or_default()
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        let Some((last, before)) = self.pairs.split_last() else { return &[] };
        let begin = before.last().map_or(0, |pair| pair.value_end as usize);
        self.memory.get(begin..last.key_end as usize).unwrap_or_default()
    }

    /// Returns the bytes that its records take in value files.
    pub(crate) fn record_bytes(&self) -> u64 {
        let mut begin = 0;
        let mut bytes = self.located_bytes();
        for pair in &self.pairs {
            if pair.is_located {
                bytes += u64::from(pair.key_end - begin) + RECORD_OVERHEAD_BYTES;
            }
            begin = pair.value_end;
        }
        bytes
    }

    fn located_bytes(&self) -> u64 {
        self.places.iter().map(|at| u64::from(at.length)).sum()
    }

    /// Reads the values off the device and records each one that is damaged as lost. Returns the
    /// last key, and the bytes of keys, of inline values and of the blocks read.
    pub(crate) fn check(self, shared: &Shared) -> (Bytes, u64) {
        // bug engine.scrub_reads_nothing: return (Bytes::copy_from_slice(self.last_key()), self.bytes);
        // If the joint read fails, the values are read one by one, which reports the failing one.
        let read = shared.log.read_many_direct(&self.places).unwrap_or_else(|_| {
            let mut failed = ReadMany::failed(self.places.len());
            failed.read_bytes = self.located_bytes();
            failed
        });
        // bug engine.scrub_counts_requested_bytes: `read.read_bytes` is `self.located_bytes()`
        let bytes = self.bytes.saturating_sub(self.located_bytes()) + read.read_bytes;
        let last = Bytes::copy_from_slice(self.last_key());
        let mut begin = 0;
        let mut located = self.places.iter().zip(read.into_values());
        for pair in &self.pairs {
            let key = self.memory.get(begin..pair.key_end as usize).unwrap_or_default();
            begin = pair.value_end as usize;
            if pair.is_located
                && let Some((at, read)) = located.next()
                && let Err(error) = shared.log.check_read(at, &read)
            {
                shared.lost_values.note(key, at, &error);
            }
        }
        (last, bytes)
    }

    /// Reads the values in order of location, with small gaps coalesced. Those that the value cache
    /// has are not read. Requests the values ahead of them from the device.
    pub(crate) fn read(self, shared: &Shared, ahead: Ahead<'_>) -> Result<ReadSlice> {
        let cached = self.cached(&shared.values);
        let missing = self.missing(&cached);
        let places = missing.as_deref().unwrap_or(&self.places);
        let read = match ahead {
            Some(ahead) => shared.log.read_many_ahead(places, ahead),
            None => shared.log.read_many(places),
        };
        let read = match read {
            // The values are read one by one, so that only those that are damaged fail.
            Err(error) if error.is_damage() => ReadMany::failed(places.len()),
            read => read?,
        };
        Ok(self.with(cached, read))
    }

    /// Does what [`Slice::read`] does if all values are in memory; `None` if one is not. Never waits
    /// for the device.
    pub(crate) fn read_in_memory(self, shared: &Shared) -> Result<Option<ReadSlice>> {
        let cached = self.cached(&shared.values);
        let missing = self.missing(&cached);
        let places = missing.as_deref().unwrap_or(&self.places);
        let read = shared.log.read_many_in_memory(places)?;
        Ok(read.map(|read| self.with(cached, read)))
    }

    /// Returns the values that the value cache has, in the order of the places; empty if it is not asked:
    /// one read returns many values that lie near each other, with less work than a lookup of each.
    ///
    /// Invariant: scans add nothing to the cache. One long scan would evict what gets use.
    /// Test: `scans_use_the_value_cache_and_evict_nothing_from_it`.
    fn cached(&self, values: &ValueCache) -> Vec<Option<Bytes>> {
        let is_scattered = 2 * self.reads() > self.places.len();
        match is_scattered && values.is_used() {
            true => self.places.iter().map(|at| values.get(at)).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the places that are not in the cache; `None` if it was not asked.
    fn missing(&self, cached: &[Option<Bytes>]) -> Option<Vec<Locator>> {
        let places = || self.places.iter().zip(cached);
        let missing = || places().filter(|(_, found)| found.is_none()).map(|(at, _)| *at).collect();
        (!cached.is_empty()).then(missing)
    }

    fn with(self, cached: Vec<Option<Bytes>>, read: ReadMany) -> ReadSlice {
        ReadSlice {
            memory: self.memory.into(),
            pairs: self.pairs.into_iter(),
            places: self.places.into_iter(),
            cached: cached.into_iter(),
            scattered_reads: read.reads.saturating_sub(1) as u64,
            read,
            taken: 0,
            other: Bytes::new(),
            begin: 0,
        }
    }
}

pub(super) fn near(one: &Locator, other: &Locator) -> bool {
    let (low, high) = if one.lsn() <= other.lsn() { (one, other) } else { (other, one) };
    let end = u64::from(low.offset) + u64::from(low.length);
    low.file == high.file && u64::from(high.offset) <= end + NEAR_BYTES
}

/// Pairs with values that are read and each checked on request. Keys share one piece of memory,
/// values the memory of their reads.
#[derive(Debug, Default)]
pub(crate) struct ReadSlice {
    memory: Bytes,
    pairs: std::vec::IntoIter<SlicePair>,
    places: std::vec::IntoIter<Locator>,
    /// Values of the places that the value cache had; empty if it was not asked.
    cached: std::vec::IntoIter<Option<Bytes>>,
    /// Values of the other places, and the number of those that were taken.
    read: ReadMany,
    taken: usize,
    /// Value of the last pair, if it was not read with the others.
    other: Bytes,
    scattered_reads: u64,
    begin: usize,
}

impl ReadSlice {
    /// Returns the reads of its values in excess of one.
    pub(crate) fn scattered_reads(&self) -> u64 {
        self.scattered_reads
    }

    /// Returns the next pair. Records a value that cannot be read as lost.
    pub(crate) fn next(&mut self, shared: &Shared) -> Result<Option<FoundPair<'_>>> {
        self.next_with(|key, at| {
            let value = shared.log.get(at);
            value.inspect_err(|error| shared.lost_values.note(key, at, error))
        })
    }

    /// Returns the next pair. Fails with [`Error::needs_io`] if the value read does not match its
    /// checksum.
    pub(crate) fn next_in_memory(&mut self, shared: &Shared) -> Result<Option<FoundPair<'_>>> {
        self.next_with(|_, _| Err(Error::would_wait(shared.dir.as_path())))
    }

    /// Returns the next pair; `again` returns a value of which what was read does not match its checksum.
    fn next_with(
        &mut self,
        again: impl FnOnce(&[u8], &Locator) -> Result<Bytes>,
    ) -> Result<Option<FoundPair<'_>>> {
        let Some(pair) = self.pairs.next() else { return Ok(None) };
        let (key_end, value_end) = (pair.key_end as usize, pair.value_end as usize);
        let key = SharedSlice::part(&self.memory, self.begin..key_end);
        self.begin = value_end;
        let value = match pair.is_located {
            false => SharedSlice::part(&self.memory, key_end..value_end),
            true => {
                let at = self.places.next();
                let at = at.ok_or_else(|| Error::invalid("a slice has fewer values than pairs"))?;
                let number = self.taken;
                let read = match self.cached.next().flatten() {
                    Some(value) => {
                        self.other = value;
                        None
                    }
                    None => {
                        self.taken += 1;
                        let read = self.read.checked(number, &at);
                        if read.is_none() {
                            self.other = again(&key, &at)?;
                        }
                        read
                    }
                };
                match read {
                    Some((memory, part)) => SharedSlice::part(memory, part),
                    None => (&self.other).into(),
                }
            }
        };
        Ok(Some(FoundPair { key, value, expires_at_s: pair.expires_at_s }))
    }
}
