//! K-way merge of sorted sources: cursors ordered by key, the newest first among equal keys.
//! Sources are few and one of them usually holds most of the keys, so a step takes one or two
//! comparisons of eight key bytes. A heap takes more comparisons, and of whole keys.

use crate::cursor::Cursor;
use crate::cursor::{Found, ValueSlice};
use crate::memtable::{MemtableCursor, RangeSet};
use crate::version::TierCursor;
use std::cmp::Ordering;
use std::sync::Arc;
use stele_types::{Error, Result};

/// A position in a memtable or in a tier.
pub(crate) enum SourceCursor {
    Memtable(MemtableCursor),
    Tier(TierCursor),
}

macro_rules! each {
    ($self:expr, $cursor:ident => $call:expr) => {
        match $self {
            SourceCursor::Memtable($cursor) => $call,
            SourceCursor::Tier($cursor) => $call,
        }
    };
}

/// One source and the ranges it deletes from all older ones.
pub(crate) struct Source {
    cursor: SourceCursor,
    ranges: Arc<RangeSet>,
}

/// A valid source in the order.
#[derive(Clone, Copy)]
struct Place {
    /// [`Cursor::prefix`] of its key, inverted when moving downwards.
    rank: u64,
    source: usize,
}

impl Source {
    pub(crate) fn new(cursor: SourceCursor, ranges: Arc<RangeSet>) -> Self {
        Self { cursor, ranges }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        each!(&self.cursor, c => c.key())
    }

    /// Returns the rank of the current key; `None` at the end.
    #[inline]
    fn rank(&self, reverse: bool) -> Option<u64> {
        each!(&self.cursor, c => c.valid().then(|| if reverse { !c.prefix() } else { c.prefix() }))
    }

    #[inline]
    fn step(&mut self, reverse: bool) -> Result<Option<u64>> {
        match reverse {
            false => each!(&mut self.cursor, c => c.next())?,
            true => each!(&mut self.cursor, c => c.prev())?,
        }
        Ok(self.rank(reverse))
    }
}

/// Cursor over the merge of all sources: one entry per key, the newest.
pub(crate) struct Merged {
    /// Newest first.
    sources: Vec<Source>,
    /// Valid sources in key order; the first one is current.
    order: Vec<Place>,
    reverse: bool,
    has_ranges: bool,
}

