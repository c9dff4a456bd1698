//! Items, back to back, of a frame's body or a sidecar's chunks.
//!
//! ```text
//! item      := tag:u8 fields          tag := kind (bits 0-2) | is_command (3) | follows (4)
//! entry     := [region term index] [payload_offset]s payload_bytes crc:u32 content
//! content   := payload, or (sidecar) ops_bytes ops
//! hard state:= region term vote commit
//! mark      := region [record_offset]s what:u8 index [term]
//! withdrawn := file offset            payload of an entry that a conflict replaced
//! carried   := region destroyed:u8 term vote commit truncated_index truncated_term
//!              last_index last_term reset                       (one region's state)
//! filler    := tag zeros       (to the end of the body: the next frame begins at a page)
//! ```
//! Numbers without a width are varints; those marked `s` are in sidecars only. An entry that
//! follows the previous one (same region and term, next index) omits these three.

use super::{ops, take};
use stele_types::{EntryRecord, FileId, HardState, LogIndex, Lsn, Mark, RegionId, Term, varint};

const KIND_MASK: u8 = 0b111;
const KIND_ENTRY: u8 = 0;
const KIND_HARD_STATE: u8 = 1;
const KIND_MARK: u8 = 2;
const KIND_WITHDRAWN: u8 = 3;
const KIND_CARRIED: u8 = 4;
const KIND_FILLER: u8 = 5;
const IS_COMMAND: u8 = 8;
const FOLLOWS: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Frame,
    Sidecar,
}

#[derive(Clone, Debug)]
pub(crate) enum Item<'a> {
    Entry(EntryItem<'a>),
    HardState(RegionId, HardState),
    /// With the position of the record.
    Mark(RegionId, Mark, Lsn),
    Withdrawn(Lsn),
    Carried(CarriedRegion),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryItem<'a> {
    pub region: RegionId,
    pub term: Term,
    pub index: LogIndex,
    pub is_command: bool,
    /// Position of the payload's first byte.
    pub at: Lsn,
    pub bytes: u32,
    pub crc: u32,
    pub content: Content<'a>,
}

/// An entry's bytes, or the part that a sidecar keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Payload(&'a [u8]),
    Digest(&'a [u8]),
    Lost,
}

/// A region's state at the start of a segment, so that older segments are not needed for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriedRegion {
    pub region: RegionId,
    pub destroyed: bool,
    pub hard_state: HardState,
    pub truncated: (LogIndex, Term),
    pub last: (LogIndex, Term),
    /// Records of the region below this position are obsolete: it was created or destroyed here.
    pub reset: Lsn,
}

/// The previous entry of the same frame or chunk, so that an entry can omit what it repeats.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Previous(Option<(RegionId, Term, LogIndex)>);

impl Previous {
    fn precedes(&self, region: RegionId, term: Term, index: LogIndex) -> bool {
        self.0 == Some((region, term, LogIndex(index.0.wrapping_sub(1))))
    }

    fn set(&mut self, region: RegionId, term: Term, index: LogIndex) {
        self.0 = Some((region, term, index));
    }
}

