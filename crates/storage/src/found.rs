//! Pairs as a scan passes them on: each is borrowed from the memory that it was read into, so that what
//! takes it copies it once, to where it is needed, or shares that memory.

use crate::Pair;
use bytes::Bytes;
use std::ops::{Deref, Range};
use stele_types::KeyRange;

/// Bytes that are a part of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a> {
    bytes: &'a [u8],
    memory: &'a Bytes,
}

impl<'a> SharedSlice<'a> {
    /// Returns a part of `memory`; empty if it does not have that part.
    pub fn part(memory: &'a Bytes, part: Range<usize>) -> Self {
        Self { bytes: memory.get(part).unwrap_or_default(), memory }
    }

    /// Returns no bytes.
    pub fn empty() -> SharedSlice<'static> {
        static NONE: Bytes = Bytes::new();
        (&NONE).into()
    }

    /// Returns owned bytes, which keep all of the shared memory.
    pub fn to_bytes(self) -> Bytes {
        self.memory.slice_ref(self.bytes)
    }
}

impl<'a> From<&'a Bytes> for SharedSlice<'a> {
    fn from(memory: &'a Bytes) -> Self {
        Self { bytes: memory, memory }
    }
}

impl Deref for SharedSlice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A pair that a scan found.
#[derive(Clone, Copy, Debug)]
pub struct FoundPair<'a> {
    /// The key.
    pub key: SharedSlice<'a>,
    /// The value; empty in a keys-only scan.
    pub value: SharedSlice<'a>,
    /// Expiry in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

impl FoundPair<'_> {
    /// Returns an owned pair, which keeps the memory that the pair was read into.
    pub fn to_pair(self) -> Pair {
        let Self { key, value, expires_at_s } = self;
        Pair { key: key.to_bytes(), value: value.to_bytes(), expires_at_s }
    }
}

impl<'a> From<&'a Pair> for FoundPair<'a> {
    fn from(pair: &'a Pair) -> Self {
        let Pair { key, value, expires_at_s } = pair;
        Self { key: key.into(), value: value.into(), expires_at_s: *expires_at_s }
    }
}

/// Takes the pairs of a scan, in its order. What it holds after a scan that failed, or that did not
/// complete, is a part of the answer and of no use.
pub trait PairSink {
    /// Announces the next pairs, at most `pairs` of together at most `bytes` of keys and values.
    fn expect(&mut self, pairs: usize, bytes: u64) {
        let _ = (pairs, bytes);
    }
    /// Takes the next pair.
    fn take(&mut self, pair: FoundPair<'_>);
}

impl PairSink for Vec<Pair> {
    fn expect(&mut self, pairs: usize, _: u64) {
        self.reserve(pairs);
    }

    fn take(&mut self, pair: FoundPair<'_>) {
        self.push(pair.to_pair());
    }
}

/// Adjacent pairs that a scan passed to its sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Number of pairs.
    pub pairs: usize,
    /// Bytes of their values, as passed on.
    pub value_bytes: u64,
    /// First and last key in the order of the scan; empty without pairs. They share no memory with
    /// the pairs.
    ends: (Bytes, Bytes),
}

impl Passed {
    /// Creates what describes `pairs` pairs from one key to another.
    pub fn new(pairs: usize, value_bytes: u64, first: &[u8], last: &[u8]) -> Self {
        let ends = (Bytes::copy_from_slice(first), Bytes::copy_from_slice(last));
        Self { pairs, value_bytes, ends }
    }

    /// Creates what describes these pairs.
    pub fn of(pairs: &[Pair]) -> Self {
        let value_bytes = pairs.iter().map(|pair| pair.value.len() as u64).sum();
        let key = |pair: Option<&'_ Pair>| pair.map(|pair| pair.key.clone()).unwrap_or_default();
        Self::new(pairs.len(), value_bytes, &key(pairs.first()), &key(pairs.last()))
    }

    /// Adds the pairs that follow.
    pub fn add(&mut self, next: Self) {
        if self.pairs == 0 {
            *self = next;
        } else if next.pairs > 0 {
            self.pairs += next.pairs;
            self.value_bytes += next.value_bytes;
            self.ends.1 = next.ends.1;
        }
    }

    /// Returns the last key in the order of the scan; `None` without pairs.
    pub fn last_key(&self) -> Option<&Bytes> {
        (self.pairs > 0).then_some(&self.ends.1)
    }

    /// Returns the range from the lowest key to the highest, which is not in the range.
    pub fn range(&self) -> KeyRange {
        let (first, last) = self.ends.clone();
        if first <= last { KeyRange::new(first, last) } else { KeyRange::new(last, first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_are_kept_share_the_memory_that_they_were_read_into() {
        let memory = Bytes::from(vec![7; 100]);
        let key = SharedSlice::part(&memory, 10..30);
        assert_eq!((key.len(), key.to_bytes().as_ptr()), (20, memory[10..].as_ptr()));
        let beyond = SharedSlice::part(&memory, 90..101);
        assert!(beyond.is_empty() && beyond.to_bytes().is_empty());
        let mut taken: Vec<Pair> = Vec::new();
        taken.take(FoundPair { key, value: (&memory).into(), expires_at_s: 3 });
        assert_eq!(taken[0].value.as_ptr(), memory.as_ptr());
        assert_eq!((taken[0].key.len(), taken[0].expires_at_s), (20, 3));
        assert_eq!(FoundPair::from(&taken[0]).to_pair(), taken[0]);
    }

    #[test]
    fn what_was_passed_in_parts_is_what_was_passed_at_once() {
        let pair = |key: u8| Pair {
            key: vec![key].into(),
            value: vec![key; key.into()].into(),
            expires_at_s: 0,
        };
        for keys in [[3, 4, 5, 6], [9, 8, 7, 2]] {
            let pairs = keys.map(pair);
            let whole = Passed::of(&pairs);
            for cut in 0..=4 {
                let mut passed = Passed::of(&pairs[..cut]);
                passed.add(Passed::of(&pairs[cut..]));
                assert_eq!(passed, whole);
            }
            let (low, high) = (keys[0].min(keys[3]), keys[0].max(keys[3]));
            assert_eq!(whole.range(), KeyRange::new(vec![low], vec![high]));
            assert_eq!(whole.last_key(), Some(&pairs[3].key));
        }
        assert_eq!(Passed::of(&[]).last_key(), None);
    }
}
