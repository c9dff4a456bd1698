//! Pages of a cold run's filter and fences.
//!
//! The file has one checksum for the whole filter and one for all fences. The table of pages holds
//! a checksum for each page, taken when the whole parts were checked, so that a page can be read
//! alone. Memory: 4 bytes per page of the filter; about 40 bytes and a separator per page of the
//! fences. That is about 0.004 bytes per key.

use super::fences::Fences;
use super::filter::{self, Filter};
use super::footer::Layout;
use super::footer::{self, TRAILER_BYTES};
use std::ops::Range;
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{Error, Result, RunId};
use stele_vfs::VfsFile;

/// Size of a page of the filter: a multiple of its lines. A page of fences ends at the last fence
/// that fits.
pub(super) const PAGE_BYTES: usize = 4 << 10;
/// Bytes of the filter read at a time, in whole pages.
const CHUNK_BYTES: usize = 64 * PAGE_BYTES;

#[derive(Debug)]
pub(super) struct PageTable {
    /// `None` without a usable filter: every key passes.
    pub(super) filter: Option<FilterPages>,
    pub(super) fences: FencePages,
}

#[derive(Debug)]
pub(super) struct FilterPages {
    at: u64,
    lines: usize,
    crcs: Box<[u32]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinePlace {
    pub(super) page: usize,
    pub(super) offset: usize,
}

#[derive(Clone, Debug)]
pub(super) struct PagePlace {
    pub(super) bytes: Range<u64>,
    pub(super) crc: u32,
}

#[derive(Debug)]
pub(super) enum FencePages {
    InFile(FenceTable),
    /// In memory: those in the file are damaged.
    Rebuilt(Fences),
}

#[derive(Debug)]
pub(super) struct FenceTable {
    /// For each page its place, and the separator below its first block.
    pub(super) top: Fences,
    pages: Box<[FencePage]>,
    blocks: usize,
    data_end: u64,
}

#[derive(Clone, Copy, Debug)]
struct FencePage {
    crc: u32,
    /// First block, and its offset.
    first: u32,
    start: u64,
}

impl FilterPages {
    pub(super) fn of(filter: &Filter, layout: &Layout) -> Option<Self> {
        if filter.is_empty() {
            return None;
        }
        let mut part = Vec::with_capacity(filter.memory_bytes());
        filter.encode(&mut part);
        let crcs = part.chunks(PAGE_BYTES).map(crc32c).collect();
        Some(Self { at: layout.filter_at(), lines: part.len() / filter::LINE_BYTES, crcs })
    }

    /// Reads the whole filter in chunks and checks it; `None` if the run has none. `note` receives
    /// the size of each read.
    pub(super) fn read(
        file: &dyn VfsFile,
        id: RunId,
        layout: &Layout,
        note: &dyn Fn(u64),
    ) -> Result<Option<Self>> {
        let at = layout.filter_at();
        let bad = |detail: &str| Error::corrupt(file.path(), at, detail);
        if layout.filter_bytes == 0 {
            return Ok(None);
        }
        let bytes = layout.filter_bytes.checked_sub(TRAILER_BYTES as u64);
        let bytes = bytes.ok_or_else(|| bad("filter is too short for a checksum"))?;
        let lines = filter::lines_in(bytes, layout.probes);
        let lines = lines.ok_or_else(|| bad("filter does not parse"))?;
        // A second read distinguishes damage on the device from a bit flipped in transfer.
        for _ in 0..2 {
            let (crcs, all) = page_crcs(file, at..at + bytes, note)?;
            let mut trailer = [0; TRAILER_BYTES];
            file.read_exact_at(&mut trailer, at + bytes)?;
            if footer::is_of(&trailer, id, at, all) {
                return Ok(Some(Self { at, lines, crcs: crcs.into() }));
            }
        }
        Err(bad("checksum of the filter does not match"))
    }

