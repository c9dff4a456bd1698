//! Entries taken from the inputs of a merge ahead of its output, so that values that move are read
//! together: one by one, each would wait for the device by itself.

use super::{DropRule, Leaving, Merged, ValueMover};
use crate::slot::Found;
use stele_types::{Result, ValueRef};

/// Most values that are read together, so that a device of few reads a second has done them within a
/// tenth of one.
const VALUES_MAX: usize = 256;
/// About how many bytes of them: as many as a step may work on, within these.
const VALUE_BYTES: (u64, u64) = (64 << 10, 4 << 20);
/// Most entries, and bytes of their keys and inline values, held for that.
const ENTRIES_MAX: usize = 8192;
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// Bytes counted for an entry besides key and inline value.
pub(super) const ENTRY_BYTES: u64 = 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    keys: Vec<u8>,
    /// Where each key ends, and its entry.
    entries: Vec<(usize, Found)>,
    next: usize,
}

impl Ahead {
    pub fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Takes the next entries that stay, once the last ones are used up, for a step of `bytes_max`;
    /// returns the bytes of those that don't.
    pub fn fill(
        &mut self,
        merged: &mut Merged,
        rule: &DropRule,
        mover: &mut dyn ValueMover,
        bytes_max: u64,
    ) -> Result<u64> {
        let value_bytes_max = bytes_max.clamp(VALUE_BYTES.0, VALUE_BYTES.1);
        self.keys.clear();
        self.entries.clear();
        self.next = 0;
        let (mut passed_bytes, mut inline_bytes) = (0, 0);
        let (mut leaving, mut leaving_bytes) = (Vec::new(), 0);
        while let Some(key) = merged.key() {
            let found = if merged.hidden() { None } else { Some(merged.found()?) };
            match found.filter(|found| rule.keeps(key, found)) {
                None => passed_bytes += key.len() as u64 + ENTRY_BYTES,
                Some(found) => {
                    match &found {
                        Found::Value { value: ValueRef::At(at), .. } if mover.moves(key, at) => {
                            leaving.push((self.entries.len(), *at));
                            leaving_bytes += u64::from(at.length);
                        }
                        Found::Value { value: ValueRef::Inline(value), .. } => {
                            inline_bytes += value.len();
                        }
                        _ => {}
                    }
                    self.keys.extend_from_slice(key);
                    self.entries.push((self.keys.len(), found));
                }
            }
            merged.advance()?;
            if leaving.len() >= VALUES_MAX
                || leaving_bytes >= value_bytes_max
                || self.entries.len() >= ENTRIES_MAX
                || self.keys.len() + inline_bytes >= MEMORY_BYTES_MAX
                || passed_bytes >= value_bytes_max
            {
                break;
            }
        }
        let leaving: Vec<Leaving<'_>> =
            leaving.into_iter().map(|(entry, at)| (self.key(entry), at)).collect();
        mover.read_ahead(&leaving);
        Ok(passed_bytes)
    }

    /// The next entry.
    pub fn pop(&mut self) -> Option<(&[u8], Found)> {
        let entry = self.next;
        let found = self.entries.get(entry)?.1.clone();
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
