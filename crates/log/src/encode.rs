//! Encodes a batch as a frame, after checking it against the regions' logs. Invariant: every
//! durable record fits its region's log when it is read again.

use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::item::{
    Previous, filler, put_digest, put_entry_header, put_hard_state, put_mark, put_withdrawn,
};
use crate::format::{Content, EntryItem, Form, Item, Items, Origin};
use crate::region::Regions;
use std::collections::BTreeMap;
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{
    Cause, EntryRecord, Error, FileId, LogIndex, Lsn, Mark, Record, RegionId, Result,
};
use stele_vfs::{AlignedBuf, MEMORY_ALIGN_BYTES, VfsFile};

/// Maximum payload of one entry, and maximum frame.
const PAYLOAD_BYTES_MAX: usize = 1 << 30;
const FRAME_BYTES_MAX: u64 = 2 << 30;

/// Allocation unit of file systems. Writing part of a unit in a growing file costs a second write
/// of zeros and a lock. Frames of at least `FILLED_FRAME_BYTES_MIN` are filled up to a unit, which
/// adds at most 1.6 %.
const PAGE_BYTES: usize = 4096;
const FILLED_FRAME_BYTES_MIN: usize = 64 * PAGE_BYTES;

/// Maximum bytes of a record without its payload.
const HEADER_BYTES_MAX: u64 = 64;

/// A payload is checksummed and copied in pieces that stay in the processor's cache in between.
const PIECE_BYTES: usize = 16 << 10;
/// Bytes copied at a time. Longer copies become `rep movsb` in glibc, which took 1.2 to 1.4 times
/// as long.
const COPY_BYTES: usize = 2 << 10;
/// Payloads of at least this length are read once for both checksums; for shorter ones, combining
/// costs more.
const COMBINED_BYTES_MIN: usize = 2 << 10;

pub(crate) struct FrameContext<'a> {
    pub origin: Origin,
    pub at: Lsn,
    pub chain: u32,
    pub block_bytes: u32,
    pub regions: &'a Regions,
    /// See [`crate::LogOptions::inline_value_bytes_max`].
    pub inline_max: usize,
    /// Whether replaced entries are conflicting ones; `false` if the same entries are moved.
    pub withdraw: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub payloads: Vec<Lsn>,
    pub payload_bytes: u64,
    pub crc: u32,
    /// Bytes of the frame without padding.
    pub body_bytes: u32,
}

/// Returns the maximum length of the frame of these records, without the records of entries they
/// replace.
pub(crate) fn frame_bytes(records: &[Record]) -> u64 {
    let bytes = |record: &Record| match record {
        Record::Entry(entry) => HEADER_BYTES_MAX + entry.payload.len() as u64,
        _ => HEADER_BYTES_MAX,
    };
    let frame = FRAME_HEADER_BYTES as u64 + PAGE_BYTES as u64;
    (frame + records.iter().map(bytes).sum::<u64>()).min(FRAME_BYTES_MAX)
}

/// Encodes the frame with its padding into `buffer` and its items into `staged`. Fails with
/// `Invalid`.
pub(crate) fn encode(
    place: &FrameContext<'_>,
    records: &[Record],
    buffer: &mut FrameBuffer<'_>,
    staged: &mut Staged,
) -> Result<Encoded> {
    staged.clear();
    // Growing by doubling would move the frame, and clear its new memory, each time.
    buffer.reserve(frame_bytes(records) as usize);
    buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    let mut encoder = Encoder {
        place,
        buffer,
        staged,
        header: Vec::new(),
        previous: Previous::default(),
        regions: BTreeMap::new(),
        count: 0,
        checksummed: FRAME_HEADER_BYTES,
        body_crc: Crc32c::new(),
        out: Encoded::default(),
    };
    for record in records {
        encoder.put(record)?;
    }
    Ok(encoder.finish())
}

pub(crate) fn encode_confirmation(place: &FrameContext<'_>, buffer: &mut AlignedBuf) {
    buffer.clear();
    let mut header =
        FrameHeader { body_bytes: 0, crc: 0, at: place.at, chain: place.chain, records: 0 };
    header.crc = header.checksum(place.origin, &[]);
    buffer.extend_from_slice(&header.encode());
    buffer.pad_to_multiple(place.block_bytes as usize);
}

