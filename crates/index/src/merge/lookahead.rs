//! Entries of a merge read before its output, so that values that move are read together, sorted by
//! location. In key order each short value would take one read, and its latency.

use super::{DropRule, Merged, MovingValue, ValueMover};
use crate::cursor::Found;
use std::mem;
use stele_types::{Locator, Result, ValueRef};

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

/// Next activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Taking,
    Reading,
    Placing,
}

/// Buffer of entries, see the module.
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

    /// Adds the value of the next entry to those that move.
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

    /// Returns the next entry to place.
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
