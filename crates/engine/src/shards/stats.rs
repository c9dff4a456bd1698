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
        total.user_bytes += store.user_bytes;
        total.disk_bytes += store.disk_bytes;
        total.live_bytes_estimate += store.live_bytes_estimate;
        total.memory_bytes += store.memory_bytes;
        for (cause, bytes) in &store.written_bytes {
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
