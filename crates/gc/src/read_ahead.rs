//! Values that are about to move, read before that: in the order of their places, a part at a time.

use std::mem;
use stele_index::Leaving;
use stele_log::{Log, NEAR_BYTES_MAX, Unchecked};
use stele_types::Locator;

/// The values of a part are as long as a step, but long enough to be worth a read; and all that a part
/// reads, what lies between them too, is at most so many times as much, and no longer than one read.
const VALUES_BYTES_MIN: u64 = 64 << 10;
const OF_VALUES: u64 = 4;
const PART_BYTES_MAX: u64 = 4 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Lengths of the keys and places of the values, in the order in which they are placed.
    leaving: Vec<(usize, Locator)>,
    values: Vec<Unchecked>,
    placed: usize,
    /// Which of them, by place, and how many of these are read.
    by_place: Vec<usize>,
    read: usize,
}

impl ReadAhead {
    pub fn new(leaving: &[Leaving<'_>]) -> Self {
        let leaving: Vec<_> = leaving.iter().map(|(key, at)| (key.len(), *at)).collect();
        let mut by_place: Vec<usize> = (0..leaving.len()).collect();
        by_place.sort_unstable_by_key(|&i| leaving.get(i).map(|(_, at)| (at.file, at.offset)));
        let mut values = Vec::new();
        values.resize_with(leaving.len(), Unchecked::default);
        Self { leaving, values, placed: 0, by_place, read: 0 }
    }

    /// Reads the next part; returns its bytes, 0 when all is read.
    pub fn step(&mut self, log: &Log, step_bytes: u64) -> u64 {
        let values_bytes_max = step_bytes.max(VALUES_BYTES_MIN);
        let bytes_max = values_bytes_max.saturating_mul(OF_VALUES).min(PART_BYTES_MAX);
        let (mut part, mut places) = (Vec::new(), Vec::new());
        let (mut values_bytes, mut bytes) = (0, 0);
        let mut before: Option<Locator> = None;
        for &i in self.by_place.iter().skip(self.read) {
            let Some(next) = self.leaving.get(i) else { break };
            let length = u64::from(next.1.length);
            values_bytes += length;
            bytes += length + before.map_or(0, |before| between(&before, &next.1));
            before = Some(next.1);
            part.push(i);
            places.push(*next);
            if values_bytes >= values_bytes_max || bytes >= bytes_max {
                break;
            }
        }
        self.read += part.len();
        // What can't be read together is read one by one, which says where it fails.
        let read = log.read_records(&places).unwrap_or_default();
        for (i, read) in part.into_iter().zip(read) {
            if let Some(value) = self.values.get_mut(i) {
                *value = read;
            }
        }
        bytes
    }

    /// What was read of the value at `at`, the next one that is placed; empty if that is another.
    pub fn take(&mut self, at: &Locator) -> Unchecked {
        let (mut rest, mut taken) = (self.leaving.iter().skip(self.placed), self.placed);
        let Some(found) = rest.position(|(_, place)| place == at) else {
            return Unchecked::default();
        };
        taken += found;
        self.placed = taken + 1;
        self.values.get_mut(taken).map(mem::take).unwrap_or_default()
    }
}

/// Bytes between two places that may be read along; none where the next takes a read of its own.
fn between(before: &Locator, next: &Locator) -> u64 {
    let end = u64::from(before.offset) + u64::from(before.length);
    let between = u64::from(next.offset).saturating_sub(end);
    if before.file == next.file && between <= NEAR_BYTES_MAX { between } else { 0 }
}
