//! Fences: for each block its size and the shortest key that separates it from the previous block.
//!
//! ```text
//! part  := fence* trailer                 (one fence per block)
//! fence := block_bytes:varint key_len:varint key      (the first fence is empty)
//! ```

use super::block::shared_prefix;
use std::cmp::Ordering;
use std::ops::Range;
use stele_types::varint;

/// Fences in memory: 20 bytes per block and the separators, which are a few bytes each.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences {
    keys: Vec<u8>,
    /// End of each separator in `keys`.
    ends: Vec<u32>,
    /// End of each block in the file.
    block_ends: Vec<u64>,
    /// Length of the prefix that all separators but the first share.
    shared: usize,
    /// Eight bytes of each separator after the shared prefix, big-endian, zero padded.
    words: Vec<u64>,
}

/// Returns the shortest prefix of `first` above `below`; `below < first`.
pub(super) fn separator<'a>(below: &[u8], first: &'a [u8]) -> &'a [u8] {
    let length = shared_prefix(below, first) + 1;
    if stele_types::mutant::active("index.fence_too_short") {
        return first.get(..length - 1).unwrap_or(first);
    }
    first.get(..length).unwrap_or(first)
}

fn word(key: &[u8]) -> u64 {
    let mut padded = [0; 8];
    let length = key.len().min(8);
    padded[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(padded)
}

impl Fences {
    pub(super) fn push(&mut self, separator: &[u8], block_bytes: u64) {
        self.keys.extend_from_slice(separator);
        self.ends.push(self.keys.len() as u32);
        self.block_ends.push(self.data_bytes() + block_bytes);
    }

    /// Adds to the size of the last block, known once it is written.
    pub(super) fn set_last_bytes(&mut self, block_bytes: u64) {
        if let Some(end) = self.block_ends.last_mut() {
            *end += block_bytes;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of all blocks.
    pub(super) fn data_bytes(&self) -> u64 {
        self.block_ends.last().copied().unwrap_or(0)
    }

    pub(super) fn key(&self, i: usize) -> &[u8] {
        let end = |i: usize| self.ends.get(i).map_or(0, |end| *end as usize);
        let start = if i == 0 { 0 } else { end(i - 1) };
        self.keys.get(start..end(i)).unwrap_or_default()
    }

    /// Returns the range of a block in the file.
    #[inline]
    pub(super) fn block(&self, i: usize) -> Option<Range<u64>> {
        let start = if i == 0 { 0 } else { *self.block_ends.get(i - 1)? };
        Some(start..*self.block_ends.get(i)?)
    }

    /// Returns the only block that may hold `key`.
    pub(super) fn find(&self, key: &[u8]) -> usize {
        self.search(key, |order| order != Ordering::Greater)
    }

    /// Returns the last block that may hold a key below `bound`.
    pub(super) fn find_below(&self, bound: &[u8]) -> usize {
        self.search(bound, |order| order == Ordering::Less)
    }

    /// Returns the last fence with a wanted order to `key`; the first fence always counts as
    /// wanted.
    fn search(&self, key: &[u8], wanted: impl Fn(Ordering) -> bool) -> usize {
        let Some(last) = self.len().checked_sub(1) else { return 0 };
        let common = self.key(last).get(..self.shared).unwrap_or_default();
        let key_start = key.get(..self.shared.min(key.len())).unwrap_or_default();
        match key_start.cmp(common) {
            Ordering::Less => return 0,
            Ordering::Greater => return last,
            Ordering::Equal => {}
        }
        let key_word = word(key.get(self.shared..).unwrap_or_default());
        let (mut low, mut high) = (1, last + 1);
        while low < high {
            let middle = low.midpoint(high);
            let order = self.words.get(middle).map_or(Ordering::Equal, |word| word.cmp(&key_word));
            let order = order.then_with(|| self.key(middle).cmp(key));
            if wanted(order) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - 1
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.keys.len() + self.len() * 20
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for i in 0..self.len() {
            let bytes = self.block(i).map_or(0, |place| place.end - place.start);
            varint::put(out, bytes);
            varint::put_bytes(out, self.key(i));
        }
    }

    /// Decodes a part; `None` unless it holds `blocks` ascending fences over exactly `data_bytes`.
    pub(super) fn decode(mut part: &[u8], blocks: u64, data_bytes: u64) -> Option<Self> {
        let mut fences = Self::default();
        while !part.is_empty() {
            let bytes = varint::take(&mut part).filter(|bytes| *bytes <= data_bytes)?;
            let key = varint::take_bytes(&mut part)?;
            fences.push(key, bytes);
            let i = fences.len() - 1;
            if i > 0 && fences.key(i - 1) >= key {
                return None;
            }
        }
        if fences.len() as u64 != blocks || fences.data_bytes() != data_bytes {
            return None;
        }
        Some(fences.ready())
    }

    /// Computes the shared prefix and the words that the search needs.
    pub(super) fn ready(mut self) -> Self {
        if let Some(last) = self.len().checked_sub(1).filter(|last| *last > 0) {
            self.shared = shared_prefix(self.key(1), self.key(last));
        }
        let after = |i| word(self.key(i).get(self.shared..).unwrap_or_default());
        self.words = (0..self.len()).map(after).collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fences(keys: &[&str]) -> Fences {
        let mut fences = Fences::default();
        keys.iter().for_each(|key| fences.push(key.as_bytes(), 10));
        let mut out = Vec::new();
        fences.encode(&mut out);
        Fences::decode(&out, keys.len() as u64, 10 * keys.len() as u64).unwrap()
    }

    #[test]
    fn a_key_belongs_to_the_last_fence_not_above_it() {
        let keys = ["", "region/b", "region/bcdefghijk", "region/bcdefghijkl", "region/c"];
        let some = fences(&keys);
        let probes =
            ["", "a", "region", "region/", "region/a", "region/bb", "region/bcdefghijkk", "s"];
        for probe in keys.iter().chain(&probes) {
            let at_or_below = keys.iter().rposition(|key| key <= probe).unwrap();
            let below = keys.iter().rposition(|key| key < probe).unwrap_or(0);
            assert_eq!(some.find(probe.as_bytes()), at_or_below, "{probe}");
            assert_eq!(some.find_below(probe.as_bytes()), below, "{probe}");
        }
        assert_eq!((fences(&[""]).find(b"x"), Fences::default().find(b"x")), (0, 0));
    }

    #[test]
    fn separators_are_short_and_lie_between() {
        assert_eq!(separator(b"abcx", b"abdyyy"), b"abd");
        assert_eq!(separator(b"ab", b"abc"), b"abc");
        assert_eq!(separator(b"", b"zebra"), b"z");
        assert_eq!(separator(b"a", b"a\0"), b"a\0");
    }

    #[test]
    fn fences_out_of_order_or_of_other_lengths_are_refused() {
        let mut out = Vec::new();
        ["", "b", "a"].iter().for_each(|key| {
            varint::put(&mut out, 10);
            varint::put_bytes(&mut out, key.as_bytes());
        });
        assert!(Fences::decode(&out, 3, 30).is_none());
        assert!(Fences::decode(&out[..5], 2, 30).is_none());
        assert!(Fences::decode(&out[..out.len() - 1], 3, 30).is_none());
    }
}
