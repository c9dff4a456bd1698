//! A batch becomes a frame, checked against the regions' logs first: nothing durable ever fails to
//! fit when it is read again.

use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::item::{
    Previous, filler, put_entry_head, put_hard_state, put_mark, put_withdrawn,
};
use crate::format::{Content, EntryItem, Form, Item};
use crate::frame_buffer::FrameBuffer;
use crate::region::Regions;
use crate::staged::Staged;
use std::collections::BTreeMap;
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{
    EntryRecord, Error, LogIndex, Lsn, Mark, Record, RegionId, Result, StoreId, mutant,
};
use stele_vfs::AlignedBuf;

/// Longest payload of one entry, and longest frame.
const PAYLOAD_BYTES_MAX: usize = 1 << 30;
const FRAME_BYTES_MAX: u64 = 2 << 30;

/// What file systems allocate by. A growing file written in part of one costs a second write of
/// zeros and a lock; frames this long are filled up to it, which costs at most 1.6 % of them.
const PAGE_BYTES: usize = 4096;
const FILLED_FRAME_BYTES_MIN: usize = 64 * PAGE_BYTES;

/// Most bytes of a record but its payload.
const HEAD_BYTES_MAX: u64 = 64;

/// A payload is summed and copied in pieces that stay in the processor's cache in between.
const PIECE_BYTES: usize = 16 << 10;
/// Copied at a time. Longer copies become `rep movsb` in glibc, which took 1.2 to 1.4 times as long.
const COPY_BYTES: usize = 2 << 10;
/// Payloads from here on are read once for both checksums; for less, combining costs more.
const COMBINED_BYTES_MIN: usize = 2 << 10;

/// Where the frame goes, and what the log holds before it.
pub(crate) struct Place<'a> {
    pub store: StoreId,
    pub at: Lsn,
    pub chain: u32,
    pub block_bytes: u32,
    pub regions: &'a Regions,
    /// See [`crate::LogOptions::inline_value_bytes_max`].
    pub inline_max: usize,
    /// Whether replaced entries are other entries, not the same ones moved.
    pub withdraw: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub payloads: Vec<Lsn>,
    pub payload_bytes: u64,
    pub crc: u32,
    /// Of the frame, without padding.
    pub body_bytes: u32,
}

/// Most bytes that the frame of these records may have, were it not for entries they replace.
pub(crate) fn frame_bytes(records: &[Record]) -> u64 {
    let bytes = |record: &Record| match record {
        Record::Entry(entry) => HEAD_BYTES_MAX + entry.payload.len() as u64,
        _ => HEAD_BYTES_MAX,
    };
    let frame = FRAME_HEADER_BYTES as u64 + PAGE_BYTES as u64;
    (frame + records.iter().map(bytes).sum::<u64>()).min(FRAME_BYTES_MAX)
}

/// Fills `buffer` with the frame and its padding, and `staged` with its items. Fails with `Invalid`.
pub(crate) fn encode(
    place: &Place<'_>,
    records: &[Record],
    buffer: &mut FrameBuffer<'_>,
    staged: &mut Staged,
) -> Result<Encoded> {
    staged.clear();
    // A frame that grew by doubling would be moved, and its new memory cleared, each time.
    buffer.reserve(frame_bytes(records) as usize);
    buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    let mut encoder = Encoder {
        place,
        buffer,
        staged,
        head: Vec::new(),
        previous: Previous::default(),
        regions: BTreeMap::new(),
        count: 0,
        summed: FRAME_HEADER_BYTES,
        body_crc: Crc32c::new(),
        out: Encoded::default(),
    };
    for record in records {
        encoder.put(record)?;
    }
    Ok(encoder.finish())
}

/// The frame that confirms the batch before it.
pub(crate) fn encode_confirmation(place: &Place<'_>, buffer: &mut AlignedBuf) {
    buffer.clear();
    let mut header =
        FrameHeader { body_bytes: 0, crc: 0, at: place.at, chain: place.chain, records: 0 };
    header.crc = header.checksum(place.store, &[]);
    buffer.extend_from_slice(&header.encode());
    buffer.pad_to_multiple(place.block_bytes as usize);
}