struct Encoder<'a, 'f> {
    place: &'a FrameContext<'a>,
    buffer: &'a mut FrameBuffer<'f>,
    staged: &'a mut Staged,
    header: Vec<u8>,
    previous: Previous,
    regions: BTreeMap<RegionId, PendingLog>,
    count: u32,
    /// Bytes of the buffer that the body's checksum covers, and that checksum.
    checksummed: usize,
    body_crc: Crc32c,
    out: Encoded,
}

#[derive(Debug, Default)]
struct PendingLog {
    destroyed: bool,
    truncated: LogIndex,
    /// Last entry from before the batch; `fresh` holds the entries after it.
    before: LogIndex,
    fresh: Vec<Lsn>,
}

impl PendingLog {
    fn of(regions: &Regions, region: RegionId) -> Self {
        let log = regions.get(region).map(|region| region.log());
        log.map_or_else(Self::default, |log| Self {
            destroyed: log.destroyed,
            truncated: log.truncated.0,
            before: log.last,
            fresh: Vec::new(),
        })
    }

    fn last(&self) -> LogIndex {
        LogIndex(self.before.0 + self.fresh.len() as u64)
    }

    fn cut_from(&mut self, index: LogIndex) {
        let keep = index.0.saturating_sub(self.before.0 + 1) as usize;
        self.fresh.truncate(keep);
        self.before = self.before.min(LogIndex(index.0.saturating_sub(1)));
    }

    fn start_after(&mut self, index: LogIndex) {
        *self = Self { destroyed: self.destroyed, truncated: index, before: index, fresh: vec![] };
    }
}

