//! Filter and fences of a run: pinned in memory, or cold.

use super::cold::Cold;
use super::fences::Fences;
use super::fences::unless_damaged;
use super::filter::Filter;
use super::footer::Layout;
use super::page_table::{FencePages, FenceTable, FilterPages, PageTable};
use super::reader::{Run, read_fences, read_filter};
use crate::cache::{BlockCache, Pin};
use std::sync::Arc;
use stele_types::Result;

/// Memory per block of pinned fences, besides the separator.
const FENCE_BYTES: u64 = 20;

/// Whether a read may wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    MayWait,
    /// Only the block cache and the page cache.
    InMemory,
}

/// A page of fences held by the caller, while it refers to it. Consecutive calls may reuse it.
pub(super) type Held = Option<Arc<Fences>>;

#[derive(Clone, Debug)]
pub(super) enum Parts {
    /// In memory, within the limit for pinned parts.
    Pinned(Arc<Pinned>),
    /// Read by page through the block cache.
    Cold(Arc<Cold>),
}

#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) fences: Fences,
    /// The fences in the file are damaged.
    pub(super) are_fences_rebuilt: bool,
    pub(super) filter: Filter,
    pub(super) _memory: Pin,
}

/// Returns the memory that filter and fences take when they are pinned, in bytes: an upper bound.
fn pinned_bytes(layout: &Layout) -> u64 {
    layout.filter_bytes + layout.fences_bytes + layout.blocks * FENCE_BYTES
}

pub(super) fn pin(cache: &Arc<BlockCache>, layout: &Layout) -> Option<Pin> {
    cache.pin(usize::try_from(pinned_bytes(layout)).ok()?)
}

impl Run {
    pub(crate) fn pinned_bytes(&self) -> u64 {
        pinned_bytes(&self.layout)
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.parts, Parts::Pinned(_))
    }

    /// Reads and pins the parts of a cold run. Returns `None` when memory is not granted or a part
    /// is damaged.
    pub(crate) fn to_pinned(&self) -> Result<Option<RunParts>> {
        let Parts::Cold(cold) = &self.parts else { return Ok(None) };
        if cold.is_damaged() {
            return Ok(None);
        }
        let Some(memory) = pin(&self.cache, &self.layout) else { return Ok(None) };
        let fences = unless_damaged(read_fences(&*self.file, self.id(), &self.layout))?;
        let filter = unless_damaged(read_filter(&*self.file, self.id(), &self.layout))?;
        let (Some(fences), Some(filter)) = (fences, filter) else {
            cold.note_damage();
            return Ok(None);
        };
        let are_fences_rebuilt = false;
        let pinned = Pinned { fences, are_fences_rebuilt, filter, _memory: memory };
        Ok(Some(RunParts(Parts::Pinned(Arc::new(pinned)))))
    }

    /// Returns the parts of a pinned run as cold ones. Reads nothing: the checksums of the pages
    /// follow from memory.
    pub(crate) fn to_cold(&self) -> Option<RunParts> {
        let Parts::Pinned(pinned) = &self.parts else { return None };
        let fences = match pinned.are_fences_rebuilt {
            true => FencePages::Rebuilt(pinned.fences.clone()),
            false => FencePages::InFile(FenceTable::of(&pinned.fences, self.layout.data_bytes)),
        };
        let filter = FilterPages::of(&pinned.filter, &self.layout);
        let cold = Cold::with_table(PageTable { filter, fences });
        Some(RunParts(Parts::Cold(Arc::new(cold))))
    }

    pub(crate) fn with_parts(&self, parts: &RunParts) -> Arc<Self> {
        Arc::new(Self { parts: parts.0.clone(), ..self.copy() })
    }

    /// Returns the memory of filter and fences, in bytes, without cached pages.
    pub(super) fn parts_bytes(&self) -> usize {
        match &self.parts {
            Parts::Pinned(pinned) => pinned.fences.memory_bytes() + pinned.filter.memory_bytes(),
            Parts::Cold(cold) => cold.memory_bytes(),
        }
    }

    pub(super) fn blocks(&self) -> Result<usize> {
        match &self.parts {
            Parts::Pinned(pinned) => Ok(pinned.fences.end()),
            Parts::Cold(cold) => self.cold_blocks(cold),
        }
    }

    /// Returns whether a key with this hash may be in the run; `None` if that needs the device.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64, reads: Reads) -> Result<Option<bool>> {
        match &self.parts {
            Parts::Pinned(pinned) => Ok(Some(pinned.filter.may_contain(hash))),
            Parts::Cold(cold) => self.cold_may_contain(cold, hash, reads),
        }
    }

    /// Returns fences among which [`Fences::find`] finds the block of `key`; `None` if that needs
    /// the device.
    #[inline]
    pub(super) fn fences_for<'a>(
        &'a self,
        key: &[u8],
        held: &'a mut Held,
        reads: Reads,
    ) -> Result<Option<&'a Fences>> {
        match &self.parts {
            Parts::Pinned(pinned) => Ok(Some(&pinned.fences)),
            Parts::Cold(cold) => self.cold_fences(cold, held, reads, |table| table.top.find(key)),
        }
    }

    /// Returns fences among which [`Fences::find_below`] finds the last block below `bound`.
    pub(super) fn fences_below<'a>(
        &'a self,
        bound: &[u8],
        held: &'a mut Held,
    ) -> Result<&'a Fences> {
        let found = match &self.parts {
            Parts::Pinned(pinned) => Some(&pinned.fences),
            Parts::Cold(cold) => {
                let page = |table: &FenceTable| table.top.find_below(bound);
                self.cold_fences(cold, held, Reads::MayWait, page)?
            }
        };
        found.ok_or_else(|| self.not_read())
    }

    /// Returns fences with that of block `i`, if it exists; `None` if that needs the device.
    #[inline]
    pub(super) fn fences_of<'a>(
        &'a self,
        i: usize,
        held: &'a mut Held,
        reads: Reads,
    ) -> Result<Option<&'a Fences>> {
        match &self.parts {
            Parts::Pinned(pinned) => Ok(Some(&pinned.fences)),
            Parts::Cold(cold) => self.cold_fences(cold, held, reads, |table| table.page_of(i)),
        }
    }

    /// Does what [`Run::fences_of`] does, and waits for the device.
    #[inline]
    pub(super) fn fences_with<'a>(&'a self, i: usize, held: &'a mut Held) -> Result<&'a Fences> {
        self.fences_of(i, held, Reads::MayWait)?.ok_or_else(|| self.not_read())
    }
}

#[derive(Debug)]
pub(crate) struct RunParts(Parts);
