//! What recovery would read, looked at without a change, for a store that other replicas can mend:
//! which entries are lost to damage of their payloads, and putting copies in their places.

use super::chain;
use super::inventory::{Inventory, Orphans};
use super::needed::Needed;
use super::{by_frames, by_sidecar, check_begun, check_end, check_whole, read_payload};
use crate::dir::{Dir, Name};
use crate::format::FrameHeader;
use crate::poison::Poison;
use crate::region::Regions;
use crate::segment::damaged_payloads::{self, DamagedPayload};
use crate::segment::reader::{Probe, SegmentReader};
use crate::segment::scan::{self, End};
use crate::{LogOptions, RecoverFrom, RegionLog};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, FileId, Locator, LogIndex, Lsn, RegionId, Result, Term, mutant};
use stele_vfs::{AlignedBuf, Open, Vfs};

/// A log that is not open. Nobody else may write to it meanwhile; nothing but copies of lost
/// payloads is written here.
#[derive(Debug)]
pub struct Survey {
    dir: Dir,
    options: LogOptions,
    from: RecoverFrom,
    holes_max: usize,
    regions: Regions,
    /// Payloads that are needed.
    holes: BTreeSet<DamagedPayload>,
    /// Those that are in no region's log.
    dead: BTreeSet<Lsn>,
    /// Whether there are more holes than these.
    has_more: bool,
    poison: Poison,
}

/// Holes that keep nobody from opening the log.
#[derive(Debug)]
pub(crate) struct Unneeded {
    dead: BTreeSet<Lsn>,
}

impl Unneeded {
    pub fn has(&self, from: &RecoverFrom, hole: &DamagedPayload) -> bool {
        from.is_settled(hole.region, hole.index)
            || self.dead.contains(&hole.at)
            || mutant::active("log.open_with_holes")
    }
}

impl Survey {
    /// Looks at the log in `dir`, and knows at most `holes_max` holes at a time, 64 bytes each. Fails
    /// with what opening it would fail with, were the holes filled.
    pub fn take(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: &LogOptions,
        from: &RecoverFrom,
        holes_max: usize,
    ) -> Result<Self> {
        let (store, direct) = (options.store, options.direct);
        Self::of(&Dir { vfs, path: dir.to_path_buf(), store, direct }, options, from, holes_max)
    }

    pub(crate) fn of(
        dir: &Dir,
        options: &LogOptions,
        from: &RecoverFrom,
        holes_max: usize,
    ) -> Result<Self> {
        let mut survey = Self {
            dir: dir.clone(),
            options: options.clone(),
            from: from.clone(),
            holes_max,
            regions: Regions::default(),
            holes: BTreeSet::new(),
            dead: BTreeSet::new(),
            has_more: false,
            poison: Poison::default(),
        };
        survey.look()?;
        Ok(survey)
    }

    /// The holes that are no reason not to open the log, if no others are there.
    pub(crate) fn into_unneeded(self) -> Option<Unneeded> {
        let opens = self.is_whole() || mutant::active("log.open_with_holes");
        opens.then_some(Unneeded { dead: self.dead })
    }

    /// Whether all payloads that are needed are there: the log opens.
    pub fn is_whole(&self) -> bool {
        self.holes.is_empty() && !self.has_more
    }