impl Encoder<'_, '_> {
    fn put(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Entry(entry) => self.put_entry(entry)?,
            Record::HardState(region, state) => {
                self.header.clear();
                put_hard_state(&mut self.header, *region, state);
                self.push_header();
                self.stage(&Item::HardState(*region, *state));
            }
            Record::Mark(region, mark) => self.put_mark(*region, mark)?,
        }
        if self.buffer.len() as u64 > FRAME_BYTES_MAX {
            return Err(Error::invalid(format!("batch of more than {FRAME_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn put_entry(&mut self, entry: &EntryRecord) -> Result<()> {
        let (region, index) = (entry.region, entry.index);
        let regions = self.place.regions;
        let pending = self.regions.entry(region).or_insert_with(|| PendingLog::of(regions, region));
        let last = pending.last();
        if pending.destroyed {
            return Err(Error::invalid(format!("region {region} was destroyed on this store")));
        }
        if index <= pending.truncated || index > last.next() {
            let truncated = pending.truncated;
            return Err(Error::invalid(format!(
                "entry {index} of region {region} does not continue its log ({truncated}, {last}]"
            )));
        }
        if entry.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(format!("payload of {} bytes", entry.payload.len())));
        }
        self.withdraw_from(region, index);
        self.header.clear();
        let (at, crc) = self.put_payload(entry);
        let content = Content::Payload(&entry.payload);
        let EntryRecord { term, is_command, .. } = *entry;
        let bytes = entry.payload.len() as u32;
        let item = EntryItem { region, term, index, is_command, at, bytes, crc, content };
        if !self.stage(&Item::Entry(item)) {
            return Err(Error::invalid(format!(
                "entry {index} of region {region} is not a well-formed command"
            )));
        }
        self.out.payloads.push(at);
        self.out.payload_bytes += entry.payload.len() as u64;
        if let Some(pending) = self.regions.get_mut(&region) {
            pending.fresh.push(at);
        }
        if self.buffer.has_full_part() {
            self.checksum_up_to(self.buffer.len());
            self.buffer.submit_part();
        }
        Ok(())
    }

    /// Records an item that becomes visible with the frame. Returns `false` for an entry that is
    /// marked as a command and is not one.
    fn stage(&mut self, item: &Item<'_>) -> bool {
        self.staged.push(item, self.place.inline_max)
    }

    /// Appends header and payload, reading the payload once. Returns its position and checksum.
    fn put_payload(&mut self, entry: &EntryRecord) -> (Lsn, u32) {
        if entry.payload.len() < COMBINED_BYTES_MIN {
            let crc = crc32c(&entry.payload);
            put_entry_header(&mut self.header, &mut self.previous, entry, crc);
            self.push_header();
            let at = self.position();
            self.buffer.extend_from_slice(&entry.payload);
            return (at, crc);
        }
        put_entry_header(&mut self.header, &mut self.previous, entry, 0);
        self.push_header();
        let (at, begin) = (self.position(), self.buffer.len());
        let mut crc = Crc32c::new();
        for piece in entry.payload.chunks(PIECE_BYTES) {
            crc.update(piece);
            piece.chunks(COPY_BYTES).for_each(|part| self.buffer.extend_from_slice(part));
            if self.buffer.is_kept(begin) {
                self.buffer.submit_part();
            }
        }
        let crc = crc.finish();
        // The header ends with the checksum.
        self.buffer.set(begin - size_of::<u32>(), &crc.to_le_bytes());
        self.checksum_up_to(begin);
        self.body_crc.update_with_crc(crc, entry.payload.len() as u64);
        self.checksummed = self.buffer.len();
        (at, crc)
    }

    fn checksum_up_to(&mut self, end: usize) {
        self.body_crc.update(self.buffer.get(self.checksummed, end));
        self.checksummed = end;
    }

    fn put_mark(&mut self, region: RegionId, mark: &Mark) -> Result<()> {
        let regions = self.place.regions;
        let pending = self.regions.entry(region).or_insert_with(|| PendingLog::of(regions, region));
        match *mark {
            Mark::Start(index, _) => {
                pending.destroyed = false;
                pending.start_after(index);
            }
            Mark::Destroy => {
                pending.start_after(pending.truncated);
                pending.destroyed = true;
            }
            Mark::TruncatePrefix(index, _) if index > pending.last() => {
                let last = pending.last();
                return Err(Error::invalid(format!(
                    "region {region} cannot be truncated to {index}: its last entry is {last}"
                )));
            }
            Mark::TruncatePrefix(index, _) => {
                pending.truncated = pending.truncated.max(index);
                let dropped = pending.truncated.0.saturating_sub(pending.before.0) as usize;
                pending.fresh.drain(..dropped);
                pending.before = pending.before.max(pending.truncated);
            }
            Mark::TruncateSuffix(from) if from <= pending.truncated => {
                return Err(Error::invalid(format!(
                    "entries of region {region} from {from} on are already truncated"
                )));
            }
            Mark::TruncateSuffix(from) => self.withdraw_from(region, from),
        }
        self.header.clear();
        put_mark(&mut self.header, Form::Frame, region, mark, Lsn::default());
        let at = self.position();
        self.push_header();
        self.stage(&Item::Mark(region, mark.clone(), at));
        Ok(())
    }

    /// Records the entries that a conflict replaces: a rebuild of a lost index from the files must
    /// not restore them.
    fn withdraw_from(&mut self, region: RegionId, index: LogIndex) {
        let Some(pending) = self.regions.get_mut(&region) else { return };
        let state = self.place.regions.get(region);
        let mut replaced = Vec::new();
        for i in index.0..=pending.last().0 {
            if i > pending.before.0 {
                replaced.extend(pending.fresh.get((i - pending.before.0 - 1) as usize).copied());
            } else {
                replaced.extend(state.and_then(|s| s.place(LogIndex(i))).map(|place| place.at));
            }
        }
        pending.cut_from(index);
        // bug log.forget_withdrawn: never
        if self.place.withdraw {
            for at in replaced {
                self.header.clear();
                put_withdrawn(&mut self.header, at);
                self.push_header();
                self.stage(&Item::Withdrawn(at));
            }
        }
    }

    fn push_header(&mut self) {
        self.buffer.extend_from_slice(&self.header);
        self.count += 1;
    }

    fn position(&self) -> Lsn {
        let offset = self.place.at.offset.wrapping_add(self.buffer.len() as u32);
        Lsn::new(self.place.at.file, offset)
    }

    /// Fills a long frame up to a page, so that the next one begins at a page.
    fn fill_page(&mut self) {
        if self.buffer.len() >= FILLED_FRAME_BYTES_MIN {
            let end = self.place.at.offset as usize + self.buffer.len();
            let bytes = end.next_multiple_of(PAGE_BYTES) - end;
            self.buffer.extend_from_slice(&filler(bytes));
        }
    }

    fn finish(mut self) -> Encoded {
        self.fill_page();
        self.checksum_up_to(self.buffer.len());
        let mut header = FrameHeader {
            body_bytes: (self.buffer.len() - FRAME_HEADER_BYTES) as u32,
            crc: 0,
            at: self.place.at,
            chain: self.place.chain,
            records: self.count,
        };
        header.crc = header.checksum_with_crc(self.place.origin, self.body_crc.finish());
        let encoded = header.encode();
        self.buffer.set(0, &encoded);
        self.buffer.pad_to_multiple(self.place.block_bytes as usize);
        self.out.crc = header.crc;
        self.out.body_bytes = header.body_bytes;
        self.out
    }
}

const BYTES_KEPT: usize = 1 << 20;

/// The items of a batch, recorded while it is encoded. Once the frame is durable, publishing it
/// does not read its bytes again.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    items: Vec<u8>,
    scratch: Vec<u8>,
    previous: Previous,
}

