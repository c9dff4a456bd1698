//! Checks that no member of a Redis key is missing: a header says how many there are. A command writes both in one
//! entry, so it holds on each replica at each time.

use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_redis::key::{divide, header_of};
use stele_redis::{Header, Kind};
use stele_storage::{EngineView, Pair, ScanOptions, StateMachine};
use stele_types::{ColumnFamily, KeyRange, RegionKind};

impl World {
    pub(crate) fn check_collections(&mut self) {
        if self.collections.is_none() {
            return;
        }
        for number in self.serving() {
            let Some(view) = self.engine(number).and_then(|engine| engine.view().ok()) else {
                continue;
            };
            for range in self.redis_ranges(number) {
                // What cannot be read is the subject of other checks.
                let Ok(pairs) = view.scan(&ScanOptions::new(range, usize::MAX)) else { continue };
                if let Some(text) = missing(&pairs) {
                    return self.fail(format!("store {number} lost members: {text}"));
                }
            }
        }
    }

    /// Returns the ranges of Redis keys of the data regions of a store.
    fn redis_ranges(&self, number: u64) -> Vec<KeyRange> {
        let readers = self.slots.get(&number).and_then(|slot| slot.readers());
        let regions = readers.map(|readers| readers.all()).unwrap_or_default();
        let data = regions.iter().filter(|region| region.kind == RegionKind::Data);
        data.map(|region| ColumnFamily::Redis.engine_range(&region.range)).collect()
    }
}

/// Returns what the first header says that has another number of members; `None` if all have theirs.
fn missing(pairs: &[Pair]) -> Option<String> {
    let mut counts: BTreeMap<(Bytes, u64), u64> = BTreeMap::new();
    for pair in pairs {
        let Some(divided) = divide(&pair.key) else { continue };
        if let Some(stamp) = divided.stamp {
            *counts.entry((header_of(divided.name), stamp)).or_default() += 1;
        }
    }
    let wrong = |pair: &Pair| {
        let is_header = divide(&pair.key).is_some_and(|divided| divided.stamp.is_none());
        let (header, _) = Header::decode(&pair.value).ok().filter(|_| is_header)?;
        let found = counts.get(&(pair.key.clone(), header.stamp)).copied().unwrap_or(0);
        let is_whole = header.kind == Kind::String || header.count == found;
        (!is_whole).then(|| format!("{:?} has {found} of {header:?}", pair.key))
    };
    pairs.iter().find_map(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_redis::key::{header_key, member_key};

    #[test]
    fn a_header_with_another_number_of_members_is_found() {
        let key = header_key(0, b"h");
        let header = Header { kind: Kind::Hash, stamp: 7, change: 1, count: 2, expires_at_ms: 0 };
        let pair = |key: Bytes, value: Bytes| Pair { key, value, expires_at_s: 0 };
        let member = |stamp, field: &[u8]| pair(member_key(&key, stamp, field), Bytes::new());
        let header = pair(key.clone(), header.encode(b""));
        let whole = [header.clone(), member(7, b"f"), member(7, b"g"), member(8, b"f")];
        assert_eq!(missing(&whole), None);
        assert_eq!(missing(&whole[1..]), None, "members without a header");
        assert!(missing(&whole[..2]).is_some());
        let other = [header, member(7, b"f"), member(8, b"f")];
        assert!(missing(&other).is_some());
    }
}
