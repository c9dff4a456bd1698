//! Reading values by locator: one positioned read of exactly the value, or, for many, one for each
//! stretch of neighbours.

use crate::dir::Name;
use crate::shared::{Counters, Shared};
use crate::sorted;
use bytes::Bytes;
use stele_types::{CommittedEntry, Error, FileId, Locator, LogIndex, Lsn, RegionId, Result};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES};

/// Unwanted bytes between two values that are still read along: cheaper than another read.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Longest read for more than one value: values of 4 MiB and what lies between them. A device
/// serves the parts of one long read at the same time.
pub(crate) const STRETCH_BYTES_MAX: u64 = (4 << 20) + (256 << 10);
/// Reads from here on go past the page cache: it would only copy them, and drop what others need.
const DIRECT_BYTES_MIN: u64 = 256 << 10;
/// Shorter values are copied out of what was read: each must not keep all of it in memory.
const SHARED_BYTES_MIN: u32 = 8 << 10;

/// What is known of a record from its locator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Position of the operation that wrote the value first.
    pub version: Lsn,
    /// The key; `None` in segments, where it stands before the value without a way back to it.
    pub key: Option<Bytes>,
    /// Unix seconds, 0 for never; `None` in segments.
    pub expires_at_s: Option<u64>,
}

impl Shared {
    pub fn get(&self, at: &Locator) -> Result<Bytes> {
        let name = self.value_name(at.file)?;
        let file = self.handles.get(&self.dir, name)?;
        let mut value = vec![0; at.length as usize];
        let got = file.read_at(&mut value, u64::from(at.offset))?;
        if got == value.len() && at.check(&value).is_ok() {
            return Ok(value.into());
        }
        self.get_direct(name, at)
    }

    /// The page cache may hold a block from before it was written past it, and memory may have
    /// flipped a bit: only what the device says twice is damage.
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

    pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> {
        let mut order: Vec<usize> = (0..at.len()).collect();
        let place = |i: &usize| at.get(*i).map(|at| (at.file, at.offset));
        order.sort_unstable_by_key(place);
        let mut values = vec![Bytes::new(); at.len()];
        let mut rest = order.as_slice();
        while let Some((&first, _)) = rest.split_first() {
            let taken = stretch(at, rest);
            let (group, after) = rest.split_at(taken);
            rest = after;
            match (group, at.get(first)) {
                ([only], Some(at)) if u64::from(at.length) < DIRECT_BYTES_MIN => {
                    if let Some(slot) = values.get_mut(*only) {
                        *slot = self.get(at)?;
                    }
                }
                _ => self.get_stretch(at, group, &mut values)?,
            }
        }
        Ok(values)
    }

    fn get_stretch(&self, at: &[Locator], group: &[usize], values: &mut [Bytes]) -> Result<()> {
        let wanted = || group.iter().filter_map(|&i| Some((i, at.get(i)?)));
        let Some((_, first)) = wanted().next() else { return Ok(()) };
        let end = wanted().map(|(_, at)| end_of(at)).max().unwrap_or_default();
        let (begin, bytes) = self.read_stretch(first.file, u64::from(first.offset), end)?;
        let wanted_bytes: u64 = wanted().map(|(_, at)| u64::from(at.length)).sum();
        let dense = 4 * wanted_bytes >= 3 * bytes.len() as u64;
        for (i, at) in wanted() {
            let from = (u64::from(at.offset) - begin) as usize;
            let within = from..from + at.length as usize;
            let value = bytes.get(within.clone()).filter(|value| at.check(value).is_ok());
            let value = match value {
                Some(_) if dense && at.length >= SHARED_BYTES_MIN => bytes.slice(within),
                Some(value) => Bytes::copy_from_slice(value),
                None => self.get(at)?,
            };
            if let Some(slot) = values.get_mut(i) {
                *slot = value;
            }
        }
        Ok(())
    }

    /// At least `begin..end` of a file, as far as it goes, and where that begins.
    fn read_stretch(&self, file: FileId, begin: u64, end: u64) -> Result<(u64, Bytes)> {
        let name = self.value_name(file)?;
        if end - begin < DIRECT_BYTES_MIN {
            let mut bytes = vec![0; (end - begin) as usize];
            let got = self.handles.get(&self.dir, name)?.read_at(&mut bytes, begin)?;
            bytes.truncate(got);
            return Ok((begin, bytes.into()));
        }
        let align = MEMORY_ALIGN_BYTES as u64;
        let (begin, end) = (begin - begin % align, end.next_multiple_of(align));
        let mut buffer = self.read_pool.take((end - begin) as usize);
        let file = self.handles.get_direct(&self.dir, name)?;
        let got = file.read_at(buffer.as_mut_slice(), begin)?;
        Ok((begin, buffer.into_bytes().slice(..got)))
    }

    pub fn entries(
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
                at: place.at,
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
                "entries of region {region} up to {truncated} are truncated, {from} was asked for"
            )));
        }
        let mut places = Vec::new();
        let mut bytes = 0;
        for index in from.0..to.0.min(log.last().0.0 + 1) {
            let Some(place) = log.place(LogIndex(index)) else { break };
            bytes += place.bytes() as usize;
            if bytes > bytes_max && !places.is_empty() {
                break;
            }
            places.push((LogIndex(index), *place));
        }
        Ok(places)
    }

    pub fn record_of(&self, at: &Locator) -> Result<RecordHead> {
        match self.value_name(at.file)? {
            name @ Name::Sorted(_) => {
                let file = self.handles.get(&self.dir, name)?;
                let (fields, key) = sorted::head_before(file.as_ref(), self.dir.store, at)?;
                let expires_at_s = Some(fields.expires_at_s);
                Ok(RecordHead { version: fields.version, key: Some(key), expires_at_s })
            }
            _ => Ok(RecordHead { version: at.lsn(), key: None, expires_at_s: None }),
        }
    }
}

fn end_of(at: &Locator) -> u64 {
    u64::from(at.offset) + u64::from(at.length)
}

/// How many of the places, sorted, one read takes.
fn stretch(at: &[Locator], order: &[usize]) -> usize {
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
