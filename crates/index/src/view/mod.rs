//! Views: one point in time of the index.

mod estimate;
mod iter;

pub use estimate::Estimate;
pub use iter::{Direction, ViewIter};

use crate::cursor::{Found, Lookup};
use crate::index::Tables;
use crate::memtable::RangeSet;
use crate::merge::{Merged, Source, SourceCursor};
use crate::version::Version;
use std::sync::Arc;
use stele_types::{KeyRange, Result, Seq};

/// One point in time of the index: later writes, flushes and merges are not visible. While the view
/// exists, its runs are kept and [`crate::Index::pinned_versions`] contains its version.
#[derive(Clone, Debug)]
pub struct View {
    tables: Arc<Tables>,
    seq: Seq,
}

impl View {
    pub(crate) fn new(tables: Arc<Tables>, seq: Seq) -> Self {
        Self { tables, seq }
    }

    /// Returns the pinned version.
    pub fn version(&self) -> &Arc<Version> {
        &self.tables.version
    }

    /// Returns the newest entry of `key`; `Some(Deleted)` and `None` both mean that there is no
    /// value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        self.tables.get(key, self.seq)
    }

    /// Does what [`View::get`] does, without waiting for the device: from memtables, cached blocks
    /// and the page cache.
    pub fn get_cached(&self, key: &[u8]) -> Result<Lookup> {
        self.tables.get_cached(key, self.seq)
    }

    /// Returns the pairs of `range` in order. The iterator keeps the view's memory and outlives the
    /// view.
    pub fn iter(&self, range: KeyRange, direction: Direction) -> Result<ViewIter> {
        let mut sources =
            Vec::with_capacity(1 + self.tables.frozen.len() + self.version().tiers().len());
        let memtables = self.tables.memtables();
        for memtable in memtables.filter(|memtable| !memtable.is_empty()) {
            let cursor = SourceCursor::Memtable(memtable.cursor(self.seq));
            sources.push(Source::new(cursor, memtable.ranges(self.seq)));
        }
        for tier in self.version().tiers() {
            let ranges: Arc<RangeSet> = tier.shared_ranges();
            sources.push(Source::new(SourceCursor::Tier(tier.cursor(&range)), ranges));
        }
        ViewIter::new(Merged::new(sources), range, direction, self.tables.clone())
    }
}
