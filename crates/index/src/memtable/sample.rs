//! Samples of a memtable's entries, for estimates.

use super::Memtable;
use super::record::VersionRecord;
use crate::cursor::Cursor;
use crate::cursor::ValueSlice;
use std::sync::Arc;
use stele_types::{KeyRange, Result, Seq};

/// Estimated entries up to which all entries are returned.
const WHOLE_MAX: f64 = 1024.0;
/// Number of places sampled otherwise, and entries at each.
const PLACES: usize = 64;
const ENTRIES: usize = 16;

/// Receiver of key, value (`None`: deleted) and the number of entries that this one represents.
pub(crate) type SampleSink<'a> = dyn FnMut(&[u8], Option<ValueSlice<'_>>, f64) + 'a;

impl Memtable {
    /// Passes some entries of `range` visible at `at`, spread over the range, to `f`.
    pub(crate) fn sample(
        self: &Arc<Self>,
        range: &KeyRange,
        at: Seq,
        f: &mut SampleSink<'_>,
    ) -> Result<()> {
        let share = |key: &[u8]| self.tree.share_below(key);
        let from = share(&range.start);
        let to = if range.end.is_empty() { 1.0 } else { share(&range.end) };
        let entries = (to - from).max(0.0) * self.entries() as f64;
        let mut cursor = self.cursor(at);
        if entries <= WHOLE_MAX {
            cursor.seek(&range.start)?;
            // The estimate may be wrong; the walk is bounded nevertheless.
            return emit(&mut cursor, range, 2 * WHOLE_MAX as usize, 1.0, f);
        }
        let weight = entries / (PLACES * ENTRIES) as f64;
        for place in 0..PLACES {
            let share = from + (to - from) * (place as f64 + 0.5) / PLACES as f64;
            cursor.seek(&self.key_at(share).max(range.start.to_vec()))?;
            emit(&mut cursor, range, ENTRIES, weight, f)?;
        }
        Ok(())
    }

    /// Returns a key with about the given share of all keys below it.
    fn key_at(&self, share: f64) -> Vec<u8> {
        let record = self.tree.read_leaf_at(share, |leaf, meta| match meta.count {
            0 => 0,
            _ => leaf.record(0),
        });
        let mut key = Vec::new();
        if record != 0 {
            VersionRecord::at(&self.tree.arena, record).key_into(&mut key);
        }
        key
    }
}

fn emit(
    cursor: &mut impl Cursor,
    range: &KeyRange,
    entries_max: usize,
    weight: f64,
    f: &mut SampleSink<'_>,
) -> Result<()> {
    for _ in 0..entries_max {
        if !cursor.valid() || !range.is_below_end(cursor.key()) {
            break;
        }
        f(cursor.key(), cursor.value().map(|(value, _)| value), weight);
        cursor.next()?;
    }
    Ok(())
}