impl Staged {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.previous = Previous::default();
    }

    /// Adds an item. Returns `false` for an entry that is marked as a command and is not one.
    pub(crate) fn push(&mut self, item: &Item<'_>, inline_max: usize) -> bool {
        put_digest(&mut self.items, &mut self.scratch, &mut self.previous, item, inline_max)
    }

    pub(crate) fn items(&self, segment: FileId) -> Items<'_> {
        Items::new(Form::Sidecar, Lsn::new(segment, 0), &self.items)
    }

    /// Whether a frame with this body at `begin` decodes to the same items.
    pub(crate) fn agrees_with(&self, begin: Lsn, body: &[u8], inline_max: usize) -> bool {
        let mut read = Self::default();
        let mut items = Items::new(Form::Frame, begin, body);
        while let Some(item) = items.next_item() {
            if !item.is_some_and(|item| read.push(&item, inline_max)) {
                return false;
            }
        }
        read.items == self.items
    }

    pub(crate) fn shrink(&mut self) {
        self.items.shrink_to(BYTES_KEPT);
        self.scratch.shrink_to(BYTES_KEPT);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.items.capacity() + self.scratch.capacity()
    }
}

/// Bytes of the first block, which is kept until the frame is complete.
const FIRST_BYTES: usize = MEMORY_ALIGN_BYTES;

/// Minimum bytes of one write. Of 128, 256 and 384 KiB, measured with batches of 1 MiB against a
/// bare write and sync on ext4 in memory, 256 reached 0.71 of it, the others 0.64, and no parts
/// 0.61.
const PART_BYTES_MIN: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelinedWrite<'a> {
    pub file: &'a dyn VfsFile,
    pub at: u64,
}

/// The frame under construction. Finished parts of a long frame are written while the rest is
/// checksummed and copied. The first block holds the header with the checksum, and is written last.
#[derive(Debug)]
pub(crate) struct FrameBuffer<'a> {
    pipelined: Option<PipelinedWrite<'a>>,
    /// The first block, once a part after it was submitted.
    first: AlignedBuf,
    /// Submitted parts, in order; `None` while the file holds them.
    parts: Vec<Option<AlignedBuf>>,
    /// Offset of `remaining`, which was not submitted.
    submitted: usize,
    remaining: AlignedBuf,
    /// Result of the submissions. After a failure nothing more is submitted.
    result: Result<()>,
}

