//! A read-only survey of what recovery would read, for a store that other replicas can repair: it
//! finds the entries with damaged payloads and writes copies in their places.

use super::inventory::{self, Inventory, Orphans};
use super::needed::Needed;
use super::{by_frames, by_sidecar, check_end, check_tail, check_whole, read_payload};
use crate::dir::{Dir, Name};
use crate::format::FrameHeader;
use crate::region::Regions;
use crate::segment::damaged_payloads::{self, DamagedPayload};
use crate::segment::scan::{self, End, Probe, SegmentReader};
use crate::shared::Poison;
use crate::{LogOptions, RecoverFrom, RegionLog};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, FileId, Locator, LogIndex, Lsn, RegionId, Result, Term};
use stele_vfs::{AlignedBuf, Open, Vfs};

/// A log that is not open. Nothing else may write to it meanwhile. Only copies of lost payloads are
/// written.
#[derive(Debug)]
pub struct DamageSurvey {
    dir: Dir,
    options: LogOptions,
    from: RecoverFrom,
    damaged_max: usize,
    regions: Regions,
    /// Damaged payloads that are needed.
    damaged: BTreeSet<DamagedPayload>,
    /// Damaged payloads outside every region's log.
    unreferenced: BTreeSet<Lsn>,
    /// Whether more payloads are damaged than `damaged` holds.
    has_more: bool,
    poison: Poison,
}

#[derive(Debug)]
pub(crate) struct Unneeded {
    unreferenced: BTreeSet<Lsn>,
}

impl Unneeded {
    pub(crate) fn has(&self, from: &RecoverFrom, damaged: &DamagedPayload) -> bool {
        // bug log.open_with_holes: `self.unreferenced.contains(&damaged.at)` is `true`
        from.is_checkpointed(damaged.region, damaged.index)
            || self.unreferenced.contains(&damaged.at)
    }
}

impl DamageSurvey {
    /// Surveys the log in `dir`. Holds at most `damaged_max` damaged payloads at a time, 64 bytes
    /// each. Fails as opening would fail if these payloads were intact.
    pub fn take(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: &LogOptions,
        from: &RecoverFrom,
        damaged_max: usize,
    ) -> Result<Self> {
        let (store, direct) = (options.store, options.direct);
        Self::of(&Dir { vfs, path: dir.to_path_buf(), store, direct }, options, from, damaged_max)
    }

    pub(crate) fn of(
        dir: &Dir,
        options: &LogOptions,
        from: &RecoverFrom,
        damaged_max: usize,
    ) -> Result<Self> {
        let mut survey = Self {
            dir: dir.clone(),
            options: options.clone(),
            from: from.clone(),
            damaged_max,
            regions: Regions::default(),
            damaged: BTreeSet::new(),
            unreferenced: BTreeSet::new(),
            has_more: false,
            poison: Poison::default(),
        };
        survey.scan()?;
        Ok(survey)
    }

    /// Returns the damaged payloads that do not prevent opening; `None` if others do.
    pub(crate) fn into_unneeded(self) -> Option<Unneeded> {
        let opens = self.is_recovered();
        // bug log.open_with_holes: let opens = true;
        opens.then_some(Unneeded { unreferenced: self.unreferenced })
    }

    /// Whether all needed payloads are readable, so that the log opens.
    pub fn is_recovered(&self) -> bool {
        self.damaged.is_empty() && !self.has_more
    }

