//! Approximate bytes of a log above an index: what a lagging follower pins.

use std::collections::VecDeque;

/// Least bytes between two marks.
const MARK_BYTES: u64 = 1 << 20;

/// Marks of the bytes written up to an index.
#[derive(Default)]
pub(super) struct Sizes {
    /// (index, bytes written up to and including it), ascending.
    marks: VecDeque<(u64, u64)>,
    written: u64,
}

impl Sizes {
    /// Adds an entry. One at an index that exists replaces that entry and all after it.
    pub fn add(&mut self, index: u64, bytes: u64) {
        while self.marks.back().is_some_and(|(marked, _)| *marked >= index) {
            self.marks.pop_back();
        }
        self.written += bytes;
        let marked = self.marks.back().map_or(0, |(_, bytes)| *bytes);
        if self.marks.is_empty() || self.written - marked >= MARK_BYTES {
            self.marks.push_back((index, self.written));
        }
    }

    pub fn bytes_above(&self, index: u64) -> u64 {
        let at = self.marks.partition_point(|(marked, _)| *marked <= index);
        let below = at.checked_sub(1).and_then(|at| self.marks.get(at)).map(|(_, bytes)| *bytes);
        let first = || self.marks.front().map_or(self.written, |(_, bytes)| *bytes);
        self.written - below.unwrap_or_else(first)
    }

    pub fn index_with_bytes_above(&self, bytes: u64) -> u64 {
        let fits = |mark: &&(u64, u64)| self.written - mark.1 <= bytes;
        match self.marks.iter().find(fits) {
            Some((index, _)) if self.marks.front().is_none_or(|first| first.0 != *index) => *index,
            _ => 0,
        }
    }

    pub fn drop_through(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|(marked, _)| *marked <= index) {
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_above_an_index_is_known_to_a_mark() {
        let mut sizes = Sizes::default();
        (1..=100).for_each(|index| sizes.add(index, 256 << 10));
        let above = sizes.bytes_above(60);
        assert!((39 << 18..=44 << 18).contains(&above), "{above}");
        let index = sizes.index_with_bytes_above(10 << 20);
        assert!((60..=64).contains(&index), "{index}");
        assert_eq!(sizes.index_with_bytes_above(1 << 40), 0);
        sizes.drop_through(60);
        assert_eq!(sizes.bytes_above(60), above);
        // A conflict replaces the end of the log.
        sizes.add(90, 256 << 10);
        assert!(sizes.bytes_above(60) >= above);
    }
}
