//! Pairs of several shards in key order.

use crate::db::DbIter;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;
use stele_storage::{Order, Pair};
use stele_types::{Error, Result};

/// Pairs of several shards in key order. Each shard's part shows one moment of that shard; all of
/// these moments lie inside the call that created the iterator, and they have no common instant.
///
/// Invariant: a pair is yielded only if no shard can have one before it. So the iterator ends with
/// the error of a shard that fails, at the place of the pairs that it cannot read.
#[derive(Debug)]
pub struct ShardsIter {
    sources: Vec<Source>,
    state: State,
    order: Order,
    failed: bool,
}

#[derive(Debug)]
enum State {
    /// The shards have ranges, and `sources` the scan's order: one after the other.
    Chain { at: usize },
    /// The first pairs of the shards, and the sources of which the first pair is not known.
    Merge { heads: BinaryHeap<Head>, unknown: Vec<usize> },
}

#[derive(Debug)]
pub(super) struct Source {
    pub dir: Arc<Path>,
    /// An error is yielded in place of all pairs of the shard.
    pub pairs: Result<Box<DbIter>>,
}

#[derive(Debug)]
struct Head {
    pair: Pair,
    source: usize,
    order: Order,
}

impl Ord for Head {
    /// The heap yields its greatest element first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.pair.key.cmp(&other.pair.key);
        let by_order = match self.order {
            Order::Forward => by_key.reverse(),
            Order::Reverse => by_key,
        };
        by_order.then_with(|| other.source.cmp(&self.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Source {
    fn next(&mut self) -> Result<Option<Pair>> {
        match &mut self.pairs {
            Ok(pairs) => {
                pairs.next().transpose().map_err(|error| Error::of_shard(&self.dir, error))
            }
            Err(error) => Err(error.duplicate()),
        }
    }
}

impl ShardsIter {
    /// Iterates over shards with ranges; `sources` ascend.
    pub(super) fn chain(mut sources: Vec<Source>, order: Order) -> Self {
        if order == Order::Reverse {
            sources.reverse();
        }
        Self { sources, state: State::Chain { at: 0 }, order, failed: false }
    }

    /// Iterates over shards of which each may hold any key.
    pub(super) fn merge(sources: Vec<Source>, order: Order) -> Self {
        let unknown = (0..sources.len()).collect();
        let state = State::Merge { heads: BinaryHeap::new(), unknown };
        Self { sources, state, order, failed: false }
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        match &mut self.state {
            State::Chain { at } => {
                while let Some(source) = self.sources.get_mut(*at) {
                    if let Some(pair) = source.next()? {
                        return Ok(Some(pair));
                    }
                    *at += 1;
                }
                Ok(None)
            }
            State::Merge { heads, unknown } => {
                while let Some(source) = unknown.pop() {
                    let Some(from) = self.sources.get_mut(source) else { continue };
                    if let Some(pair) = from.next()? {
                        heads.push(Head { pair, source, order: self.order });
                    }
                }
                let first = heads.pop();
                unknown.extend(first.iter().map(|head| head.source));
                Ok(first.map(|head| head.pair))
            }
        }
    }
}

impl Iterator for ShardsIter {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let pair = self.step();
        self.failed = pair.is_err();
        pair.transpose()
    }
}
