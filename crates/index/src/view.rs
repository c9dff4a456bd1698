//! Views: one point in time of the index, the iterator over its pairs, and estimates of the size of
//! a key range and of its middle. An estimate uses some key blocks and some memtable entries; no
//! value is read.

use crate::cursor::{Found, Lookup, ValueSlice, prefix_of};
use crate::index::Tables;
use crate::memtable::RangeSet;
use crate::merge::{Merged, Source, SourceCursor};
use crate::run::{Walk, key_hash};
use crate::version::Version;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result, Seq, ValueRef};

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

    /// Starts to load from memory what gets of these keys will read there, so that their cache misses
    /// overlap.
    pub fn prefetch(&self, keys: &[Bytes]) {
        self.tables.memtables().for_each(|memtable| memtable.prefetch(keys));
    }

    /// Returns the pairs of `range` in order. The iterator keeps the view's memory and outlives the
    /// view.
    pub fn iter(&self, range: KeyRange, direction: Direction) -> Result<ViewIter> {
        self.walk(range, direction, Walk::Short)
    }

    /// Does what [`View::iter`] does, without waiting for the device: from memtables, cached blocks
    /// and the page cache. Where it would wait, or passes many deleted pairs, it fails
    /// ([`Error::needs_io`]).
    pub fn iter_in_memory(&self, range: KeyRange, direction: Direction) -> Result<ViewIter> {
        self.walk(range, direction, Walk::InMemory)
    }

    fn walk(&self, range: KeyRange, direction: Direction, walk: Walk) -> Result<ViewIter> {
        let mut sources =
            Vec::with_capacity(1 + self.tables.frozen.len() + self.version().tiers().len());
        let memtables = self.tables.memtables();
        for memtable in memtables.filter(|memtable| !memtable.is_empty()) {
            let cursor = SourceCursor::Memtable(memtable.cursor(self.seq));
            sources.push(Source::new(cursor, memtable.ranges(self.seq)));
        }
        for tier in self.version().tiers() {
            let ranges: Arc<RangeSet> = tier.shared_ranges();
            sources.push(Source::new(SourceCursor::Tier(tier.cursor(&range, walk)), ranges));
        }
        let mut iter = ViewIter::new(Merged::new(sources), range, direction, self.tables.clone())?;
        if walk == Walk::InMemory {
            iter.passes_left = PASSES_MAX;
        }
        Ok(iter)
    }
}

/// Deleted pairs that a walk in memory passes: its thread has other work.
const PASSES_MAX: u64 = 1024;

/// Direction of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Pairs of a view in order: the newest version of each key, without deleted ones. Expired pairs
/// are included, because the view has no clock.
#[derive(Debug)]
pub struct ViewIter {
    merged: Merged,
    range: KeyRange,
    /// [`prefix_of`] of the range's end.
    end_prefix: u64,
    direction: Direction,
    state: State,
    /// Deleted pairs that it may still pass.
    passes_left: u64,
    /// Pins the version, so that no file it references is removed.
    _tables: Arc<Tables>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The merge is at the first key, which was not checked yet.
    Fresh,
    Positioned,
    Ended,
}

impl ViewIter {
    pub(crate) fn new(
        mut merged: Merged,
        range: KeyRange,
        direction: Direction,
        tables: Arc<Tables>,
    ) -> Result<Self> {
        match direction {
            Direction::Forward => merged.seek(&range.start)?,
            Direction::Reverse if range.end.is_empty() => merged.seek_before(None)?,
            Direction::Reverse => merged.seek_before(Some(&range.end))?,
        }
        Ok(Self {
            merged,
            end_prefix: prefix_of(&range.end),
            range,
            direction,
            state: State::Fresh,
            passes_left: u64::MAX,
            _tables: tables,
        })
    }

    /// Moves to the next pair, initially to the first one; returns false at the end. `key`, `value`
    /// and `expires_at_s` then return the current pair. An error ends the iteration.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        let before = std::mem::replace(&mut self.state, State::Ended);
        match before {
            State::Ended => return Ok(false),
            State::Positioned => self.merged.advance()?,
            State::Fresh => {}
        }
        while let Some(key) = self.merged.key() {
            let inside = match self.direction {
                Direction::Forward => self.merged.is_below(&self.range.end, self.end_prefix),
                Direction::Reverse => key >= &self.range.start[..],
            };
            if !inside {
                return Ok(false);
            }
            if !self.merged.is_hidden() && !self.merged.is_deleted() {
                self.state = State::Positioned;
                return Ok(true);
            }
            let left = self.passes_left.checked_sub(1);
            self.passes_left = left.ok_or_else(|| Error::would_wait(""))?;
            self.merged.advance()?;
        }
        Ok(false)
    }

    #[inline]
    fn current(&self) -> Option<(ValueSlice<'_>, u64)> {
        match self.state {
            State::Positioned => self.merged.value(),
            State::Fresh | State::Ended => None,
        }
    }

    /// Returns the current key; empty when there is no current pair.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.state {
            State::Positioned => self.merged.key().unwrap_or_default(),
            State::Fresh | State::Ended => &[],
        }
    }

    /// Returns the current value; empty when there is no current pair.
    #[inline]
    pub fn value(&self) -> ValueSlice<'_> {
        self.current().map_or(ValueSlice::Inline(&[]), |(value, _)| value)
    }

    /// Returns key, value and expiry in Unix seconds (0 for none) of the current pair. Fails when
    /// there is no current pair, or when the run's entry cannot be read.
    #[inline]
    pub fn pair(&self) -> Result<(&[u8], ValueSlice<'_>, u64)> {
        match self.current() {
            Some((value, expires_at_s)) => Ok((self.key(), value, expires_at_s)),
            None => Err(self.no_pair()),
        }
    }

    #[cold]
    fn no_pair(&self) -> Error {
        let found = self.merged.found();
        found.err().unwrap_or_else(|| {
            Error::invalid("the iterator has no current pair; call advance first")
        })
    }

    /// Returns the expiry of the current pair in Unix seconds; 0 for none.
    #[inline]
    pub fn expires_at_s(&self) -> u64 {
        self.current().map_or(0, |(_, expires_at_s)| expires_at_s)
    }

    /// Returns the next pair, owned: key, value and expiry in Unix seconds (0 for none). `None` at
    /// the end.
    // Not an `Iterator`, because an error ends the iteration.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(Bytes, ValueRef, u64)>> {
        if !self.advance()? {
            return Ok(None);
        }
        let key = Bytes::copy_from_slice(self.merged.key().unwrap_or_default());
        match self.merged.found()? {
            Found::Value { value, expires_at_s } => Ok(Some((key, value, expires_at_s))),
            Found::Deleted => Ok(None),
        }
    }
}