/// Encodes an entry without its payload, which follows directly.
pub(crate) fn put_entry_header(
    out: &mut Vec<u8>,
    previous: &mut Previous,
    entry: &EntryRecord,
    crc: u32,
) {
    put_entry_start(out, previous, entry.region, entry.term, entry.index, entry.is_command);
    varint::put(out, entry.payload.len() as u64);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn put_entry_start(
    out: &mut Vec<u8>,
    previous: &mut Previous,
    region: RegionId,
    term: Term,
    index: LogIndex,
    is_command: bool,
) {
    let follows = previous.precedes(region, term, index);
    let command = if is_command { IS_COMMAND } else { 0 };
    out.push(KIND_ENTRY | command | if follows { FOLLOWS } else { 0 });
    if !follows {
        varint::put(out, region.0);
        varint::put(out, term.0);
        varint::put(out, index.0);
    }
    previous.set(region, term, index);
}

pub(crate) fn put_hard_state(out: &mut Vec<u8>, region: RegionId, state: &HardState) {
    out.push(KIND_HARD_STATE);
    for number in [region.0, state.term.0, state.vote, state.commit.0] {
        varint::put(out, number);
    }
}

pub(crate) fn put_mark(out: &mut Vec<u8>, form: Form, region: RegionId, mark: &Mark, at: Lsn) {
    out.push(KIND_MARK);
    varint::put(out, region.0);
    if form == Form::Sidecar {
        varint::put(out, u64::from(at.offset));
    }
    let (what, index, term) = match *mark {
        Mark::Start(index, term) => (0, index, Some(term)),
        Mark::TruncatePrefix(index, term) => (1, index, Some(term)),
        Mark::TruncateSuffix(index) => (2, index, None),
        Mark::Destroy => (3, LogIndex(0), None),
    };
    out.push(what);
    varint::put(out, index.0);
    if let Some(term) = term {
        varint::put(out, term.0);
    }
}

pub(crate) fn put_withdrawn(out: &mut Vec<u8>, payload: Lsn) {
    out.push(KIND_WITHDRAWN);
    varint::put(out, u64::from(payload.file.0));
    varint::put(out, u64::from(payload.offset));
}

pub(crate) fn put_carried(out: &mut Vec<u8>, carried: &CarriedRegion) {
    out.push(KIND_CARRIED);
    varint::put(out, carried.region.0);
    out.push(u8::from(carried.destroyed));
    let state = &carried.hard_state;
    for number in [
        state.term.0,
        state.vote,
        state.commit.0,
        carried.truncated.0.0,
        carried.truncated.1.0,
        carried.last.0.0,
        carried.last.1.0,
        carried.reset.as_u64(),
    ] {
        varint::put(out, number);
    }
}

pub(crate) fn filler(bytes: usize) -> Vec<u8> {
    let mut filler = vec![0; bytes];
    filler.iter_mut().take(1).for_each(|tag| *tag = KIND_FILLER);
    filler
}

/// Encodes one item for a sidecar: without values longer than `inline_max` bytes. Returns `false`
/// for an entry that is lost, or is marked as a command and is not one; then no operations are
/// kept.
pub(crate) fn put_digest(
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    previous: &mut Previous,
    item: &Item<'_>,
    inline_max: usize,
) -> bool {
    let mut whole = true;
    match item {
        Item::Entry(entry) => {
            let (region, term, index) = (entry.region, entry.term, entry.index);
            put_entry_start(out, previous, region, term, index, entry.is_command);
            varint::put(out, u64::from(entry.at.offset));
            varint::put(out, u64::from(entry.bytes));
            out.extend_from_slice(&entry.crc.to_le_bytes());
            scratch.clear();
            if entry.is_command {
                match entry.content {
                    Content::Payload(payload) => {
                        whole = ops::put_digest(scratch, payload, inline_max);
                    }
                    Content::Digest(digest) => scratch.extend_from_slice(digest),
                    Content::Lost => whole = false,
                }
            }
            varint::put_bytes(out, if whole { scratch } else { &[] });
        }
        Item::HardState(region, state) => put_hard_state(out, *region, state),
        Item::Mark(region, mark, at) => put_mark(out, Form::Sidecar, *region, mark, *at),
        Item::Withdrawn(at) => put_withdrawn(out, *at),
        Item::Carried(carried) => put_carried(out, carried),
    }
    whole
}

#[derive(Clone, Debug)]
pub(crate) struct Items<'a> {
    form: Form,
    /// The file of the items, and the position at which `rest` began in it (frames only).
    base: Lsn,
    total: usize,
    rest: &'a [u8],
    previous: Previous,
}

impl<'a> Items<'a> {
    /// Creates a reader. `body_at` is the position of the body's first byte; for a sidecar only its
    /// file is used.
    pub(crate) fn new(form: Form, body_at: Lsn, body: &'a [u8]) -> Self {
        let previous = Previous::default();
        Self { form, base: body_at, total: body.len(), rest: body, previous }
    }