impl<'a> FrameBuffer<'a> {
    pub(crate) fn new(mut remaining: AlignedBuf, pipelined: Option<PipelinedWrite<'a>>) -> Self {
        remaining.clear();
        let (first, parts) = (AlignedBuf::new(), Vec::new());
        Self { pipelined, first, parts, submitted: 0, remaining, result: Ok(()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.submitted + self.remaining.len()
    }

    pub(crate) fn reserve(&mut self, more: usize) {
        self.remaining.reserve(more);
    }

    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.remaining.extend_from_slice(bytes);
    }

    pub(crate) fn pad_to_multiple(&mut self, block_bytes: usize) {
        // Submitted parts are whole blocks.
        self.remaining.pad_to_multiple(block_bytes);
    }

    /// Returns bytes that were not submitted.
    pub(crate) fn get(&self, from: usize, to: usize) -> &[u8] {
        let kept = match from.checked_sub(self.submitted) {
            Some(from) => self.remaining.get(from..to - self.submitted),
            None => self.first.get(from..to),
        };
        debug_assert!(kept.is_some(), "bytes {from} to {to} of a frame were already submitted");
        kept.unwrap_or_default()
    }

    /// Replaces bytes that were not submitted.
    pub(crate) fn set(&mut self, from: usize, bytes: &[u8]) {
        let kept = match from.checked_sub(self.submitted) {
            Some(from) => self.remaining.get_mut(from..from + bytes.len()),
            None => self.first.get_mut(from..from + bytes.len()),
        };
        debug_assert!(kept.is_some(), "bytes from {from} on of a frame were already submitted");
        if let Some(kept) = kept {
            kept.copy_from_slice(bytes);
        }
    }

    pub(crate) fn has_full_part(&self) -> bool {
        self.pipelined.is_some() && self.result.is_ok() && self.remaining.len() >= PART_BYTES_MIN
    }

    /// Whether bytes up to `end` are kept until the frame is complete.
    pub(crate) fn is_kept(&self, end: usize) -> bool {
        end <= FIRST_BYTES
    }

    /// Submits the whole blocks after the first one. The caller changes only the first block later.
    pub(crate) fn submit_part(&mut self) {
        let Some(pipelined) = self.pipelined.filter(|_| self.has_full_part()) else { return };
        if self.submitted == 0 {
            self.first = self.remaining.split_front(FIRST_BYTES);
            self.submitted = FIRST_BYTES;
        }
        let bytes = self.remaining.len() / MEMORY_ALIGN_BYTES * MEMORY_ALIGN_BYTES;
        let part = self.remaining.split_front(bytes);
        self.start(pipelined, part, self.submitted);
        self.submitted += bytes;
    }

    fn start(&mut self, pipelined: PipelinedWrite<'_>, part: AlignedBuf, from: usize) {
        match pipelined.file.start_write(part, pipelined.at + from as u64, Cause::Log) {
            Ok(part) => self.parts.push(part),
            Err(error) => self.result = Err(error),
        }
    }

    /// Whether a part was submitted, so that the rest must follow.
    pub(crate) fn has_submitted(&self) -> bool {
        self.submitted > 0
    }

    /// Ends the frame and returns it as one buffer. If a part was submitted, writes the rest as
    /// well; otherwise the caller must write the frame.
    pub(crate) fn finish(mut self) -> Result<AlignedBuf> {
        let Some(pipelined) = self.pipelined.filter(|_| self.has_submitted()) else {
            return Ok(self.remaining);
        };
        let first = std::mem::take(&mut self.first);
        let remaining = std::mem::take(&mut self.remaining);
        if self.result.is_ok() && !remaining.is_empty() {
            self.start(pipelined, remaining, self.submitted);
        }
        if self.result.is_ok() {
            self.start(pipelined, first, 0);
        }
        // A sync covers only completed writes.
        let ended = pipelined.file.finish_writes();
        self.result?;
        let mut ended = ended?.into_iter();
        let parts = self.parts.into_iter().filter_map(|part| part.or_else(|| ended.next()));
        let mut parts: Vec<AlignedBuf> = parts.collect();
        let mut whole = parts.pop().unwrap_or_default();
        parts.into_iter().for_each(|part| whole.rejoin(part));
        Ok(whole)
    }

    /// Waits for the submitted writes of an abandoned frame. Without its first block no frame
    /// exists.
    pub(crate) fn abandon(self) -> Result<()> {
        if let Some(pipelined) = self.pipelined.filter(|_| self.has_submitted()) {
            pipelined.file.finish_writes()?;
        }
        self.result
    }
}