    /// The holes after this one, in the order of regions and indices. When all of them are filled,
    /// more may come to light.
    pub fn holes_after(
        &self,
        last: Option<&DamagedPayload>,
    ) -> impl Iterator<Item = &DamagedPayload> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.holes.range((from, Bound::Unbounded))
    }

    /// Where an entry is lost: more than once if it was appended more than once.
    pub fn holes_of(
        &self,
        region: RegionId,
        index: LogIndex,
        term: Term,
    ) -> impl Iterator<Item = &DamagedPayload> {
        let first =
            DamagedPayload { region, index, term, at: Lsn::default(), bytes: 0, crc: 0, frame: 0 };
        let same = move |hole: &&DamagedPayload| {
            (hole.region, hole.index, hole.term) == (region, index, term)
        };
        self.holes.range(first..).take_while(same)
    }

    /// The term of an entry of a region's log.
    pub fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.regions.get(region)?.place(index).map(|place| place.term)
    }

    /// A region's log.
    pub fn region(&self, region: RegionId) -> Option<RegionLog> {
        self.regions.get(region).map(|region| region.log())
    }

    /// The payload of an entry of a region's log; `None` when it is not there or damaged.
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

    /// The value at a locator.
    pub fn value(&self, at: &Locator) -> Result<Bytes> {
        let is_sorted = self.dir.vfs.exists(&self.dir.path_of(Name::Sorted(at.file)))?;
        let name = if is_sorted { Name::Sorted(at.file) } else { Name::Segment(at.file) };
        read_payload(&self.dir, name, at)
    }

    /// Puts a payload in its place, durably. `false`, having written nothing, when there is no such
    /// hole or these are not the bytes it lost. After a failure nothing more is written.
    pub fn fill(&mut self, hole: &DamagedPayload, payload: &[u8]) -> Result<bool> {
        self.poison.check()?;
        let is_copy = hole.is(payload)
            || mutant::active("log.fill_unchecked") && payload.len() == hole.bytes as usize;
        if !self.holes.contains(hole) || !is_copy {
            return Ok(false);
        }
        self.write(hole, payload).map_err(|error| self.poison.set(error))?;
        self.holes.remove(hole);
        self.check_filled(hole).map_err(|error| self.poison.set(error))?;
        if self.holes.is_empty() && self.has_more {
            self.look().inspect_err(|_| self.has_more = true)?;
        }
        Ok(true)
    }

    /// In place, though no durable block is written again otherwise: all its bytes are those that were
    /// written first. What a crash leaves of it is a hole, as it was before: a frame that something
    /// valid follows is never taken for a torn one.
    fn write(&self, hole: &DamagedPayload, payload: &[u8]) -> Result<()> {
        let mut reader = SegmentReader::open(&self.dir, hole.at.file, false)?;
        let file = self.dir.open_append(Name::Segment(hole.at.file))?;
        // Where the device now asks for larger blocks, only the page cache can write this.
        let file = match file.block_bytes() {
            Some(bytes) if bytes > reader.block_bytes() as usize => {
                self.dir.vfs.open(file.path(), Open::WRITE)?
            }
            _ => file,
        };
        if file.block_bytes().is_some() {
            let (blocks, at) = self.blocks_with(&mut reader, hole, payload)?;
            file.write_at(&[IoSlice::new(&blocks)], at, Cause::Log)?;
        } else {
            file.write_at(&[IoSlice::new(payload)], u64::from(hole.at.offset), Cause::Log)?;
        }
        // Nobody is told of it before it is durable.
        if mutant::active("log.fill_unsynced") { Ok(()) } else { file.sync_data() }
    }

    /// The blocks a payload lies in, with it, and where they begin. A wrong read of what lies around it
    /// must not be written back: the batch is proven but for its holes, and those are read twice.
    fn blocks_with(
        &self,
        reader: &mut SegmentReader,
        hole: &DamagedPayload,
        payload: &[u8],
    ) -> Result<(AlignedBuf, u64)> {
        let Some(frame) = sound(reader, hole.frame)? else {
            return Err(reader.corrupt(hole.frame, "more of a batch is damaged than before"));
        };
        let block = reader.block_bytes() as usize;
        let body = reader.body(hole.frame, &frame)?.unwrap_or_default();
        let mut has_others = false;
        damaged_payloads::each(&frame, body, &mut |other| has_others |= other.at != hole.at);
        if has_others && !mutant::active("log.fill_read_once") {
            let mut again = SegmentReader::open(&self.dir, hole.at.file, false)?;
            if again.body(hole.frame, &frame)? != Some(body) {
                return Err(again.corrupt(hole.frame, "two reads of a batch differ"));
            }
        }
        let head = frame.encode();
        let byte = |at: usize| match at.checked_sub(head.len()) {
            None => head.get(at),
            Some(at) => body.get(at),
        };
        let bytes = |range: Range<usize>| range.filter_map(byte).copied().collect::<Vec<u8>>();
        let begin = (hole.at.offset - hole.frame) as usize;
        let (from, end) = (begin - begin % block, begin + payload.len());
        let mut blocks = AlignedBuf::new();
        blocks.extend_from_slice(&bytes(from..begin));
        blocks.extend_from_slice(payload);
        blocks.extend_from_slice(&bytes(end..end.next_multiple_of(block)));
        blocks.pad_to_multiple(block);
        Ok((blocks, u64::from(hole.frame) + from as u64))
    }

    /// What is on the device now is the payload; with a frame's last one, the frame is as it was.
    fn check_filled(&self, hole: &DamagedPayload) -> Result<()> {
        let mut reader = SegmentReader::open(&self.dir, hole.at.file, false)?;
        let payload = reader.range(u64::from(hole.at.offset), hole.bytes as usize)?;
        let mut is_filled = payload.is_some_and(|payload| hole.is(payload));
        let same =
            |other: &DamagedPayload| (other.at.file, other.frame) == (hole.at.file, hole.frame);
        if is_filled && !self.has_more && !self.holes.iter().any(same) {
            is_filled = sound(&mut reader, hole.frame)?.is_some();
        }
        if is_filled || mutant::active("log.fill_unread") {
            return Ok(());
        }
        Err(reader.corrupt(hole.frame, "a copy was written here, and is not what is read"))
    }

    fn look(&mut self) -> Result<()> {
        let inventory = Inventory::take(&self.dir, &self.options, &self.from, Orphans::Kept)?;
        let chain = chain::links(&self.dir, &inventory.segments, &self.from)?;
        (self.regions, self.has_more) = (Regions::default(), false);
        let Some((newest, sealed)) = chain.split_last() else { return Ok(()) };
        let mut needed = Needed::new(&self.options, &self.from);
        for (i, link) in sealed.iter().enumerate() {
            let next = sealed.get(i + 1).unwrap_or(newest);
            let end = End { at: next.header.previous_end, chain: next.header.chain };
            if by_sidecar(&self.dir, link.id, end, &mut self.regions, &mut needed)?.is_none() {
                let (mut reader, found) = self.look_at(link.id, Some(end.at), &mut needed)?;
                check_end(&mut reader, found, end)?;
            }
        }
        let (mut reader, end) = self.look_at(newest.id, None, &mut needed)?;
        check_begun(&mut reader, end)?;
        check_whole(&self.dir, &self.regions, Lsn::new(newest.id, end.at), &self.from)?;
        self.look_behind_sidecars(&needed)?;
        self.part();
        if self.holes.is_empty() && self.has_more {
            let detail = format!("more than {} damaged entries that nobody has", self.holes_max);
            return Err(reader.corrupt(end.at, detail));
        }
        Ok(())
    }

    /// Finds the holes of what is needed in segments taken by sidecars.
    fn look_behind_sidecars(&mut self, needed: &Needed) -> Result<()> {
        let mut unreadable = needed.unreadable(&self.dir, &self.regions)?;
        while let Some(file) = unreadable.first().map(|at| at.file) {
            let mut reader = SegmentReader::open(&self.dir, file, false)?;
            let mut note = |hole: &DamagedPayload| {
                if unreadable.remove(&hole.at) {
                    match self.holes.len() < self.holes_max {
                        true => drop(self.holes.insert(*hole)),
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

    fn look_at(
        &mut self,
        id: FileId,
        until: Option<u32>,
        needed: &mut Needed,
    ) -> Result<(SegmentReader, End)> {
        let mut reader = SegmentReader::open(&self.dir, id, false)?;
        let (holes, has_more, from) = (&mut self.holes, &mut self.has_more, &self.from);
        let holes_max = self.holes_max;
        let mut note = |hole: &DamagedPayload| {
            if from.is_settled(hole.region, hole.index) {
                return true;
            }
            match holes.len() < holes_max {
                true => drop(holes.insert(*hole)),
                false => *has_more = true,
            }
            true
        };
        let regions = &mut self.regions;
        let (end, _) = by_frames(&mut reader, until, regions, needed, &mut note, &mut |_| Ok(()))?;
        Ok((reader, end))
    }

    /// What was replaced, or belonged to a region that left, nobody asks for, and nobody may have.
    fn part(&mut self) {
        if self.from.checkpointed.is_none() {
            return;
        }
        let regions = &self.regions;
        let place =
            |hole: &DamagedPayload| regions.get(hole.region).and_then(|it| it.place(hole.index));
        let is_dead = |hole: &DamagedPayload| place(hole).is_none_or(|place| place.at != hole.at);
        self.dead.extend(self.holes.iter().filter(|hole| is_dead(hole)).map(|hole| hole.at));
        self.holes.retain(|hole| !self.dead.contains(&hole.at));
    }
}

/// The frame there, if it is whole, or is but for holes.
fn sound(reader: &mut SegmentReader, at: u32) -> Result<Option<FrameHeader>> {
    if let Probe::Frame(frame) = reader.probe(at)? {
        return Ok(Some(frame));
    }
    let Some(frame) = reader.named(at)? else { return Ok(None) };
    damaged_payloads::proven(reader, End { at, chain: frame.chain })
}
