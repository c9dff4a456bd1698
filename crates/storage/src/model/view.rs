//! Views of the model.

use super::Pairs;
use crate::{Cached, EngineView, Order, Pair, ScanOptions};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result};

/// The model's pairs at one point in time.
#[derive(Clone, Debug)]
pub struct ModelView {
    pub(super) pairs: Arc<Pairs>,
    /// Keys with unreadable values.
    pub(super) lost: Arc<BTreeSet<Bytes>>,
    /// Ranges with unknown contents.
    pub(super) lost_ranges: Arc<Vec<KeyRange>>,
    /// Gets count as reads of the device.
    pub(super) is_cold: bool,
}

impl ModelView {
    pub(super) fn range(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = Pair> {
        let start = Bound::Included(range.start.clone());
        let end = match range.end.is_empty() {
            true => Bound::Unbounded,
            // An inverted range is empty; BTreeMap would panic on it.
            false => Bound::Excluded(range.end.clone().max(range.start.clone())),
        };
        self.pairs.range((start, end)).map(|(key, (value, expires_at_s))| Pair {
            key: key.clone(),
            value: value.clone(),
            expires_at_s: *expires_at_s,
        })
    }
}

impl EngineView for ModelView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        if self.lost.contains(key) || self.lost_ranges.iter().any(|lost| lost.contains(key)) {
            return Err(Error::corrupt("model", 0, "marked as lost"));
        }
        Ok(self.pairs.get_key_value(key).map(|(key, (value, expires_at_s))| Pair {
            key: key.clone(),
            value: value.clone(),
            expires_at_s: *expires_at_s,
        }))
    }

    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>> {
        match self.is_cold {
            true => Ok(Cached::NeedsIo),
            false => self.get(key).map(Cached::Ready),
        }
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        if self.lost_ranges.iter().any(|lost| lost.overlaps(&options.range)) {
            return Err(Error::corrupt("model", 0, "marked as lost"));
        }
        let range = self.range(&options.range);
        let mut pairs: Box<dyn Iterator<Item = Pair>> = match options.order {
            Order::Forward => Box::new(range),
            Order::Reverse => Box::new(range.rev()),
        };
        let mut out = Vec::new();
        let mut bytes = 0;
        while out.len() < options.limit
            && let Some(mut pair) = pairs.next()
        {
            if options.keys_only {
                pair.value = Bytes::new();
            } else if self.lost.contains(&pair.key) {
                return Err(Error::corrupt("model", 0, "marked as lost"));
            }
            bytes += pair.key.len() + pair.value.len();
            if !out.is_empty() && bytes > options.bytes_max {
                break;
            }
            out.push(pair);
        }
        Ok(out)
    }
}