    #[inline]
    pub(super) fn place(&self, hash: u64) -> LinePlace {
        let at = filter::line_of(hash, self.lines) * filter::LINE_BYTES;
        LinePlace { page: at / PAGE_BYTES, offset: at % PAGE_BYTES }
    }

    pub(super) fn page(&self, page: usize) -> PagePlace {
        let bytes = self.lines * filter::LINE_BYTES;
        let end = bytes.min((page + 1) * PAGE_BYTES) as u64;
        let crc = self.crcs.get(page).copied().unwrap_or_default();
        PagePlace { bytes: self.at + (page * PAGE_BYTES) as u64..self.at + end, crc }
    }
}

fn page_crcs(file: &dyn VfsFile, range: Range<u64>, note: &dyn Fn(u64)) -> Result<(Vec<u32>, u32)> {
    let (mut crcs, mut all) = (Vec::new(), Crc32c::new());
    let mut at = range.start;
    let mut chunk = vec![0; CHUNK_BYTES.min((range.end - at) as usize)];
    while at < range.end {
        chunk.truncate((range.end - at) as usize);
        file.read_exact_at(&mut chunk, at)?;
        note(chunk.len() as u64);
        for page in chunk.chunks(PAGE_BYTES) {
            let crc = crc32c(page);
            crcs.push(crc);
            all.update_with_crc(crc, page.len() as u64);
        }
        at += chunk.len() as u64;
    }
    Ok((crcs, all.finish()))
}

impl FenceTable {
    pub(super) fn of(fences: &Fences, at: u64) -> Self {
        let mut table =
            Builder { top: Fences::starting_at(0, at), pages: Vec::new(), page: Vec::new() };
        let (mut first, mut one) = (0, Vec::new());
        for i in 0..fences.end() {
            one.clear();
            fences.encode_one(i, &mut one);
            if table.page.len() + one.len() > PAGE_BYTES && i > first {
                table.close(fences, first);
                first = i;
            }
            table.page.extend_from_slice(&one);
        }
        if first < fences.end() {
            table.close(fences, first);
        }
        Self {
            top: table.top.ready(),
            pages: table.pages.into(),
            blocks: fences.end(),
            data_end: fences.data_end(),
        }
    }

    /// Returns the size of the fences in the file, without the trailer.
    pub(super) fn part_bytes(&self, at: u64) -> u64 {
        self.top.data_end() - at
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the page of a block; the last one for a block that does not exist.
    pub(super) fn page_of(&self, block: usize) -> usize {
        self.pages.partition_point(|page| page.first as usize <= block).saturating_sub(1)
    }

    pub(super) fn page(&self, page: usize) -> Option<PagePlace> {
        let crc = self.pages.get(page)?.crc;
        Some(PagePlace { bytes: self.top.block(page)?, crc })
    }

    pub(super) fn span(&self, page: usize) -> Option<(Range<usize>, Range<u64>)> {
        let FencePage { first, start, .. } = *self.pages.get(page)?;
        let next = self.pages.get(page + 1);
        let end = next.map_or(self.blocks, |next| next.first as usize);
        let data_end = next.map_or(self.data_end, |next| next.start);
        Some((first as usize..end, start..data_end))
    }
}

struct Builder {
    top: Fences,
    pages: Vec<FencePage>,
    page: Vec<u8>,
}

impl Builder {
    fn close(&mut self, fences: &Fences, first: usize) {
        self.top.push(fences.key(first), self.page.len() as u64);
        let start = fences.block(first).map_or(0, |place| place.start);
        self.pages.push(FencePage { crc: crc32c(&self.page), first: first as u32, start });
        self.page.clear();
    }
}

impl PageTable {
    pub(super) fn memory_bytes(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, |filter| size_of_val(&*filter.crcs));
        filter
            + match &self.fences {
                FencePages::InFile(table) => table.top.memory_bytes() + size_of_val(&*table.pages),
                FencePages::Rebuilt(fences) => fences.memory_bytes(),
            }
    }
}
