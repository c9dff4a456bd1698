//! Reads of entries, and of a value by its locator with one positioned read of exactly the value.
//!
//! Reads of a value without waiting for the device.
//!
//! Reads of independent values: each is handed out as soon as it is read.

use crate::dir::Name;
use crate::shared::{Counters, Shared};
use crate::{Log, sorted};
use bytes::Bytes;
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

    fn get_with(&self, at: &Locator, timer: Option<&DeviceTimer>) -> Result<Bytes> {
        let name = self.value_name(at.file)?;
        let file = self.handle(name)?;
        check_length(&*file, at)?;
        let mut value = vec![0; at.length as usize];
        let got = match timer {
            Some(timer) => timer.read_at(&*file, &mut value, u64::from(at.offset))?,
            None => file.read_at(&mut value, u64::from(at.offset))?,
        };
        if got == value.len() && at.check(&value).is_ok() {
            return Ok(value.into());
        }
        self.get_direct(name, at)
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
}

impl Log {
    /// Returns the value at a locator if its file is open and the page cache holds it. Returns
    /// `None` otherwise, also when it does not match its checksum: then the caller must use
    /// [`Log::get`], which may wait.
    pub fn get_cached(&self, at: &Locator) -> Result<Option<Bytes>> {
        let Some(file) = self.shared.handles.get(u64::from(at.file.0), false) else {
            return Ok(None);
        };
        if u64::from(at.length) > TRUSTED_LENGTH_BYTES {
            return Ok(None);
        }
        let mut value = vec![0; at.length as usize];
        if !file.read_cached_at(&mut value, u64::from(at.offset))? {
            return Ok(None);
        }
        let is_whole = at.check(&value).is_ok();
        // bug log.cached_unchecked: let is_whole = true;
        Ok(is_whole.then(|| value.into()))
    }
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
            let value = if is_one { self.get(at) } else { self.shared.get_requested(at) };
            take(i, value);
            pending_bytes = pending_bytes.saturating_sub(u64::from(at.length));
        }
    }

    /// Requests a value from the device. A failure shows when the value is read.
    fn will_read(&self, at: &Locator) {
        let shared = &self.shared;
        let file = shared.value_name(at.file).and_then(|name| shared.handle(name));
        if let Ok(file) = file {
            file.will_read(u64::from(at.offset), u64::from(at.length));
        }
    }
}
