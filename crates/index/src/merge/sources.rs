//! K-way merge of sorted sources: cursors ordered by key, the newest first among equal keys.
//! Sources are few and one of them usually holds most of the keys, so a step takes one or two
//! comparisons of eight key bytes. A heap takes more comparisons, and of whole keys.

use super::{DropRule, MovingValue, ValueMover};
use crate::cursor::{Cursor, Found, ValueSlice};
use crate::memtable::{MemtableCursor, RangeSet};
use crate::version::TierCursor;
use std::cmp::Ordering;
use std::mem;
use std::sync::Arc;
use stele_types::{Error, Locator, Result, ValueRef};

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

pub(crate) struct Source {
    cursor: SourceCursor,
    ranges: Arc<RangeSet>,
}

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

    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        if let [first, second, ..] = self.order[..]
            && first.rank == second.rank
        {
            self.pass_older()?;
        }
        self.step(0)
    }

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

/// Maximum bytes of short values, and maximum number of values, held at a time. In a store ten
/// times as large so many values lie near each other: one read takes hundreds of them.
const SHORT_BYTES_MAX: u64 = 64 << 20;
const VALUES_MAX: usize = 64 << 10;
/// Values of at least this length take a read each, however many are held; so few are held.
const LONG_VALUE_BYTES: u32 = 4 << 10;
const LONG_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of entries, and maximum bytes of their keys and inline values, held meanwhile.
const ENTRIES_MAX: usize = 2 * VALUES_MAX;
const MEMORY_BYTES_MAX: usize = 8 << 20;

/// Bytes counted for an entry besides key and inline value.
pub(super) const ENTRY_BYTES: u64 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Taking,
    Reading,
    Placing,
}

/// Entries of a merge read before its output, so that values that move are read together, sorted by
/// location. In key order each short value would take one read, and its latency.
#[derive(Debug, Default)]
pub(super) struct Lookahead {
    stage: Stage,
    keys: Vec<u8>,
    /// End of each key in `keys`, and its entry.
    entries: Vec<(usize, Found)>,
    next: usize,
    /// Values that move: indexes of their entries, and locations.
    moving: Vec<(usize, Locator)>,
    short_bytes: u64,
    long_bytes: u64,
    inline_bytes: usize,
}

impl Lookahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Continues when [`Lookahead::pop`] returns `None`: takes more entries from the inputs, or
    /// reads values that move, about `bytes_max` bytes; returns the bytes. Then `pop` returns an
    /// entry, or there is more to do.
    pub(crate) fn fill(
        &mut self,
        merged: &mut Merged,
        rule: &DropRule,
        mover: &mut dyn ValueMover,
        bytes_max: u64,
    ) -> Result<u64> {
        if self.stage == Stage::Reading {
            let bytes = mover.continue_read_ahead(bytes_max);
            if bytes == 0 {
                self.stage = Stage::Placing;
            }
            return Ok(bytes);
        }
        if self.stage == Stage::Placing {
            self.clear();
        }
        let mut bytes = 0;
        while let Some(key) = merged.key() {
            let found = if merged.is_hidden() { None } else { Some(merged.found()?) };
            bytes += key.len() as u64 + ENTRY_BYTES;
            if let Some(found) = found.filter(|found| rule.keeps(key, found)) {
                match &found {
                    Found::Value { value: ValueRef::At(at), .. } if mover.moves(key, at) => {
                        self.add_moving(*at);
                    }
                    Found::Value { value: ValueRef::Inline(value), .. } => {
                        self.inline_bytes += value.len();
                    }
                    _ => {}
                }
                self.keys.extend_from_slice(key);
                self.entries.push((self.keys.len(), found));
            }
            merged.advance()?;
            if self.is_full() {
                break;
            }
            if bytes >= bytes_max {
                return Ok(bytes);
            }
        }
        let moving: Vec<MovingValue<'_>> =
            self.moving.iter().map(|(entry, at)| (self.key(*entry), *at)).collect();
        mover.read_ahead(&moving);
        self.stage = Stage::Reading;
        Ok(bytes)
    }

    /// Removes the entries, all of which are placed.
    fn clear(&mut self) {
        let (mut keys, mut entries) = (mem::take(&mut self.keys), mem::take(&mut self.entries));
        keys.clear();
        entries.clear();
        *self = Self { keys, entries, ..Self::default() };
    }

    fn add_moving(&mut self, at: Locator) {
        self.moving.push((self.entries.len(), at));
        let bytes =
            if at.length < LONG_VALUE_BYTES { &mut self.short_bytes } else { &mut self.long_bytes };
        *bytes += u64::from(at.length);
    }

    fn is_full(&self) -> bool {
        self.moving.len() >= VALUES_MAX
            || self.short_bytes >= SHORT_BYTES_MAX
            || self.long_bytes >= LONG_BYTES_MAX
            || self.entries.len() >= ENTRIES_MAX
            || self.keys.len() + self.inline_bytes >= MEMORY_BYTES_MAX
    }

    pub(crate) fn pop(&mut self) -> Option<(&[u8], Found)> {
        let entry = self.next;
        let found = self.entries.get(entry).filter(|_| self.stage == Stage::Placing)?.1.clone();
        self.next += 1;
        Some((self.key(entry), found))
    }

    fn key(&self, entry: usize) -> &[u8] {
        let end = self.entries.get(entry).map_or(0, |(end, _)| *end);
        let begin = match entry.checked_sub(1).and_then(|before| self.entries.get(before)) {
            Some((begin, _)) => *begin,
            None => 0,
        };
        self.keys.get(begin..end).unwrap_or_default()
    }
}
