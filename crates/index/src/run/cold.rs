//! Cold runs: filter and fences are read by page through the block cache.
//!
//! Invariant: damage of a filter or of fences never hides a key, and the run is rewritten. Without an intact
//! page every key passes. Fences are rebuilt from their blocks. In both cases the run is noted and rewritten.
//! Tests: `damage_of_a_cold_filter_or_of_fences_hides_no_key_and_is_noted`,
//! `a_block_masked_earlier_does_not_hide_those_that_cannot_be_found`.
//!
//! Readers take no lock while they read. Two readers of the same page may both read it.

use super::fences::Fences;
use super::fences::{Span, rebuild_fences, unless_damaged};
use super::filter;
use super::page_table::{FencePages, FenceTable, FilterPages, LinePlace, PagePlace, PageTable};
use super::parts::{Held, Parts, Reads};
use super::reader::{Run, read_fences};
use crate::cache::{Cached, Part};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use stele_types::checksum::crc32c;
use stele_types::{Error, Result};

static NO_FENCES: Fences = Fences::none();

#[derive(Debug, Default)]
pub(super) struct Cold {
    /// Built by the first read that needs it.
    table: OnceLock<PageTable>,
    /// A part was found damaged, and no caller of [`Run::take_damaged`] knows it.
    has_new_damage: AtomicBool,
    /// A part was found damaged: the file is not read whole again.
    is_damaged: AtomicBool,
}

enum Page {
    Intact(Bytes),
    Damaged,
    /// The read would have to wait, or what memory holds is damaged.
    NeedsIo,
}

impl Cold {
    pub(super) fn with_table(table: PageTable) -> Self {
        Self { table: table.into(), ..Self::default() }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.get().map_or(0, PageTable::memory_bytes)
    }

    /// Returns whether a part is known to be damaged in the file.
    pub(super) fn is_damaged(&self) -> bool {
        let rebuilt = |table: &PageTable| matches!(table.fences, FencePages::Rebuilt(_));
        self.is_damaged.load(Ordering::Acquire) || self.table.get().is_some_and(rebuilt)
    }

    /// Records damage. Invariant: a run is reported once, however often its damage is read. A rewrite
    /// that cannot succeed yet is not repeated with every read.
    pub(super) fn note_damage(&self) {
        let is_known = self.is_damaged.swap(true, Ordering::AcqRel);
        // bug index.cold_damage_noted_at_each_read: let is_known = false;
        // bug index.cold_damage_unnoted: never
        if !is_known {
            self.has_new_damage.store(true, Ordering::Release);
        }
    }
}

impl Run {
    /// Returns whether reads found a part of a cold run damaged since the last call.
    pub(crate) fn take_damaged(&self) -> bool {
        match &self.parts {
            Parts::Pinned(_) => false,
            Parts::Cold(cold) => cold.has_new_damage.swap(false, Ordering::AcqRel),
        }
    }

    pub(super) fn not_read(&self) -> Error {
        Error::corrupt(self.path(), self.layout.data_bytes, "fences are missing after a read")
    }

