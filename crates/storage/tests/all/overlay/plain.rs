//! State of a region as a plain map, and a view of it.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_storage::{CachedGet, EngineView, Order, Pair, ScanOptions};
use stele_types::{KeyRange, Result};

/// Value and expiry in Unix seconds of each key.
pub(super) type State = BTreeMap<Bytes, (Bytes, u64)>;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Put(Bytes, Bytes, u64),
    Delete(Bytes),
    DeleteRange(KeyRange),
}

impl Op {
    pub(super) fn writes(&self, written: &[u8]) -> bool {
        match self {
            Self::Put(key, ..) | Self::Delete(key) => key == written,
            Self::DeleteRange(range) => range.contains(written),
        }
    }

    pub(super) fn overlaps(&self, range: &KeyRange) -> bool {
        match self {
            Self::Put(key, ..) | Self::Delete(key) => range.contains(key),
            Self::DeleteRange(deleted) => deleted.overlaps(range),
        }
    }

    pub(super) fn apply(&self, state: &mut State) {
        match self {
            Self::Put(key, value, expires_at_s) => {
                state.insert(key.clone(), (value.clone(), *expires_at_s));
            }
            Self::Delete(key) => {
                state.remove(key);
            }
            Self::DeleteRange(range) => state.retain(|key, _| !range.contains(key)),
        }
    }
}

/// View of a state in which no pair is cached.
#[derive(Clone, Debug)]
pub(super) struct PlainView(pub Arc<State>);

impl EngineView for PlainView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        Ok(self.0.get_key_value(key).map(pair))
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        Ok(CachedGet::needs_io(key))
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let mut pairs: Vec<Pair> =
            self.0.iter().filter(|(key, _)| options.range.contains(key)).map(pair).collect();
        if options.order == Order::Reverse {
            pairs.reverse();
        }
        if options.keys_only {
            pairs.iter_mut().for_each(|pair| pair.value = Bytes::new());
        }
        let mut bytes = 0;
        let fits = |(number, pair): &(usize, Pair)| {
            bytes += pair.key.len() + pair.value.len();
            *number == 0 || bytes <= options.bytes_max
        };
        let pairs = pairs.into_iter().enumerate().take(options.limit).take_while(fits);
        Ok(pairs.map(|(_, pair)| pair).collect())
    }
}

fn pair((key, (value, expires_at_s)): (&Bytes, &(Bytes, u64))) -> Pair {
    Pair { key: key.clone(), value: value.clone(), expires_at_s: *expires_at_s }
}
