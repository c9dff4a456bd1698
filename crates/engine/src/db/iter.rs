//! Iteration: keys and references from the index, values fetched in slices that grow, each slice
//! sorted by place.

use crate::store::{SLICE_BYTES_MAX, SLICE_PAIRS_MAX, Store, View};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_index::ViewIter;
use stele_storage::{Order, Pair};
use stele_types::{KeyRange, Result};

/// Values of the first slice; a short scan then reads little it does not return.
const FIRST_SLICE_PAIRS: usize = 16;

/// Pairs of one point in time, in key order. Writes and deletes made after it was created do not
/// show. While it lives, the space of what it may yield is not freed. Long values of neighbours may
/// share memory: who keeps few of them for long keeps copies.
pub struct DbIter {
    store: Arc<Store>,
    view: View,
    references: ViewIter,
    ready: VecDeque<Pair>,
    slice_pairs: usize,
    slice_bytes: u64,
    keys_only: bool,
    now_s: u64,
    done: bool,
    seen: Seen,
}

/// What was read, for the scan load that decides which ranges get sorted.
#[derive(Default)]
struct Seen {
    first: Bytes,
    last: Bytes,
    values: u64,
    bytes: u64,
}

impl DbIter {
    pub(super) fn new(
        store: &Arc<Store>,
        range: KeyRange,
        order: Order,
        keys_only: bool,
        now_s: u64,
    ) -> Result<Self> {
        let view = View::new(store.shared());
        let references = view.references(range, order)?;
        Ok(Self {
            store: store.clone(),
            view,
            references,
            ready: VecDeque::new(),
            slice_pairs: FIRST_SLICE_PAIRS,
            slice_bytes: SLICE_BYTES_MAX,
            keys_only,
            now_s,
            done: false,
            seen: Seen::default(),
        })
    }

    /// Says how many pairs and bytes will be asked for, so that just their values are read together.
    pub(super) fn expect(mut self, pairs: usize, bytes: usize) -> Self {
        self.slice_pairs = pairs.clamp(1, SLICE_PAIRS_MAX);
        self.slice_bytes = (bytes as u64).clamp(1, SLICE_BYTES_MAX);
        self
    }

    fn fill(&mut self) -> Result<()> {
        let slice = self.view.next_slice(
            &mut self.references,
            self.slice_pairs,
            self.slice_bytes,
            self.keys_only,
        )?;
        self.slice_pairs = (self.slice_pairs * 4).min(SLICE_PAIRS_MAX);
        self.done = slice.is_empty();
        if let (Some(first), Some(last)) = (slice.first(), slice.last()) {
            if self.seen.values == 0 {
                self.seen.first = first.key.clone();
            }
            self.seen.last = last.key.clone();
            self.seen.values += slice.len() as u64;
            self.seen.bytes += slice.iter().map(|pair| pair.value.len() as u64).sum::<u64>();
        }
        self.ready.extend(slice);
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        loop {
            if let Some(pair) = self.ready.pop_front() {
                if pair.expires_at_s != 0 && pair.expires_at_s <= self.now_s {
                    continue;
                }
                return Ok(Some(pair));
            }
            if self.done {
                return Ok(None);
            }
            self.fill()?;
        }
    }
}

impl Iterator for DbIter {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(pair) => pair.map(Ok),
            Err(error) => {
                // After an error nothing more is yielded: a gap must not look like an end reached.
                self.done = true;
                self.ready.clear();
                Some(Err(error))
            }
        }
    }
}

impl Drop for DbIter {
    fn drop(&mut self) {
        if self.seen.bytes == 0 {
            return;
        }
        let (low, high) = if self.seen.first <= self.seen.last {
            (&self.seen.first, &self.seen.last)
        } else {
            (&self.seen.last, &self.seen.first)
        };
        let range = KeyRange::new(low.clone(), high.clone());
        self.store.gc().note_scan(&range, self.seen.values, self.seen.bytes);
    }
}

impl std::fmt::Debug for DbIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbIter").field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}