    /// Returns the damaged payloads after `last`, ordered by region and index. When all of them are
    /// restored, more may be found.
    pub fn damaged_after(
        &self,
        last: Option<&DamagedPayload>,
    ) -> impl Iterator<Item = &DamagedPayload> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.damaged.range((from, Bound::Unbounded))
    }

    /// Returns the damaged copies of an entry: more than one if it was appended more than once.
    pub fn damaged_of(
        &self,
        region: RegionId,
        index: LogIndex,
        term: Term,
    ) -> impl Iterator<Item = &DamagedPayload> {
        let first =
            DamagedPayload { region, index, term, at: Lsn::default(), bytes: 0, crc: 0, frame: 0 };
        let same = move |damaged: &&DamagedPayload| {
            (damaged.region, damaged.index, damaged.term) == (region, index, term)
        };
        self.damaged.range(first..).take_while(same)
    }

    /// Returns the term of an entry in a region's log.
    pub fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.regions.get(region)?.place(index).map(|place| place.term)
    }

    /// Returns a region's log.
    pub fn region(&self, region: RegionId) -> Option<RegionLog> {
        self.regions.get(region).map(|region| region.log())
    }

    /// Returns the payload of an entry in a region's log; `None` when it is missing or damaged.
    pub fn find(&self, region: RegionId, index: LogIndex, term: Term) -> Result<Option<Bytes>> {
        let place = self.regions.get(region).and_then(|region| region.place(index));
        let Some(place) = place.filter(|place| place.term == term) else { return Ok(None) };
        let Lsn { file, offset } = place.at;
        let at = Locator { file, offset, length: place.bytes(), crc: place.crc };
        match read_payload(&self.dir, Name::Segment(file), &at) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the value at a locator.
    pub fn value(&self, at: &Locator) -> Result<Bytes> {
        let is_sorted = self.dir.vfs.exists(&self.dir.path_of(Name::Sorted(at.file)))?;
        let name = if is_sorted { Name::Sorted(at.file) } else { Name::Segment(at.file) };
        read_payload(&self.dir, name, at)
    }

    /// Writes a payload in its place, durably. Returns `false` and writes nothing if no such
    /// payload is damaged or `payload` is not the lost one. After a failure nothing more is
    /// written.
    pub fn restore_payload(&mut self, damaged: &DamagedPayload, payload: &[u8]) -> Result<bool> {
        self.poison.check()?;
        // bug log.fill_unchecked: `damaged.is(payload)` is `payload.len() == damaged.bytes as usize`
        if !self.damaged.contains(damaged) || !damaged.is(payload) {
            return Ok(false);
        }
        self.write(damaged, payload).map_err(|error| self.poison.set(error))?;
        self.damaged.remove(damaged);
        self.check_restored(damaged).map_err(|error| self.poison.set(error))?;
        if self.damaged.is_empty() && self.has_more {
            self.scan().inspect_err(|_| self.has_more = true)?;
        }
        Ok(true)
    }

    /// Writes in place, although otherwise no durable block is written again: all bytes are the
    /// ones first written. A crash leaves the payload damaged as before: a frame that a valid frame
    /// follows is never treated as torn.
    fn write(&self, damaged: &DamagedPayload, payload: &[u8]) -> Result<()> {
        let mut reader = SegmentReader::open(&self.dir, damaged.at.file, false)?;
        let file = self.dir.open_append(Name::Segment(damaged.at.file))?;
        // If the device now requires larger blocks, only the page cache can write this.
        let file = match file.block_bytes() {
            Some(bytes) if bytes > reader.block_bytes() as usize => {
                self.dir.vfs.open(file.path(), Open::WRITE)?
            }
            _ => file,
        };
        if file.block_bytes().is_some() {
            let (blocks, at) = self.blocks_with(&mut reader, damaged, payload)?;
            file.write_at(&[IoSlice::new(&blocks)], at, Cause::Log)?;
        } else {
            file.write_at(&[IoSlice::new(payload)], u64::from(damaged.at.offset), Cause::Log)?;
        }
        // The copy is reported only after it is durable.
        // bug log.fill_unsynced: `file.sync_data()` is `Ok(())`
        file.sync_data()
    }

    /// Returns the blocks around a payload, with the copy in place, and their offset. A wrong read
    /// of the surrounding bytes must not be written back. The batch is proven except for its
    /// damaged payloads, so those are read twice.
    fn blocks_with(
        &self,
        reader: &mut SegmentReader,
        damaged: &DamagedPayload,
        payload: &[u8],
    ) -> Result<(AlignedBuf, u64)> {
        let Some(frame) = frame_with_damage(reader, damaged.frame)? else {
            return Err(reader.corrupt(damaged.frame, "more of a batch is damaged than before"));
        };
        let block = reader.block_bytes() as usize;
        let body = reader.body(damaged.frame, &frame)?.unwrap_or_default();
        let mut has_others = false;
        damaged_payloads::each(&frame, body, &mut |other| has_others |= other.at != damaged.at);
        // bug log.fill_read_once: never
        if has_others {
            let mut again = SegmentReader::open(&self.dir, damaged.at.file, false)?;
            if again.body(damaged.frame, &frame)? != Some(body) {
                return Err(again.corrupt(damaged.frame, "two reads of a batch differ"));
            }
        }
        let header = frame.encode();
        let byte = |at: usize| match at.checked_sub(header.len()) {
            None => header.get(at),
            Some(at) => body.get(at),
        };
        let bytes = |range: Range<usize>| range.filter_map(byte).copied().collect::<Vec<u8>>();
        let begin = (damaged.at.offset - damaged.frame) as usize;
        let (from, end) = (begin - begin % block, begin + payload.len());
        let mut blocks = AlignedBuf::new();
        blocks.extend_from_slice(&bytes(from..begin));
        blocks.extend_from_slice(payload);
        blocks.extend_from_slice(&bytes(end..end.next_multiple_of(block)));
        blocks.pad_to_multiple(block);
        Ok((blocks, u64::from(damaged.frame) + from as u64))
    }

    /// Checks that the device now returns the payload. After a frame's last copy, checks the whole
    /// frame.
    fn check_restored(&self, damaged: &DamagedPayload) -> Result<()> {
        let mut reader = SegmentReader::open(&self.dir, damaged.at.file, false)?;
        let payload = reader.range(u64::from(damaged.at.offset), damaged.bytes as usize)?;
        let mut is_restored = payload.is_some_and(|payload| damaged.is(payload));
        let same = |other: &DamagedPayload| {
            (other.at.file, other.frame) == (damaged.at.file, damaged.frame)
        };
        if is_restored && !self.has_more && !self.damaged.iter().any(same) {
            is_restored = frame_with_damage(&mut reader, damaged.frame)?.is_some();
        }
        // bug log.fill_unread: always
        if is_restored {
            return Ok(());
        }
        Err(reader
            .corrupt(damaged.frame, "a copy was written here, but the device returns other bytes"))
    }

    fn scan(&mut self) -> Result<()> {
        let inventory = Inventory::take(&self.dir, &self.options, &self.from, Orphans::Kept)?;
        let chain = inventory::links(&self.dir, &inventory.segments, &self.from)?;
        (self.regions, self.has_more) = (Regions::default(), false);
        let Some((newest, sealed)) = chain.split_last() else { return Ok(()) };
        let mut needed = Needed::new(&self.options, &self.from);
        for (i, link) in sealed.iter().enumerate() {
            let next = sealed.get(i + 1).unwrap_or(newest);
            let end = End { at: next.header.previous_end, chain: next.header.chain };
            if by_sidecar(&self.dir, link.id, end, &mut self.regions, &mut needed)?.is_none() {
                let (mut reader, found) = self.scan_segment(link.id, Some(end.at), &mut needed)?;
                check_end(&mut reader, found, end)?;
            }
        }
        let (mut reader, end) = self.scan_segment(newest.id, None, &mut needed)?;
        check_tail(&mut reader, end)?;
        check_whole(&self.dir, &self.regions, Lsn::new(newest.id, end.at), &self.from)?;
        self.scan_behind_sidecars(&needed)?;
        self.separate_unreferenced();
        if self.damaged.is_empty() && self.has_more {
            let detail = format!(
                "more than {} damaged entries outside every region's log",
                self.damaged_max
            );
            return Err(reader.corrupt(end.at, detail));
        }
        Ok(())
    }

    fn scan_behind_sidecars(&mut self, needed: &Needed) -> Result<()> {
        let mut unreadable = needed.unreadable(&self.dir, &self.regions)?;
        while let Some(file) = unreadable.first().map(|at| at.file) {
            let mut reader = SegmentReader::open(&self.dir, file, false)?;
            let mut note = |damaged: &DamagedPayload| {
                if unreadable.remove(&damaged.at) {
                    match self.damaged.len() < self.damaged_max {
                        true => drop(self.damaged.insert(*damaged)),
                        false => self.has_more = true,
                    }
                }
                true
            };
            let until = needed.by_sidecar.get(&file).map(|end| end.at);
            let end = scan::frames(&mut reader, until, &mut note, &mut |_, _, _| Ok(()))?;
            if unreadable.first().is_some_and(|at| at.file == file) {
                let detail = "more of a batch is damaged than payloads";
                return Err(reader.corrupt(end.at, detail));
            }
        }
        Ok(())
    }

    fn scan_segment(
        &mut self,
        id: FileId,
        until: Option<u32>,
        needed: &mut Needed,
    ) -> Result<(SegmentReader, End)> {
        let mut reader = SegmentReader::open(&self.dir, id, false)?;
        let (found, has_more, from) = (&mut self.damaged, &mut self.has_more, &self.from);
        let damaged_max = self.damaged_max;
        let mut note = |damaged: &DamagedPayload| {
            if from.is_checkpointed(damaged.region, damaged.index) {
                return true;
            }
            match found.len() < damaged_max {
                true => drop(found.insert(*damaged)),
                false => *has_more = true,
            }
            true
        };
        let regions = &mut self.regions;
        let (end, _) = by_frames(&mut reader, until, regions, needed, &mut note, &mut |_| Ok(()))?;
        Ok((reader, end))
    }

    /// Moves payloads outside every region's log (replaced entries, destroyed regions) to
    /// `unreferenced`: no replica needs a copy, and perhaps none has one.
    fn separate_unreferenced(&mut self) {
        if self.from.checkpointed.is_none() {
            return;
        }
        let regions = &self.regions;
        let place = |damaged: &DamagedPayload| {
            regions.get(damaged.region).and_then(|it| it.place(damaged.index))
        };
        let is_unreferenced =
            |damaged: &DamagedPayload| place(damaged).is_none_or(|place| place.at != damaged.at);
        self.unreferenced.extend(
            self.damaged
                .iter()
                .filter(|damaged| is_unreferenced(damaged))
                .map(|damaged| damaged.at),
        );
        self.damaged.retain(|damaged| !self.unreferenced.contains(&damaged.at));
    }
}

/// Returns the frame at `at` if it is intact except for damaged payloads.
fn frame_with_damage(reader: &mut SegmentReader, at: u32) -> Result<Option<FrameHeader>> {
    if let Probe::Frame(frame) = reader.probe(at)? {
        return Ok(Some(frame));
    }
    let Some(frame) = reader.named(at)? else { return Ok(None) };
    damaged_payloads::proven(reader, End { at, chain: frame.chain })
}