    fn table<'a>(&self, cold: &'a Cold, reads: Reads) -> Result<Option<&'a PageTable>> {
        if cold.table.get().is_none() {
            if reads == Reads::InMemory {
                return Ok(None);
            }
            let table = self.read_table(cold)?;
            // Another reader may have been first.
            drop(cold.table.set(table));
        }
        Ok(cold.table.get())
    }

    fn read_table(&self, cold: &Cold) -> Result<PageTable> {
        let (file, id, layout) = (&*self.file, self.id(), &self.layout);
        let note = |bytes| self.cache.note_cold_read(bytes);
        let filter = unless_damaged(FilterPages::read(file, id, layout, &note))?;
        let fences = unless_damaged(read_fences(file, id, layout))?;
        note(layout.fences_bytes);
        let table = fences.map(|fences| FenceTable::of(&fences, layout.data_bytes));
        let part_bytes = layout.fences_bytes.saturating_sub(super::footer::TRAILER_BYTES as u64);
        let table = table.filter(|table| table.part_bytes(layout.data_bytes) == part_bytes);
        if filter.is_none() || table.is_none() {
            cold.note_damage();
        }
        let fences = match table {
            Some(table) => FencePages::InFile(table),
            None => FencePages::Rebuilt(self.rebuild_all_fences()?),
        };
        Ok(PageTable { filter: filter.flatten(), fences })
    }

    pub(super) fn rebuild_all_fences(&self) -> Result<Fences> {
        let end = self.layout.data_bytes;
        let span = Span { first: 0, start: 0, below: &[], end, blocks: None };
        rebuild_fences(&*self.file, self.id(), &span)
    }

    pub(super) fn cold_blocks(&self, cold: &Cold) -> Result<usize> {
        Ok(match self.table(cold, Reads::MayWait)?.map(|table| &table.fences) {
            Some(FencePages::InFile(table)) => table.blocks(),
            Some(FencePages::Rebuilt(fences)) => fences.end(),
            None => 0,
        })
    }

    pub(super) fn cold_may_contain(
        &self,
        cold: &Cold,
        hash: u64,
        reads: Reads,
    ) -> Result<Option<bool>> {
        // bug index.cold_filter_denies_all: return Ok(Some(false));
        let Some(table) = self.table(cold, reads)? else { return Ok(None) };
        let Some(filter) = &table.filter else { return Ok(Some(true)) };
        let LinePlace { page, offset } = filter.place(hash);
        let Some(page) = self.filter_page(cold, filter, page, reads)? else { return Ok(None) };
        let line = page.get(offset..).and_then(|rest| rest.first_chunk());
        Ok(Some(line.is_none_or(|line| filter::line_passes(line, hash, self.layout.probes))))
    }

    fn filter_page(
        &self,
        cold: &Cold,
        filter: &FilterPages,
        page: usize,
        reads: Reads,
    ) -> Result<Option<Bytes>> {
        let part = Part::Filter(page as u32);
        if let Some(Cached::Filter(found)) = self.cache.get(self.id(), part) {
            return Ok(Some(found));
        }
        let place = filter.page(page);
        let read = match self.read_page(&place, reads)? {
            Page::NeedsIo => return Ok(None),
            Page::Intact(read) => read,
            Page::Damaged => {
                cold.note_damage();
                // All bits are set: every key passes.
                // bug index.damaged_filter_denies: `u8::MAX` is `0`
                Bytes::from(vec![u8::MAX; (place.bytes.end - place.bytes.start) as usize])
            }
        };
        self.cache.insert(self.id(), part, Cached::Filter(read.clone()));
        Ok(Some(read))
    }

    /// Returns the fences of the page that `page` chooses, or of the whole run if they are in
    /// memory; `None` if that needs the device.
    pub(super) fn cold_fences<'a>(
        &self,
        cold: &'a Cold,
        held: &'a mut Held,
        reads: Reads,
        page: impl FnOnce(&FenceTable) -> usize,
    ) -> Result<Option<&'a Fences>> {
        let table = match self.table(cold, reads)?.map(|table| &table.fences) {
            None => return Ok(None),
            Some(FencePages::Rebuilt(fences)) => return Ok(Some(fences)),
            Some(FencePages::InFile(table)) => table,
        };
        let page = page(table);
        let Some((blocks, _)) = table.span(page) else { return Ok(Some(&NO_FENCES)) };
        if !held.as_ref().is_some_and(|held| held.has(blocks.start)) {
            *held = self.fence_page(cold, table, page, reads)?;
        }
        Ok(held.as_deref())
    }

    fn fence_page(
        &self,
        cold: &Cold,
        table: &FenceTable,
        page: usize,
        reads: Reads,
    ) -> Result<Held> {
        let part = Part::Fences(page as u32);
        if let Some(Cached::Fences(found)) = self.cache.get(self.id(), part) {
            return Ok(Some(found));
        }
        let (Some(place), Some((blocks, bytes))) = (table.page(page), table.span(page)) else {
            return Err(self.not_read());
        };
        let read = match self.read_page(&place, reads)? {
            Page::NeedsIo => return Ok(None),
            Page::Damaged => None,
            Page::Intact(raw) => Fences::starting_at(blocks.start, bytes.start).decode_into(
                &raw,
                blocks.len() as u64,
                bytes.end,
            ),
        };
        let fences = match read {
            Some(fences) => fences,
            None => {
                cold.note_damage();
                let span = Span {
                    first: blocks.start,
                    start: bytes.start,
                    below: table.top.key(page),
                    end: bytes.end,
                    blocks: Some(blocks.len()),
                };
                rebuild_fences(&*self.file, self.id(), &span)?
            }
        };
        let fences = Arc::new(fences);
        self.cache.insert(self.id(), part, Cached::Fences(Arc::clone(&fences)));
        Ok(Some(fences))
    }

    fn read_page(&self, place: &PagePlace, reads: Reads) -> Result<Page> {
        let bytes = place.bytes.end - place.bytes.start;
        // A second read distinguishes damage on the device from a bit flipped in transfer.
        for _ in 0..2 {
            let mut page = self.cache.buffer(bytes as usize);
            let read = match reads {
                Reads::MayWait => {
                    self.file.read_exact_at(&mut page, place.bytes.start).map(|()| true)
                }
                Reads::InMemory => self.file.read_cached_at(&mut page, place.bytes.start),
            };
            match unless_damaged(read)? {
                Some(true) => self.cache.note_cold_read(bytes),
                Some(false) => return Ok(Page::NeedsIo),
                None => break,
            }
            // bug index.cold_page_unchecked: always
            if crc32c(&page) == place.crc {
                return Ok(Page::Intact(page.freeze()));
            }
        }
        Ok(match reads {
            Reads::MayWait => Page::Damaged,
            Reads::InMemory => Page::NeedsIo,
        })
    }
}
