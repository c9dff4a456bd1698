//! Readahead of values that are going to move: in order of location, one part at a time.

use std::mem;
use stele_index::MovingValue;
use stele_log::{Log, NEAR_BYTES_MAX, Unchecked};
use stele_types::Locator;

/// Limits of a part. Its values are as long as a step, but at least long enough for one read. All
/// bytes that it reads, with the gaps between values, are at most so many times as much, and at
/// most one read.
const VALUES_BYTES_MIN: u64 = 64 << 10;
const OF_VALUES: u64 = 4;
const PART_BYTES_MAX: u64 = 4 << 20;

/// Readahead state of one batch of values.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Key lengths and locations of the values, in the order in which they are placed.
    moving: Vec<(usize, Locator)>,
    values: Vec<Unchecked>,
    placed: usize,
    /// Indexes of `moving`, by location; the first `read` of them have been read.
    by_place: Vec<usize>,
    read: usize,
}

impl ReadAhead {
    pub fn new(moving: &[MovingValue<'_>]) -> Self {
        let moving: Vec<_> = moving.iter().map(|(key, at)| (key.len(), *at)).collect();
        let mut by_place: Vec<usize> = (0..moving.len()).collect();
        by_place.sort_unstable_by_key(|&i| moving.get(i).map(|(_, at)| (at.file, at.offset)));
        let mut values = Vec::new();
        values.resize_with(moving.len(), Unchecked::default);
        Self { moving, values, placed: 0, by_place, read: 0 }
    }

    /// Reads the next part. Returns its bytes; 0 when all is read.
    pub fn step(&mut self, log: &Log, step_bytes: u64) -> u64 {
        let values_bytes_max = step_bytes.max(VALUES_BYTES_MIN);
        let bytes_max = values_bytes_max.saturating_mul(OF_VALUES).min(PART_BYTES_MAX);
        let (mut part, mut places) = (Vec::new(), Vec::new());
        let (mut values_bytes, mut bytes) = (0, 0);
        let mut before: Option<Locator> = None;
        for &i in self.by_place.iter().skip(self.read) {
            let Some(next) = self.moving.get(i) else { break };
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
        // If the joint read fails, the values are read one by one, which reports the failing one.
        let read = log.read_records(&places).unwrap_or_default();
        for (i, read) in part.into_iter().zip(read) {
            if let Some(value) = self.values.get_mut(i) {
                *value = read;
            }
        }
        bytes
    }

    /// Returns what was read of the value at `at`, the next one that is placed; empty if that is
    /// another.
    pub fn take(&mut self, at: &Locator) -> Unchecked {
        let (mut rest, mut position) = (self.moving.iter().skip(self.placed), self.placed);
        let Some(found) = rest.position(|(_, place)| place == at) else {
            return Unchecked::default();
        };
        position += found;
        self.placed = position + 1;
        self.values.get_mut(position).map(mem::take).unwrap_or_default()
    }
}

/// Returns the bytes between two values that one read covers; 0 where the next needs its own read.
fn between(before: &Locator, next: &Locator) -> u64 {
    let end = u64::from(before.offset) + u64::from(before.length);
    let between = u64::from(next.offset).saturating_sub(end);
    if before.file == next.file && between <= NEAR_BYTES_MAX { between } else { 0 }
}
