//! Read-only dumps of single files for operators. Damage becomes a row, and the dump continues
//! after it where it can.

use crate::dir::{Dir, Name};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{Form, Item, Items, Magic, ops};
use crate::retained_tombstones::{self, RetainedTombstone};
use crate::segment::chunks::ChunkReader;
use crate::segment::scan::{self, Probe, SegmentReader};
use crate::sorted::SortedReader;
use crate::versions::ReplayOp;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use stele_types::{
    Error, HardState, Locator, LogIndex, Lsn, Mark, RegionId, Result, StoreId, Term, ValueRef,
};
use stele_vfs::{Open, Vfs};

/// Offset of the store's identity in both kinds of file header.
const STORE_AT: u64 = 16;

/// One item found in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// The item at this offset.
    pub what: What,
}

/// Kind and content of a [`Row`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum What {
    /// A segment's first block.
    Segment { store: StoreId, previous: u32, previous_end: u32, block_bytes: u32, recycled: bool },
    /// A batch.
    Batch { bytes: u64, records: u32, crc: u32, chain: u32 },
    /// A Raft entry.
    Entry { region: RegionId, term: Term, index: LogIndex, is_command: bool, bytes: u32 },
    /// A put, of an entry or of a sorted file.
    Put { key: Vec<u8>, version: Lsn, value: ValueRef, expires_at_s: u64, whole: Option<bool> },
    /// A delete.
    Delete { key: Vec<u8>, version: Lsn },
    /// A delete of a range.
    DeleteRange { start: Vec<u8>, end: Vec<u8>, version: Lsn },
    /// A region's hard state.
    HardState { region: RegionId, state: HardState },
    /// A lifecycle mark of a region.
    Mark { region: RegionId, mark: Mark },
    /// An entry that a conflict replaced.
    Withdrawn { payload: Lsn },
    /// A region's state at the start of a segment.
    Region {
        region: RegionId,
        state: HardState,
        truncated: LogIndex,
        last: LogIndex,
        destroyed: bool,
    },
    /// A footer with its fields as stored: the file is complete.
    Footer { fields: [u64; 6] },
    /// Bytes that differ from what was written.
    Damage { detail: String },
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}  ", self.offset)?;
        match &self.what {
            What::Put { key, version, value, expires_at_s, whole } => {
                write!(f, "  put {} version {version}", Key(key))?;
                match value {
                    ValueRef::Inline(value) => write!(f, " inline {} bytes", value.len())?,
                    ValueRef::At(at) => write!(f, " at {at}")?,
                }
                if *expires_at_s != 0 {
                    write!(f, " expires {expires_at_s}")?;
                }
                if *whole == Some(false) { write!(f, " DAMAGED") } else { Ok(()) }
            }
            What::Delete { key, version } => write!(f, "  delete {} version {version}", Key(key)),
            What::DeleteRange { start, end, version } => {
                write!(f, "  delete range {} to {} version {version}", Key(start), Key(end))
            }
            What::Damage { detail } => write!(f, "DAMAGED {detail}"),
            other => write!(f, "{other:?}"),
        }
    }
}

struct Key<'a>(&'a [u8]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Passes the rows of a `.seg`, `.side`, `.val` or `.graves` file to `f` until it returns `false`.
/// Fails when the name is none of these or a read fails; damage is a row.
pub fn dump(vfs: &Arc<dyn Vfs>, path: &Path, f: &mut dyn FnMut(Row) -> bool) -> Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(Name::parse);
    let name = name.ok_or_else(|| {
        Error::invalid(format!("{} is not a .seg, .side, .val or .graves file", path.display()))
    })?;
    let file = vfs.open(path, Open::READ)?;
    let mut store = [0; 8];
    file.read_at(&mut store, STORE_AT)?;
    let dir = Dir {
        vfs: vfs.clone(),
        path: path.parent().unwrap_or(Path::new("")).to_path_buf(),
        store: StoreId(u64::from_le_bytes(store)),
        direct: false,
    };
    let mut dumper = Dumper { f, stopped: false };
    let dumped = match name {
        Name::Segment(_) => dumper.segment(&dir, name),
        Name::Sidecar(_) => dumper.sidecar(&dir, name),
        Name::Sorted(_) => dumper.sorted(&dir, name),
        Name::Tombstones(_) => dumper.tombstones(&dir, name),
        Name::Free(_) => Ok(()),
    };
    match dumped {
        Err(Error::Corrupt { offset, detail, .. }) if !dumper.stopped => {
            dumper.row(offset, What::Damage { detail });
            Ok(())
        }
        Err(_) if dumper.stopped => Ok(()),
        other => other,
    }
}

struct Dumper<'a> {
    f: &'a mut dyn FnMut(Row) -> bool,
    stopped: bool,
}

