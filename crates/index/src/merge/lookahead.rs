//! Entries taken from the inputs of a merge ahead of its output, so that values that move are read
//! together, sorted by place: in key order each short one would take a read, and wait for it.

use super::{DropRule, Leaving, Merged, ValueMover};
use crate::slot::Found;
use std::mem;
use stele_types::{Locator, Result, ValueRef};

/// Most bytes of short values, and most values, that are held at a time. So many of a store of ten
/// times as much lie near each other: one read takes hundreds.
const SHORT_BYTES_MAX: u64 = 64 << 20;
const VALUES_MAX: usize = 64 << 10;
/// Values from here on take a read each however many are held: few are.
const LONG_VALUE_BYTES: u32 = 4 << 10;
const LONG_BYTES_MAX: u64 = 4 << 20;
/// Most entries, and bytes of their keys and inline values, held for that.
const ENTRIES_MAX: usize = 2 * VALUES_MAX;
const MEMORY_BYTES_MAX: usize = 8 << 20;

/// Bytes counted for an entry besides key and inline value.
pub(super) const ENTRY_BYTES: u64 = 20;

/// What is done next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Taking,
    Reading,
    Placing,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lookahead {
    stage: Stage,
    keys: Vec<u8>,
    /// Where each key ends, and its entry.
    entries: Vec<(usize, Found)>,
    next: usize,
    /// Values that move: their entries and places.
    leaving: Vec<(usize, Locator)>,
    short_bytes: u64,
    long_bytes: u64,
    inline_bytes: usize,
}

impl Lookahead {
    pub fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Once [`Lookahead::pop`] has nothing: takes the next entries that stay, or reads for those taken, about
    /// `bytes_max`; returns the bytes. Then `pop` has one, or there is more to do.
    pub fn fill(
        &mut self,
        merged: &mut Merged,
        rule: &DropRule,
        mover: &mut dyn ValueMover,
        bytes_max: u64,
    ) -> Result<u64> {
        if self.stage == Stage::Reading {
            let bytes = mover.read_on(bytes_max);
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
            let found = if merged.hidden() { None } else { Some(merged.found()?) };
            bytes += key.len() as u64 + ENTRY_BYTES;
            if let Some(found) = found.filter(|found| rule.keeps(key, found)) {
                match &found {
                    Found::Value { value: ValueRef::At(at), .. } if mover.moves(key, at) => {
                        self.leave(*at);
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
        let leaving: Vec<Leaving<'_>> =
            self.leaving.iter().map(|(entry, at)| (self.key(*entry), *at)).collect();
        mover.read_ahead(&leaving);
        self.stage = Stage::Reading;
        Ok(bytes)
    }

    /// Makes room for the next entries: the last ones are placed.
    fn clear(&mut self) {
        let (mut keys, mut entries) = (mem::take(&mut self.keys), mem::take(&mut self.entries));
        keys.clear();
        entries.clear();
        *self = Self { keys, entries, ..Self::default() };
    }

    /// The value of the next entry moves.
    fn leave(&mut self, at: Locator) {
        self.leaving.push((self.entries.len(), at));
        let sum =
            if at.length < LONG_VALUE_BYTES { &mut self.short_bytes } else { &mut self.long_bytes };
        *sum += u64::from(at.length);
    }

    fn is_full(&self) -> bool {
        self.leaving.len() >= VALUES_MAX
            || self.short_bytes >= SHORT_BYTES_MAX
            || self.long_bytes >= LONG_BYTES_MAX
            || self.entries.len() >= ENTRIES_MAX
            || self.keys.len() + self.inline_bytes >= MEMORY_BYTES_MAX
    }

    /// The next entry to place.
    pub fn pop(&mut self) -> Option<(&[u8], Found)> {
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
