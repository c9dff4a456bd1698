//! Scan load of key ranges. Scans of scattered values pay for sorting them.

use crate::policy::HotRange;
use bytes::Bytes;
use stele_types::KeyRange;

/// Limit for the ranges remembered; a new one replaces the least scanned one.
const RANGES_MAX: usize = 32;

/// Bytes that a scan pays for each scattered value: a page, which its read takes from the device.
const SCATTERED_VALUE_BYTES: u64 = 4 << 10;
/// Limit for what a scan pays, in times of the bytes of its values.
const OF_BYTES_MAX: u64 = 4;

/// Reads of one scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Values read.
    pub values: u64,
    /// Bytes of the values.
    pub bytes: u64,
    /// Reads in excess of one contiguous read; 0 in a range in key order.
    pub scattered_reads: u64,
}

impl Scanned {
    /// Returns the bytes that the scan pays for sorting.
    ///
    /// Invariant: a scan pays for its scattered values, not for those that lie in key order beside
    /// them. A range in key order pays nothing; otherwise it would be sorted repeatedly.
    /// Test: `what_lies_in_key_order_pays_nothing_and_each_scattered_value_a_page`.
    fn paid_bytes(&self) -> u64 {
        // bug gc.sorted_scans_pay: return self.bytes;
        let pages = self.scattered_reads.saturating_mul(SCATTERED_VALUE_BYTES);
        // bug gc.one_scattered_value_pays_for_all: { if pages > 0 { return self.bytes; } }
        pages.min(self.bytes.saturating_mul(OF_BYTES_MAX))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Heat {
    ranges: Vec<HotRange>,
    scanned_bytes: u64,
}

impl Heat {
    /// Records a scan of `range`. Overlapping ranges are joined.
    pub(crate) fn note(&mut self, range: &KeyRange, scanned: Scanned) {
        let (bytes, scanned_bytes) = (scanned.bytes, scanned.paid_bytes());
        if range.is_empty() || scanned_bytes == 0 {
            return;
        }
        self.scanned_bytes = self.scanned_bytes.saturating_add(scanned_bytes);
        let mut merged = HotRange { range: range.clone(), bytes, scanned_bytes };
        let mut at = 0;
        while at < self.ranges.len() {
            let overlaps = self.ranges.get(at).is_some_and(|hot| hot.range.overlaps(&merged.range));
            if overlaps {
                merged = join(merged, self.ranges.swap_remove(at));
                at = 0;
            } else {
                at += 1;
            }
        }
        if self.ranges.len() == RANGES_MAX {
            let coldest = self.ranges.iter().enumerate().min_by_key(|(_, hot)| hot.scanned_bytes);
            if let Some((coldest, _)) = coldest {
                self.ranges.swap_remove(coldest);
            }
        }
        self.ranges.push(merged);
    }

    /// Returns the range with the most scanned bytes for its size.
    pub(crate) fn hottest(&self) -> Option<&HotRange> {
        let times = |hot: &HotRange| hot.scanned_bytes / hot.bytes.max(1);
        self.ranges
            .iter()
            .max_by(|a, b| times(a).cmp(&times(b)).then_with(|| b.range.start.cmp(&a.range.start)))
    }

    /// Returns the bytes scanned since everything was sorted.
    pub(crate) fn scanned_bytes(&self) -> u64 {
        self.scanned_bytes
    }

    /// Spends what scans paid for `range`, which is now sorted.
    pub(crate) fn spend(&mut self, range: &KeyRange) {
        if *range == KeyRange::all() {
            self.scanned_bytes = 0;
        }
        for hot in self.ranges.iter().filter(|hot| hot.range.overlaps(range)) {
            self.scanned_bytes = self.scanned_bytes.saturating_sub(hot.scanned_bytes);
        }
        self.ranges.retain(|hot| !hot.range.overlaps(range));
    }
}

/// Joins two ranges. A range inside the other adds no size.
fn join(a: HotRange, b: HotRange) -> HotRange {
    let range = hull(&a.range, &b.range);
    let nested = range == a.range || range == b.range;
    let bytes = if nested { a.bytes.max(b.bytes) } else { a.bytes + b.bytes / 2 };
    HotRange { range, bytes, scanned_bytes: a.scanned_bytes.saturating_add(b.scanned_bytes) }
}

fn hull(a: &KeyRange, b: &KeyRange) -> KeyRange {
    let start = a.start.clone().min(b.start.clone());
    let end = match a.end.is_empty() || b.end.is_empty() {
        true => Bytes::new(),
        false => a.end.clone().max(b.end.clone()),
    };
    KeyRange { start, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scattered(bytes: u64) -> Scanned {
        Scanned { values: 10, bytes, scattered_reads: 9 }
    }

    #[test]
    fn what_lies_in_key_order_pays_nothing_and_each_scattered_value_a_page() {
        let paid = |bytes, scattered_reads| {
            let mut heat = Heat::default();
            heat.note(&KeyRange::new("a", "b"), Scanned { values: 10, bytes, scattered_reads });
            heat.scanned_bytes()
        };
        assert_eq!(paid(10 << 10, 0), 0);
        assert_eq!(paid(10 << 10, 9), 9 * (4 << 10), "a page each, of ten values of 1 KiB");
        assert_eq!(paid(10 << 10, 1), 4 << 10, "the others lie in key order");
        assert_eq!(paid(10 << 20, 9), 9 * (4 << 10), "however long they are");
        assert_eq!(paid(5000, 9), 4 * 5000);
    }

    #[test]
    fn repeated_scans_of_one_range_add_up_and_are_spent_by_sorting() {
        let mut heat = Heat::default();
        for _ in 0..5 {
            heat.note(&KeyRange::new("c", "f"), scattered(100));
        }
        heat.note(&KeyRange::new("x", "z"), scattered(100));
        let hot = heat.hottest().unwrap();
        assert_eq!((hot.bytes, hot.scanned_bytes), (100, 2000));
        assert_eq!(heat.scanned_bytes(), 2400);
        heat.spend(&KeyRange::new("d", "e"));
        assert_eq!(heat.hottest().unwrap().range, KeyRange::new("x", "z"));
        assert_eq!(heat.scanned_bytes(), 400);
    }

    #[test]
    fn overlapping_scans_join_and_memory_stays_bounded() {
        let mut heat = Heat::default();
        heat.note(&KeyRange::new("b", "d"), scattered(10));
        heat.note(&KeyRange::new("c", ""), scattered(20));
        assert_eq!(heat.hottest().unwrap().range, KeyRange::new("b", ""));
        let mut heat = Heat::default();
        for i in 0..1000u32 {
            let start = (i * 2).to_be_bytes().to_vec();
            let end = (i * 2 + 1).to_be_bytes().to_vec();
            heat.note(&KeyRange::new(start, end), scattered(u64::from(i) + 1));
        }
        assert_eq!(heat.ranges.len(), RANGES_MAX);
    }
}
