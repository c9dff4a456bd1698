//! A consistent view: one point in time of index and value files.

use super::Shared;
use bytes::Bytes;
use std::sync::Arc;
use stele_index::{Found, View as IndexView, ViewIter};
use stele_storage::{EngineView, Order, Pair, ScanOptions};
use stele_types::{KeyRange, Locator, Result, ValueRef};

/// Most pairs and bytes that a scan fetches together.
pub(crate) const SLICE_PAIRS_MAX: usize = 4096;
pub(crate) const SLICE_BYTES_MAX: u64 = 4 << 20;

/// One point in time of a store. While it lives, no file it refers to goes.
#[derive(Debug)]
pub struct View {
    index: IndexView,
    shared: Arc<Shared>,
}

/// A pair whose value is not read yet.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub key: Bytes,
    pub value: ValueRef,
    pub expires_at_s: u64,
}

impl View {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { index: shared.index.view(), shared: shared.clone() }
    }

    pub(crate) fn references(&self, range: KeyRange, order: Order) -> Result<ViewIter> {
        let direction = match order {
            Order::Forward => stele_index::Direction::Forward,
            Order::Reverse => stele_index::Direction::Reverse,
        };
        self.index.iter(range, direction)
    }

    /// Where the value under `key` lies; nothing is read for it.
    pub(crate) fn reference(&self, key: &[u8]) -> Result<Option<(ValueRef, u64)>> {
        Ok(match self.index.get(key)? {
            Some(Found::Value { value, expires_at_s }) => Some((value, expires_at_s)),
            Some(Found::Deleted) | None => None,
        })
    }

    /// Reads the values of `references`: those in value files sorted by place, gaps coalesced.
    pub(crate) fn fetch(&self, references: Vec<Reference>) -> Result<Vec<Pair>> {
        let places: Vec<Locator> = references
            .iter()
            .filter_map(|r| if let ValueRef::At(at) = r.value { Some(at) } else { None })
            .collect();
        let mut read = self.shared.log.get_many(&places)?.into_iter();
        Ok(references
            .into_iter()
            .map(|r| Pair {
                key: r.key,
                expires_at_s: r.expires_at_s,
                value: match r.value {
                    ValueRef::Inline(value) => value,
                    ValueRef::At(_) => read.next().unwrap_or_default(),
                },
            })
            .collect())
    }

    /// The next pairs of `iter`, at most `limit`, until `bytes_max` or the most a slice holds is
    /// reached. Empty at the end.
    pub(crate) fn next_slice(
        &self,
        iter: &mut ViewIter,
        limit: usize,
        bytes_max: u64,
        keys_only: bool,
    ) -> Result<Vec<Pair>> {
        let mut slice = Vec::new();
        let mut bytes = 0;
        while slice.len() < limit.min(SLICE_PAIRS_MAX) && bytes < bytes_max.min(SLICE_BYTES_MAX) {
            let Some((key, value, expires_at_s)) = iter.next()? else { break };
            let value = if keys_only { ValueRef::Inline(Bytes::new()) } else { value };
            bytes += key.len() as u64 + u64::from(value.len());
            slice.push(Reference { key, value, expires_at_s });
        }
        self.fetch(slice)
    }
}

impl EngineView for View {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let Some((value, expires_at_s)) = self.reference(key)? else { return Ok(None) };
        let value = match value {
            ValueRef::Inline(value) => value,
            ValueRef::At(at) => self.shared.log.get(&at)?,
        };
        Ok(Some(Pair { key: Bytes::copy_from_slice(key), value, expires_at_s }))
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let mut iter = self.references(options.range.clone(), options.order)?;
        let mut pairs: Vec<Pair> = Vec::new();
        let mut bytes_left = options.bytes_max as u64;
        while pairs.len() < options.limit && (bytes_left > 0 || pairs.is_empty()) {
            let limit = options.limit - pairs.len();
            let slice = self.next_slice(&mut iter, limit, bytes_left.max(1), options.keys_only)?;
            if slice.is_empty() {
                break;
            }
            for pair in slice {
                let bytes = (pair.key.len() + pair.value.len()) as u64;
                if bytes > bytes_left && !pairs.is_empty() {
                    return Ok(pairs);
                }
                bytes_left = bytes_left.saturating_sub(bytes);
                pairs.push(pair);
            }
        }
        Ok(pairs)
    }
}