impl Merged {
    /// Creates a merge of sources, given newest first. It is not positioned.
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let has_ranges = sources.iter().any(|source| !source.ranges.is_empty());
        let order = Vec::with_capacity(sources.len());
        Self { sources, order, reverse: false, has_ranges }
    }

    /// Moves to the first key at or above `key` and sets the direction upwards.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.order.clear();
        for source in &mut self.sources {
            if let SourceCursor::Tier(tier) = &mut source.cursor {
                tier.approach(key)?;
            }
        }
        self.place(false, |cursor| match cursor {
            SourceCursor::Memtable(memtable) => memtable.seek(key),
            SourceCursor::Tier(tier) => tier.arrive(key),
        })
    }

    /// Moves to the last key below `bound` (`None`: the last key) and sets the direction downwards.
    pub(crate) fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.place(true, |cursor| each!(cursor, c => c.seek_before(bound)))
    }

    fn place(
        &mut self,
        reverse: bool,
        mut place: impl FnMut(&mut SourceCursor) -> Result<()>,
    ) -> Result<()> {
        self.reverse = reverse;
        self.order.clear();
        // Oldest first: each source is inserted before those already in the order.
        for index in (0..self.sources.len()).rev() {
            let Some(source) = self.sources.get_mut(index) else { continue };
            if let Err(error) = place(&mut source.cursor) {
                self.order.clear();
                return Err(error);
            }
            if let Some(rank) = source.rank(reverse) {
                let place = Place { rank, source: index };
                self.order.insert(0, place);
                self.sort_in(0, place);
            }
        }
        Ok(())
    }

    /// Returns the current key; `None` at the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.top().map(Source::key)
    }

    /// Returns whether the current key is below `end`; true at the end. An empty `end` is
    /// unbounded.
    #[inline]
    pub(crate) fn is_below(&self, end: &[u8], end_prefix: u64) -> bool {
        let Some(place) = self.order.first() else { return true };
        let prefix = if self.reverse { !place.rank } else { place.rank };
        end.is_empty() || prefix < end_prefix || self.key().is_none_or(|key| key < end)
    }

    /// Returns the newest entry of the current key.
    #[inline]
    pub(crate) fn found(&self) -> Result<Found> {
        match self.top() {
            Some(source) => each!(&source.cursor, c => c.found()),
            None => Err(Error::invalid("the merge is at its end")),
        }
    }

    /// Returns the newest value of the current key and its expiry in Unix seconds; `None` when
    /// deleted.
    #[inline]
    pub(crate) fn value(&self) -> Option<(ValueSlice<'_>, u64)> {
        let source = self.top()?;
        each!(&source.cursor, c => c.value())
    }

    /// Returns whether the newest entry of the current key has no value.
    #[inline]
    pub(crate) fn is_deleted(&self) -> bool {
        self.top().is_none_or(|source| each!(&source.cursor, c => c.is_deleted()))
    }

    /// Returns whether no newer source than the oldest one holds the current key.
    #[inline]
    pub(crate) fn is_from_oldest(&self) -> bool {
        self.order.first().is_some_and(|top| top.source + 1 == self.sources.len())
    }

    /// Returns whether a range tombstone of a newer source covers the current key.
    #[inline]
    pub(crate) fn is_hidden(&self) -> bool {
        if !self.has_ranges {
            return false;
        }
        let (Some(key), Some(top)) = (self.key(), self.order.first()) else { return false };
        self.sources.iter().take(top.source).any(|source| source.ranges.covers(key))
    }

    /// Moves to the next key, past older entries of the current key.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        if let [first, second, ..] = self.order[..]
            && first.rank == second.rank
        {
            self.pass_older()?;
        }
        self.step(0)
    }

    /// Advances the sources after the first one that are at the same key.
    #[inline(never)]
    fn pass_older(&mut self) -> Result<()> {
        while let [first, second, ..] = self.order[..]
            && first.rank == second.rank
            && self.same_key(first, second)
        {
            self.step(1)?;
        }
        Ok(())
    }

    #[inline]
    fn top(&self) -> Option<&Source> {
        self.sources.get(self.order.first()?.source)
    }

    /// Advances the source at place `at` of the order.
    #[inline]
    fn step(&mut self, at: usize) -> Result<()> {
        let Some(place) = self.order.get_mut(at) else { return Ok(()) };
        let Some(source) = self.sources.get_mut(place.source) else { return Ok(()) };
        match source.step(self.reverse) {
            Ok(Some(rank)) => {
                let moved = Place { rank, source: place.source };
                self.sort_in(at, moved);
            }
            Ok(None) => drop(self.order.remove(at)),
            Err(error) => {
                self.order.clear();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Inserts `moved` into the order: place `at` is free, and the places after it are sorted.
    /// Shifts those that precede `moved` down by one.
    #[inline]
    fn sort_in(&mut self, mut at: usize, moved: Place) {
        while let Some(&following) = self.order.get(at + 1)
            && (moved.rank > following.rank
                || (moved.rank == following.rank && self.is_after(moved, following)))
        {
            self.order[at] = following;
            at += 1;
        }
        self.order[at] = moved;
    }

    fn same_key(&self, a: Place, b: Place) -> bool {
        match (self.sources.get(a.source), self.sources.get(b.source)) {
            (Some(a), Some(b)) => a.key() == b.key(),
            _ => false,
        }
    }

    /// Returns whether `a` comes after `b`; both have the same rank.
    #[cold]
    fn is_after(&self, a: Place, b: Place) -> bool {
        let (Some(left), Some(right)) = (self.sources.get(a.source), self.sources.get(b.source))
        else {
            return false;
        };
        let by_key = left.key().cmp(right.key());
        match if self.reverse { by_key.reverse() } else { by_key } {
            Ordering::Less => false,
            Ordering::Greater => true,
            // Among equal keys the newer source comes first: it has the smaller index.
            // bug index.wrong_merge_order: `a.source > b.source` is `a.source < b.source`
            Ordering::Equal => a.source > b.source,
        }
    }
}

impl std::fmt::Debug for Merged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merged")
            .field("key", &self.key())
            .field("sources", &self.sources.len())
            .finish()
    }
}