    /// Returns `None` at the end, `Some(None)` when the bytes are malformed.
    pub(crate) fn next_item(&mut self) -> Option<Option<Item<'a>>> {
        if self.rest.first().is_none_or(|&tag| tag == KIND_FILLER) {
            return None;
        }
        let mut rest = self.rest;
        let item = self.take(&mut rest);
        self.rest = if item.is_some() { rest } else { &[] };
        Some(item)
    }

    fn position(&self, rest: &[u8]) -> Lsn {
        Lsn::new(self.base.file, self.base.offset + (self.total - rest.len()) as u32)
    }

    fn take(&mut self, rest: &mut &'a [u8]) -> Option<Item<'a>> {
        let begin = self.position(rest);
        let tag = take::u8(rest)?;
        match tag & KIND_MASK {
            KIND_ENTRY => self.take_entry(tag, rest).map(Item::Entry),
            KIND_HARD_STATE => {
                let region = RegionId(varint::take(rest)?);
                Some(Item::HardState(region, take_hard_state(rest)?))
            }
            KIND_MARK => self.take_mark(begin, rest),
            KIND_WITHDRAWN => {
                let file = FileId(u32::try_from(varint::take(rest)?).ok()?);
                Some(Item::Withdrawn(Lsn::new(file, take_u32(rest)?)))
            }
            KIND_CARRIED => take_carried(rest).map(Item::Carried),
            _ => None,
        }
    }

    fn take_entry(&mut self, tag: u8, rest: &mut &'a [u8]) -> Option<EntryItem<'a>> {
        let (region, term, index) = if tag & FOLLOWS == 0 {
            let (region, term) = (RegionId(varint::take(rest)?), Term(varint::take(rest)?));
            (region, term, LogIndex(varint::take(rest)?))
        } else {
            let (region, term, index) = self.previous.0?;
            (region, term, LogIndex(index.0.checked_add(1)?))
        };
        self.previous.set(region, term, index);
        let is_command = tag & IS_COMMAND != 0;
        let (at, bytes, crc, content) = match self.form {
            Form::Frame => {
                let bytes = take_u32(rest)?;
                let crc = take::u32_le(rest)?;
                let at = self.position(rest);
                let (payload, after) = rest.split_at_checked(bytes as usize)?;
                *rest = after;
                (at, bytes, crc, Content::Payload(payload))
            }
            Form::Sidecar => {
                let at = Lsn::new(self.base.file, take_u32(rest)?);
                let bytes = take_u32(rest)?;
                let crc = take::u32_le(rest)?;
                (at, bytes, crc, Content::Digest(varint::take_bytes(rest)?))
            }
        };
        Some(EntryItem { region, term, index, is_command, at, bytes, crc, content })
    }

    fn take_mark(&self, begin: Lsn, rest: &mut &[u8]) -> Option<Item<'a>> {
        let region = RegionId(varint::take(rest)?);
        let at = match self.form {
            Form::Frame => begin,
            Form::Sidecar => Lsn::new(self.base.file, take_u32(rest)?),
        };
        let what = take::u8(rest)?;
        let index = LogIndex(varint::take(rest)?);
        let mark = match what {
            0 => Mark::Start(index, Term(varint::take(rest)?)),
            1 => Mark::TruncatePrefix(index, Term(varint::take(rest)?)),
            2 => Mark::TruncateSuffix(index),
            3 => Mark::Destroy,
            _ => return None,
        };
        Some(Item::Mark(region, mark, at))
    }
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(varint::take(rest)?).ok()
}

fn take_hard_state(rest: &mut &[u8]) -> Option<HardState> {
    let term = Term(varint::take(rest)?);
    let vote = varint::take(rest)?;
    Some(HardState { term, vote, commit: LogIndex(varint::take(rest)?) })
}

fn take_carried(rest: &mut &[u8]) -> Option<CarriedRegion> {
    let region = RegionId(varint::take(rest)?);
    let destroyed = take::u8(rest)? != 0;
    let hard_state = take_hard_state(rest)?;
    let truncated = (LogIndex(varint::take(rest)?), Term(varint::take(rest)?));
    let last = (LogIndex(varint::take(rest)?), Term(varint::take(rest)?));
    let reset = Lsn::from_u64(varint::take(rest)?);
    Some(CarriedRegion { region, destroyed, hard_state, truncated, last, reset })
}