impl Dumper<'_> {
    fn row(&mut self, offset: u64, what: What) {
        self.stopped = self.stopped || !(self.f)(Row { offset, what });
    }

    fn check_not_stopped(&self) -> Result<()> {
        if self.stopped { Err(Error::invalid("enough")) } else { Ok(()) }
    }

    fn segment(&mut self, dir: &Dir, name: Name) -> Result<()> {
        let mut reader = SegmentReader::open(dir, name.file(), true)?;
        let header = reader.header;
        self.row(
            0,
            What::Segment {
                store: header.store,
                previous: header.previous.0,
                previous_end: header.previous_end,
                block_bytes: header.block_bytes,
                recycled: header.recycled,
            },
        );
        let mut at = reader.block_bytes();
        while !self.stopped && u64::from(at) < reader.file_bytes() {
            let Probe::Frame(frame) = reader.probe(at)? else {
                let detail = "no whole batch from here on".to_string();
                self.row(u64::from(at), What::Damage { detail });
                let next = at.saturating_add(reader.block_bytes());
                let Some(next) = scan::next_frame(&mut reader, next)? else { break };
                at = next;
                continue;
            };
            let (bytes, records) = (frame.bytes(), frame.records);
            let batch = What::Batch { bytes, records, crc: frame.crc, chain: frame.chain };
            self.row(u64::from(at), batch);
            let begin = Lsn::new(name.file(), at + FRAME_HEADER_BYTES as u32);
            let body = reader.body(at, &frame)?.unwrap_or_default();
            let mut items = Items::new(Form::Frame, begin, body);
            while let Some(Some(item)) = items.next_item() {
                self.item(u64::from(begin.offset), &item);
            }
            at = reader.after(at, &frame);
        }
        Ok(())
    }

    fn item(&mut self, offset: u64, item: &Item<'_>) {
        match item.clone() {
            Item::Entry(entry) => {
                let (region, term, index) = (entry.region, entry.term, entry.index);
                let (is_command, bytes) = (entry.is_command, entry.bytes);
                let at = u64::from(entry.at.offset);
                self.row(at, What::Entry { region, term, index, is_command, bytes });
                if !is_command {
                    return;
                }
                for (version, op) in ops::versioned(entry.content, entry.at, 0).unwrap_or_default()
                {
                    self.op(u64::from(version.offset), version, &op);
                }
            }
            Item::HardState(region, state) => self.row(offset, What::HardState { region, state }),
            Item::Mark(region, mark, at) => {
                self.row(u64::from(at.offset), What::Mark { region, mark });
            }
            Item::Withdrawn(payload) => self.row(offset, What::Withdrawn { payload }),
            Item::Carried(carried) => self.row(
                offset,
                What::Region {
                    region: carried.region,
                    state: carried.hard_state,
                    truncated: carried.truncated.0,
                    last: carried.last.0,
                    destroyed: carried.destroyed,
                },
            ),
        }
    }

    fn op(&mut self, offset: u64, version: Lsn, op: &ReplayOp<'_>) {
        let what = match op {
            ReplayOp::Put { key, value, expires_at_s } => What::Put {
                key: key.to_vec(),
                version,
                value: value.clone(),
                expires_at_s: *expires_at_s,
                whole: None,
            },
            ReplayOp::Delete { key } => What::Delete { key: key.to_vec(), version },
            ReplayOp::DeleteRange { start, end } => {
                What::DeleteRange { start: start.to_vec(), end: end.to_vec(), version }
            }
        };
        self.row(offset, what);
    }

    fn sidecar(&mut self, dir: &Dir, name: Name) -> Result<()> {
        let reader = ChunkReader::open(dir, name, Magic::Sidecar)?;
        scan::of_sidecar(&reader, &mut |item| {
            self.item(0, item);
            self.check_not_stopped()
        })?;
        self.row(reader.footer.data_end, What::Footer { fields: reader.footer.fields });
        Ok(())
    }

    fn sorted(&mut self, dir: &Dir, name: Name) -> Result<()> {
        let mut reader = SortedReader::open(dir, name.file())?;
        while let Some(record) = reader.next_record()? {
            let locator: Locator = record.locator;
            let what = What::Put {
                key: record.key.to_vec(),
                version: record.fields.version,
                value: ValueRef::At(locator),
                expires_at_s: record.fields.expires_at_s,
                whole: Some(locator.check(record.value).is_ok()),
            };
            self.row(record.at, what);
            self.check_not_stopped()?;
        }
        let totals = reader.totals();
        let fields = [totals.records, totals.payload_bytes, 0, 0, 0, 0];
        self.row(reader.file_bytes(), What::Footer { fields });
        Ok(())
    }

    fn tombstones(&mut self, dir: &Dir, name: Name) -> Result<()> {
        retained_tombstones::each(dir, name.file(), &mut |tombstone| {
            match tombstone {
                RetainedTombstone::Op { version, op, .. } => self.op(0, version, &op),
                RetainedTombstone::Withdrawn(payload) => self.row(0, What::Withdrawn { payload }),
            }
            self.check_not_stopped()
        })
    }
}