struct Encoder<'a, 'f> {
    place: &'a Place<'a>,
    buffer: &'a mut FrameBuffer<'f>,
    staged: &'a mut Staged,
    head: Vec<u8>,
    previous: Previous,
    regions: BTreeMap<RegionId, PendingLog>,
    count: u32,
    /// Bytes of the buffer that the body's checksum covers, and that checksum.
    summed: usize,
    body_crc: Crc32c,
    out: Encoded,
}

/// A region's log as the batch leaves it.
#[derive(Debug, Default)]
struct PendingLog {
    destroyed: bool,
    truncated: LogIndex,
    /// Entries up to here are those of before the batch; `fresh` lie after.
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
                self.head.clear();
                put_hard_state(&mut self.head, *region, state);
                self.push_head();
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
        let ahead = self.regions.entry(region).or_insert_with(|| PendingLog::of(regions, region));
        let last = ahead.last();
        if ahead.destroyed {
            return Err(Error::invalid(format!("region {region} was destroyed on this store")));
        }
        if index <= ahead.truncated || index > last.next() {
            let truncated = ahead.truncated;
            return Err(Error::invalid(format!(
                "entry {index} of region {region} does not continue its log ({truncated}, {last}]"
            )));
        }
        if entry.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(format!("payload of {} bytes", entry.payload.len())));
        }
        self.withdraw_from(region, index);
        self.head.clear();
        let (at, crc) = self.put_payload(entry);
        let content = Content::Payload(&entry.payload);
        let EntryRecord { term, is_command, .. } = *entry;
        let bytes = entry.payload.len() as u32;
        let item = EntryItem { region, term, index, is_command, at, bytes, crc, content };
        if !self.stage(&Item::Entry(item)) {
            return Err(Error::invalid(format!("entry {index} of region {region}: no command")));
        }
        self.out.payloads.push(at);
        self.out.payload_bytes += entry.payload.len() as u64;
        if let Some(ahead) = self.regions.get_mut(&region) {
            ahead.fresh.push(at);
        }
        if self.buffer.has_part() {
            self.sum_up_to(self.buffer.len());
            self.buffer.give_part();
        }
        Ok(())
    }

    /// Notes what becomes visible with the frame; `false` when an entry is no command but says it is.
    fn stage(&mut self, item: &Item<'_>) -> bool {
        self.staged.push(item, self.place.inline_max)
    }

    /// Head and payload, the payload read from memory once. Returns its place and checksum.
    fn put_payload(&mut self, entry: &EntryRecord) -> (Lsn, u32) {
        if entry.payload.len() < COMBINED_BYTES_MIN {
            let crc = crc32c(&entry.payload);
            put_entry_head(&mut self.head, &mut self.previous, entry, crc);
            self.push_head();
            let at = self.position();
            self.buffer.extend_from_slice(&entry.payload);
            return (at, crc);
        }
        put_entry_head(&mut self.head, &mut self.previous, entry, 0);
        self.push_head();
        let (at, begin) = (self.position(), self.buffer.len());
        let mut crc = Crc32c::new();
        for piece in entry.payload.chunks(PIECE_BYTES) {
            crc.update(piece);
            piece.chunks(COPY_BYTES).for_each(|part| self.buffer.extend_from_slice(part));
            if self.buffer.keeps(begin) {
                self.buffer.give_part();
            }
        }
        let crc = crc.finish();
        // The head ends with the checksum.
        self.buffer.set(begin - size_of::<u32>(), &crc.to_le_bytes());
        self.sum_up_to(begin);
        self.body_crc.update_with_crc(crc, entry.payload.len() as u64);
        self.summed = self.buffer.len();
        (at, crc)
    }

    fn sum_up_to(&mut self, end: usize) {
        self.body_crc.update(self.buffer.get(self.summed, end));
        self.summed = end;
    }

    fn put_mark(&mut self, region: RegionId, mark: &Mark) -> Result<()> {
        let regions = self.place.regions;
        let ahead = self.regions.entry(region).or_insert_with(|| PendingLog::of(regions, region));
        match *mark {
            Mark::Start(index, _) => {
                ahead.destroyed = false;
                ahead.start_after(index);
            }
            Mark::Destroy => {
                ahead.start_after(ahead.truncated);
                ahead.destroyed = true;
            }
            Mark::TruncatePrefix(index, _) if index > ahead.last() => {
                let last = ahead.last();
                return Err(Error::invalid(format!(
                    "region {region} cannot be truncated to {index}, {last} is its last entry"
                )));
            }
            Mark::TruncatePrefix(index, _) => {
                ahead.truncated = ahead.truncated.max(index);
                let dropped = ahead.truncated.0.saturating_sub(ahead.before.0) as usize;
                ahead.fresh.drain(..dropped);
                ahead.before = ahead.before.max(ahead.truncated);
            }
            Mark::TruncateSuffix(from) if from <= ahead.truncated => {
                return Err(Error::invalid(format!(
                    "entries of region {region} from {from} on are truncated already"
                )));
            }
            Mark::TruncateSuffix(from) => self.withdraw_from(region, from),
        }
        self.head.clear();
        put_mark(&mut self.head, Form::Frame, region, mark, Lsn::default());
        let at = self.position();
        self.push_head();
        self.stage(&Item::Mark(region, mark.clone(), at));
        Ok(())
    }

    /// Says which entries a conflict replaces: when the index is lost and rebuilt from what lies in
    /// the files, they must not come back.
    fn withdraw_from(&mut self, region: RegionId, index: LogIndex) {
        let Some(ahead) = self.regions.get_mut(&region) else { return };
        let state = self.place.regions.get(region);
        let mut replaced = Vec::new();
        for i in index.0..=ahead.last().0 {
            if i > ahead.before.0 {
                replaced.extend(ahead.fresh.get((i - ahead.before.0 - 1) as usize).copied());
            } else {
                replaced.extend(state.and_then(|s| s.place(LogIndex(i))).map(|place| place.at));
            }
        }
        ahead.cut_from(index);
        if self.place.withdraw && !mutant::active("log.forget_withdrawn") {
            for at in replaced {
                self.head.clear();
                put_withdrawn(&mut self.head, at);
                self.push_head();
                self.stage(&Item::Withdrawn(at));
            }
        }
    }

    fn push_head(&mut self) {
        self.buffer.extend_from_slice(&self.head);
        self.count += 1;
    }

    fn position(&self) -> Lsn {
        let offset = self.place.at.offset.wrapping_add(self.buffer.len() as u32);
        Lsn::new(self.place.at.file, offset)
    }

    /// Long frames end at a page, so that the next one begins at one.
    fn fill_page(&mut self) {
        if self.buffer.len() >= FILLED_FRAME_BYTES_MIN {
            let end = self.place.at.offset as usize + self.buffer.len();
            let bytes = end.next_multiple_of(PAGE_BYTES) - end;
            self.buffer.extend_from_slice(&filler(bytes));
        }
    }

    fn finish(mut self) -> Encoded {
        self.fill_page();
        self.sum_up_to(self.buffer.len());
        let mut header = FrameHeader {
            body_bytes: (self.buffer.len() - FRAME_HEADER_BYTES) as u32,
            crc: 0,
            at: self.place.at,
            chain: self.place.chain,
            records: self.count,
        };
        header.crc = header.checksum_summed(self.place.store, self.body_crc.finish());
        let encoded = header.encode();
        self.buffer.set(0, &encoded);
        self.buffer.pad_to_multiple(self.place.block_bytes as usize);
        self.out.crc = header.crc;
        self.out.body_bytes = header.body_bytes;
        self.out
    }
}