/// Key blocks read per tier, at most.
const BLOCKS_MAX: usize = 32;
/// A range is cut only if the part after its first part is at least half as large.
const MUCH_MORE: f64 = 1.5;

/// Estimated content of a key range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Number of keys with a value.
    pub keys: f64,
    /// Bytes of these keys and values.
    pub bytes: f64,
}

impl View {
    /// Estimates the content of `range`.
    pub fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        self.sample(range, &mut |_, keys, bytes| {
            sum.keys += keys;
            sum.bytes += bytes;
        })?;
        Ok(sum)
    }

    /// Returns a key with about half of the bytes of `range` below it, and pairs on both sides.
    pub fn middle(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.cut(range, |bytes| Some(bytes / 2.0))
    }

    /// Returns a key with about `bytes` of `range` below it; `None` if the range is not much
    /// larger.
    pub fn first_part(&self, range: &KeyRange, bytes: f64) -> Result<Option<Bytes>> {
        self.cut(range, |all| (all >= MUCH_MORE * bytes).then_some(bytes))
    }

    /// Returns a key with about `before(total)` bytes of `range` below it, and pairs on both sides;
    /// `total` is the bytes of the range.
    fn cut(&self, range: &KeyRange, before: impl Fn(f64) -> Option<f64>) -> Result<Option<Bytes>> {
        let mut points: Vec<(Bytes, f64)> = Vec::new();
        self.sample(range, &mut |key, _, bytes| points.push((Bytes::copy_from_slice(key), bytes)))?;
        points.sort_by(|a, b| a.0.cmp(&b.0));
        let wanted = before(points.iter().map(|(_, bytes)| bytes).sum());
        let mut points = points.into_iter();
        let (Some(wanted), Some((first, mut bytes_before))) = (wanted, points.next()) else {
            return Ok(None);
        };
        let mut cut = None;
        for (key, bytes) in points.filter(|(key, _)| *key > first) {
            cut = Some(key);
            // The pair that reaches the wanted bytes belongs to the upper part.
            bytes_before += bytes;
            if bytes_before >= wanted {
                break;
            }
        }
        Ok(cut)
    }

    /// Samples pairs of `range`: passes the key, and the keys and bytes that each represents.
    fn sample(&self, range: &KeyRange, f: &mut dyn FnMut(&[u8], f64, f64)) -> Result<()> {
        let memtables: Vec<_> = self.tables.memtables().collect();
        let tiers = self.version().tiers();
        for at in 0..memtables.len() + tiers.len() {
            let mut count = |key: &[u8], value: Option<crate::ValueSlice<'_>>, weight: f64| {
                let Some(value) = value else { return };
                if !self.is_shadowed(key, at) {
                    let bytes = key.len() as f64 + f64::from(value.len());
                    f(key, weight, weight * bytes);
                }
            };
            if let Some(memtable) = memtables.get(at) {
                memtable.sample(range, self.seq, &mut count)?;
            } else if let Some(tier) = tiers.get(at - memtables.len()) {
                let blocks = tier.keyed().iter().map(|run| Ok(run.blocks_in(range)?.len()));
                let blocks = blocks.collect::<Result<Vec<_>>>()?;
                let all: usize = blocks.iter().sum();
                for (run, blocks) in tier.keyed().iter().zip(blocks) {
                    run.sample(range, (BLOCKS_MAX * blocks).div_ceil(all.max(1)), &mut count)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether one of the `newer` newest sources (memtables, then tiers) has an entry or
    /// range tombstone for `key`. Tiers are checked by their filters, with a false positive rate of
    /// about 1 %.
    fn is_shadowed(&self, key: &[u8], newer: usize) -> bool {
        // bug index.shadowed_counted: return false;
        let mut left = newer;
        for memtable in self.tables.memtables() {
            let Some(less) = left.checked_sub(1) else { return false };
            if memtable.get(key, self.seq).is_some() {
                return true;
            }
            left = less;
        }
        let hash = key_hash(key);
        self.version().tiers().iter().take(left).any(|tier| tier.may_hold(key, hash))
    }
}
