//! Record of the epoch at which a snapshot last brought each region to this store. What the region
//! did before that epoch was not applied here: see [`crate::peer`], the decision of a merge.
//!
//! ```text
//! record := conf_version version         (varints)
//! ```

use super::RaftStore;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{Error, KeyRange, Region, RegionEpoch, RegionId, Result, keyspace, varint};

/// Records read in one scan.
const PAGE: usize = 1_024;

impl<E: StorageEngine> RaftStore<E> {
    /// Records that a snapshot brought `region`. Invariant: the record is durable before any entry
    /// after the snapshot. It is in the first batch after the installation; a crash before that leaves
    /// a log without entries, and opening records the epoch of such a region.
    pub(super) fn note_installed(&mut self, region: &Region) -> Result<()> {
        self.ctx.installed.insert(region.id, region.epoch);
        let pair = (keyspace::installed_key(region.id), encode(region.epoch).into());
        self.ctx.journal.put(&mut self.ctx.batches, &[pair])
    }

    /// Records that a region with an empty log was installed as it is now, unless that is recorded.
    pub(super) fn note_installed_at_open(&mut self, region: &Region) -> Result<()> {
        match self.ctx.installed.get(&region.id) == Some(&region.epoch) {
            true => Ok(()),
            false => self.note_installed(region),
        }
    }
}

/// Returns all records.
pub(super) fn read<E: StorageEngine>(engine: &E) -> Result<BTreeMap<RegionId, RegionEpoch>> {
    let view = engine.view()?;
    let mut range = keyspace::installed_keys();
    let mut found = BTreeMap::new();
    loop {
        let page = view.scan(&ScanOptions::new(range.clone(), PAGE))?;
        for pair in &page {
            let region = keyspace::region_of_installed_key(&pair.key);
            let record = region.zip(decode(&pair.value));
            let Some((region, epoch)) = record else {
                return Err(Error::invalid("malformed record of an installed snapshot"));
            };
            found.insert(region, epoch);
        }
        match page.last().filter(|_| page.len() == PAGE) {
            Some(last) => {
                let next = [&last.key[..], &[0]].concat();
                range = KeyRange::new(next, range.end);
            }
            None => return Ok(found),
        }
    }
}

fn encode(epoch: RegionEpoch) -> Vec<u8> {
    let mut out = Vec::new();
    varint::put(&mut out, epoch.conf_version);
    varint::put(&mut out, epoch.version);
    out
}

fn decode(mut bytes: &[u8]) -> Option<RegionEpoch> {
    let conf_version = varint::take(&mut bytes)?;
    let version = varint::take(&mut bytes)?;
    bytes.is_empty().then_some(RegionEpoch { conf_version, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_round_trip_and_every_cut_is_refused() {
        let epoch = RegionEpoch { conf_version: 300, version: 1 << 40 };
        let bytes = encode(epoch);
        assert_eq!(decode(&bytes), Some(epoch));
        assert!((0..bytes.len()).all(|cut| decode(&bytes[..cut]).is_none()));
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), None);
    }
}
