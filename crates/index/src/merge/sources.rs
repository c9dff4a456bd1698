//! Several sorted sources as one: a heap of cursors, the newest source first among equal keys.

use crate::cursor::Cursor;
use crate::memtable::{MemtableCursor, RangeSet};
use crate::slot::Found;
use crate::version::TierCursor;
use std::cmp::Ordering;
use std::sync::Arc;
use stele_types::{Error, Result, mutant};

/// A position in a memtable or in a tier.
pub(crate) enum SourceCursor {
    Memtable(MemtableCursor),
    Tier(TierCursor),
}

macro_rules! each {
    ($self:expr, $cursor:ident => $call:expr) => {
        match $self {
            SourceCursor::Memtable($cursor) => $call,
            SourceCursor::Tier($cursor) => $call,
        }
    };
}

/// One source and the ranges it deletes from all older ones.
pub(crate) struct Source {
    cursor: SourceCursor,
    ranges: Arc<RangeSet>,
    /// The first bytes of the key stood on, big-endian: decides most comparisons.
    prefix: u64,
}

impl Source {
    pub fn new(cursor: SourceCursor, ranges: Arc<RangeSet>) -> Self {
        Self { cursor, ranges, prefix: 0 }
    }

    fn key(&self) -> &[u8] {
        each!(&self.cursor, c => c.key())
    }

    fn valid(&self) -> bool {
        each!(&self.cursor, c => c.valid())
    }

    fn step(&mut self, reverse: bool) -> Result<()> {
        match reverse {
            false => each!(&mut self.cursor, c => c.next())?,
            true => each!(&mut self.cursor, c => c.prev())?,
        }
        self.prefix = prefix_of(self.key());
        Ok(())
    }
}

fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0; 8];
    padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(padded)
}

/// A position in the merge of all sources: one entry per key, the newest.
pub(crate) struct Merged {
    /// Newest first.
    sources: Vec<Source>,
    /// Indexes of the valid sources; the first is the one stood on.
    heap: Vec<usize>,
    reverse: bool,
    /// The key left last, to pass its older entries.
    passed: Vec<u8>,
    /// Whether any source deletes ranges.
    hides: bool,
}

impl Merged {
    /// Takes the sources newest first. Stands nowhere until placed.
    pub fn new(sources: Vec<Source>) -> Self {
        let hides = sources.iter().any(|source| !source.ranges.is_empty());
        let heap = Vec::with_capacity(sources.len());
        Self { sources, heap, reverse: false, passed: Vec::new(), hides }
    }

    /// Moves to the first key at or above `key` and goes upwards from there.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.place(false, |cursor| each!(cursor, c => c.seek(key)))
    }

    /// Moves to the last key below `bound` (`None`: the very last) and goes downwards from there.
    pub fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.place(true, |cursor| each!(cursor, c => c.seek_before(bound)))
    }

    fn place(
        &mut self,
        reverse: bool,
        mut place: impl FnMut(&mut SourceCursor) -> Result<()>,
    ) -> Result<()> {
        self.reverse = reverse;
        self.heap.clear();
        for (index, source) in self.sources.iter_mut().enumerate() {
            place(&mut source.cursor)?;
            source.prefix = prefix_of(source.key());
            if source.valid() {
                self.heap.push(index);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
        Ok(())
    }

    /// The key stood on; `None` at the end.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.top().map(Source::key)
    }

    /// The newest entry of the key stood on.
    #[inline]
    pub fn found(&self) -> Result<Found> {
        match self.top() {
            Some(source) => each!(&source.cursor, c => c.found()),
            None => Err(Error::invalid("the merge stands at its end")),
        }
    }

    /// Whether a newer source deleted a range with the key stood on.
    #[inline]
    pub fn hidden(&self) -> bool {
        if !self.hides {
            return false;
        }
        let (Some(key), Some(&top)) = (self.key(), self.heap.first()) else { return false };
        self.sources.iter().take(top).any(|source| source.ranges.covers(key))
    }

    /// Moves to the following key, past older entries of the one stood on.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        if self.heap.len() > 1 {
            self.passed.clear();
            if let Some(source) = self.heap.first().and_then(|&top| self.sources.get(top)) {
                self.passed.extend_from_slice(source.key());
            }
            self.step_top()?;
            while self.key().is_some_and(|key| key == self.passed) {
                self.step_top()?;
            }
            return Ok(());
        }
        self.step_top()
    }

    fn top(&self) -> Option<&Source> {
        self.sources.get(*self.heap.first()?)
    }

    fn step_top(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        let Some(source) = self.sources.get_mut(top) else { return Ok(()) };
        if let Err(error) = source.step(self.reverse) {
            self.heap.clear();
            return Err(error);
        }
        if !source.valid() {
            self.heap.swap_remove(0);
        }
        if self.heap.len() > 1 {
            self.sift_down(0);
        }
        Ok(())
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child =
                if right < self.heap.len() && self.before(right, left) { right } else { left };
            if !self.before(child, at) {
                return;
            }
            self.heap.swap(child, at);
            at = child;
        }
    }

    /// Whether the source at place `a` of the heap comes before the one at place `b`.
    fn before(&self, a: usize, b: usize) -> bool {
        let (Some(&a), Some(&b)) = (self.heap.get(a), self.heap.get(b)) else { return false };
        let (Some(left), Some(right)) = (self.sources.get(a), self.sources.get(b)) else {
            return false;
        };
        let by_key = left.prefix.cmp(&right.prefix).then_with(|| left.key().cmp(right.key()));
        match if self.reverse { by_key.reverse() } else { by_key } {
            Ordering::Less => true,
            Ordering::Greater => false,
            // Among equal keys the newer source comes first: it has the smaller index.
            Ordering::Equal if mutant::active("index.wrong_merge_order") => a > b,
            Ordering::Equal => a < b,
        }
    }
}

impl std::fmt::Debug for Merged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merged")
            .field("key", &self.key())
            .field("sources", &self.sources.len())
            .finish()
    }
}
