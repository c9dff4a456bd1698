//! Statistics of a set of shards.

use super::Shard;
use crate::db::DbStats;
use std::collections::BTreeMap;
use stele_storage::EngineStats;

/// Statistics of an open set of shards.
#[derive(Clone, Debug)]
pub struct ShardsStats {
    /// Statistics of each shard; `None` for one that was left out.
    pub shards: Vec<Option<DbStats>>,
    /// Sums over the open shards. Each device counts once, also if several shards are on it.
    pub total: EngineStats,
}

impl ShardsStats {
    pub(super) fn of(shards: &[Shard]) -> Self {
        let mut devices = BTreeMap::new();
        let mut all = Vec::with_capacity(shards.len());
        for (number, shard) in shards.iter().enumerate() {
            let stats = shard.db.as_ref().ok().map(|db| db.stats());
            if let Some(stats) = &stats {
                // A device that does not report its number counts for itself.
                let device = shard.vfs.device_number(&shard.dir).map_err(|_| number);
                let size = (stats.engine.device_bytes, stats.engine.device_free_bytes);
                devices.insert(device, size);
            }
            all.push(stats);
        }
        let open = all.iter().flatten().map(|stats| &stats.engine);
        let total = total(open, devices.into_values());
        Self { shards: all, total }
    }
}

fn total<'a>(
    stores: impl Iterator<Item = &'a EngineStats>,
    devices: impl Iterator<Item = (u64, u64)>,
) -> EngineStats {
    let mut total = EngineStats::default();
    for store in stores {
        // Names every field, so that none is left out of the sums.
        let EngineStats {
            user_bytes,
            written_bytes,
            disk_bytes,
            live_bytes_estimate,
            memory_bytes,
            index_memory_bytes,
            index_cold_reads,
            device_bytes: _,
            device_free_bytes: _,
        } = store;
        total.user_bytes += user_bytes;
        total.disk_bytes += disk_bytes;
        total.live_bytes_estimate += live_bytes_estimate;
        total.memory_bytes += memory_bytes;
        total.index_memory_bytes += index_memory_bytes;
        total.index_cold_reads += index_cold_reads;
        for (cause, bytes) in written_bytes {
            match total.written_bytes.iter_mut().find(|(known, _)| known == cause) {
                Some((_, sum)) => *sum += bytes,
                None => total.written_bytes.push((cause, *bytes)),
            }
        }
    }
    for (bytes, free_bytes) in devices {
        total.device_bytes += bytes;
        total.device_free_bytes += free_bytes;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_shards_has_every_number_and_each_device_once() {
        let store = |factor: u64| EngineStats {
            user_bytes: factor,
            written_bytes: vec![("log", 2 * factor), ("flush", 3 * factor)],
            disk_bytes: 4 * factor,
            live_bytes_estimate: 5 * factor,
            memory_bytes: 6 * factor,
            index_memory_bytes: 7 * factor,
            index_cold_reads: 8 * factor,
            device_bytes: 9 * factor,
            device_free_bytes: 10 * factor,
        };
        let stores = [store(1), store(100)];
        let total = total(stores.iter(), [(9, 10)].into_iter());
        assert_eq!(total, EngineStats { device_bytes: 9, device_free_bytes: 10, ..store(101) });
    }
}
