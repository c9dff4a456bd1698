//! The log iterator of XLL: every physical record, in log order.

use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{Content, Form, Item, Items};
use crate::segment::scan::{Probe, SegmentReader};
use crate::shared::Shared;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_types::{EntryRecord, FileId, Lsn, Record, Result};

/// Iterator over the records of all segments up to the head at the last seek. Includes replaced and
/// truncated entries.
#[derive(Debug)]
pub struct LogIter {
    shared: Arc<Shared>,
    head: Lsn,
    reader: Option<SegmentReader>,
    next_frame: u32,
    records: VecDeque<(Lsn, Record)>,
}

impl LogIter {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let records = VecDeque::new();
        Self { shared, head: Lsn::default(), reader: None, next_frame: 0, records }
    }

    /// Moves to the first record at or after `to`.
    pub fn seek(&mut self, to: Lsn) -> Result<()> {
        self.head = self.shared.state.read().head;
        self.records.clear();
        self.reader = None;
        self.enter(to.file)?;
        self.fill()?;
        while self.records.front().is_some_and(|(at, _)| *at < to) {
            self.next()?;
        }
        Ok(())
    }

    /// Whether there is a current record.
    pub fn valid(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns the current record's position; for an entry, that of its payload.
    pub fn at(&self) -> Lsn {
        self.records.front().map(|(at, _)| *at).unwrap_or_default()
    }

    /// Returns the current record.
    pub fn record(&self) -> Option<&Record> {
        self.records.front().map(|(_, record)| record)
    }

    /// Moves to the next record; past the last one the iterator is not valid.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<()> {
        self.records.pop_front();
        self.fill()
    }

    fn enter(&mut self, from: FileId) -> Result<()> {
        let next = self.shared.catalog.read().segments().into_iter().find(|id| *id >= from);
        self.reader = match next {
            Some(id) => Some(SegmentReader::open(&self.shared.dir, id, true)?),
            None => None,
        };
        self.next_frame = self.reader.as_ref().map_or(0, SegmentReader::block_bytes);
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        while self.records.is_empty() {
            let Some(reader) = &mut self.reader else { return Ok(()) };
            let id = reader.id();
            if id > self.head.file || (id == self.head.file && self.next_frame >= self.head.offset)
            {
                self.reader = None;
                return Ok(());
            }
            let end = self.shared.end_of(id);
            if end.is_some_and(|end| self.next_frame >= end) {
                self.enter(id.next())?;
                continue;
            }
            match reader.probe(self.next_frame)? {
                Probe::Frame(frame) => {
                    let at = self.next_frame;
                    self.next_frame = reader.after(at, &frame);
                    let body = reader.body(at, &frame)?.unwrap_or_default();
                    let body = Bytes::copy_from_slice(body);
                    let begin = Lsn::new(id, at + FRAME_HEADER_BYTES as u32);
                    self.records.extend(records(begin, &body));
                }
                Probe::Other(_) if end.is_none() => self.enter(id.next())?,
                Probe::Other(_) => {
                    return Err(reader.corrupt(self.next_frame, "no whole batch here"));
                }
            }
        }
        Ok(())
    }
}

fn records(begin: Lsn, body: &Bytes) -> Vec<(Lsn, Record)> {
    let mut out = Vec::new();
    let mut items = Items::new(Form::Frame, begin, body);
    while let Some(Some(item)) = items.next_item() {
        match item {
            Item::Entry(entry) => {
                let Content::Payload(payload) = entry.content else { continue };
                let record = EntryRecord {
                    region: entry.region,
                    term: entry.term,
                    index: entry.index,
                    is_command: entry.is_command,
                    payload: body.slice_ref(payload),
                };
                out.push((entry.at, Record::Entry(record)));
            }
            Item::HardState(region, state) => out.push((begin, Record::HardState(region, state))),
            Item::Mark(region, mark, at) => out.push((at, Record::Mark(region, mark))),
            Item::Withdrawn(_) | Item::Carried(_) => {}
        }
    }
    out
}
