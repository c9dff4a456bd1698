//! Records of what each region did on this store, see [`crate::peer`], the decision of a merge: the epochs
//! between which it changed by a snapshot, so that what it did in between was not applied here, and the
//! merges that it committed.
//!
//! ```text
//! installed := (from to)*        from, to := conf_version version        (varints)
//! ```

use super::RaftStore;
use crate::CommittedMerges;
use crate::context::Context;
use crate::peer::Skipped;
use std::collections::BTreeMap;
use stele_storage::{Pages, StorageEngine};
use stele_types::{Error, KeyRange, Region, RegionEpoch, RegionId, Result, keyspace, varint};

impl<E: StorageEngine> RaftStore<E> {
    /// Records that a snapshot brought `region`, which was at the epoch `from` here. Invariant: the record
    /// is durable before the hard state of the installation and any entry after it. A crash before that
    /// leaves a log without entries and a commit index below its start, and opening records the epoch of
    /// such a region.
    pub(super) fn note_installed(&mut self, region: &Region, from: RegionEpoch) -> Result<()> {
        // bug replica.install_not_recorded: return Ok(());
        let known = self.ctx.installed.entry(region.id).or_default();
        push(known, Skipped { from, to: region.epoch });
        let pair = (keyspace::installed_key(region.id), encode(known).into());
        self.ctx.journal.put(&mut self.ctx.batches, &[pair])
    }

    /// Records that a region with an empty log was installed as it is now, unless that is recorded.
    pub(super) fn note_installed_at_open(&mut self, region: &Region) -> Result<()> {
        let known = self.ctx.installed.get(&region.id).and_then(|known| known.last());
        match known.is_some_and(|known| known.to == region.epoch) {
            true => Ok(()),
            false => self.note_installed(region, RegionEpoch::default()),
        }
    }
}

impl<E: StorageEngine> Context<E> {
    /// Records a change of a region's version, which took over `source` if there is one. Invariant: the record of
    /// a committed merge is durable no later than a commit index that covers it, so that it is not missed.
    pub(crate) fn note_version(
        &mut self,
        region: RegionId,
        (before, after): (u64, u64),
        source: Option<RegionId>,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let known = self.merges.get(&region).cloned();
        let mut merges = known.unwrap_or_else(|| CommittedMerges::since(before));
        merges.note(before, after, source);
        self.keep_merges(region, merges)
    }

    pub(crate) fn keep_merges(&mut self, region: RegionId, merges: CommittedMerges) -> Result<()> {
        let mut encoded = Vec::new();
        merges.put(&mut encoded);
        self.merges.insert(region, merges);
        // bug replica.merges_in_memory: return Ok(());
        self.journal.put(&mut self.batches, &[(keyspace::merges_key(region), encoded.into())])
    }
}

/// Most records of a region.
const RECORDS_MAX: usize = 16;

/// Adds a record. Of too many the two oldest become one, which covers what is between them too.
fn push(known: &mut Vec<Skipped>, next: Skipped) {
    known.push(next);
    if known.len() > RECORDS_MAX {
        let oldest = known.remove(0);
        known.iter_mut().take(1).for_each(|second| second.from = oldest.from);
    }
}

/// Reads all records into the context of a store that opens.
pub(super) fn read<E: StorageEngine>(ctx: &mut Context<E>) -> Result<()> {
    ctx.installed = read_all(&*ctx.engine, keyspace::installed_keys(), decode)?;
    ctx.merges = read_all(&*ctx.engine, keyspace::merges_keys(), CommittedMerges::decode)?;
    Ok(())
}

fn read_all<E: StorageEngine, T>(
    engine: &E,
    range: KeyRange,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<BTreeMap<RegionId, T>> {
    let view = engine.view()?;
    let mut found = BTreeMap::new();
    let mut pages = Pages::of_range(&view, range);
    while let Some(page) = pages.next_page()? {
        for pair in &page {
            let region = keyspace::region_of_record_key(&pair.key);
            let Some((region, record)) = region.zip(decode(&pair.value)) else {
                let reason = "malformed record of an installed snapshot, or of committed merges";
                return Err(Error::invalid(reason));
            };
            found.insert(region, record);
        }
    }
    Ok(found)
}

fn encode(known: &[Skipped]) -> Vec<u8> {
    let mut out = Vec::new();
    for epoch in known.iter().flat_map(|skipped| [skipped.from, skipped.to]) {
        varint::put(&mut out, epoch.conf_version);
        varint::put(&mut out, epoch.version);
    }
    out
}

fn decode(mut bytes: &[u8]) -> Option<Vec<Skipped>> {
    let mut out = Vec::new();
    let epoch = |rest: &mut &[u8]| {
        let conf_version = varint::take(rest)?;
        Some(RegionEpoch { conf_version, version: varint::take(rest)? })
    };
    while !bytes.is_empty() {
        out.push(Skipped { from: epoch(&mut bytes)?, to: epoch(&mut bytes)? });
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(from: u64, to: u64) -> Skipped {
        let epoch = |version| RegionEpoch { conf_version: 300, version };
        Skipped { from: epoch(from), to: epoch(to) }
    }

    #[test]
    fn records_survive_the_round_trip_and_every_cut_is_refused() {
        let known = [skipped(0, 1 << 40)];
        let bytes = encode(&known);
        assert_eq!(decode(&bytes).as_deref(), Some(&known[..]));
        assert!((0..bytes.len()).all(|cut| decode(&bytes[..cut]).is_none()));
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), None);
    }

    #[test]
    fn the_oldest_of_too_many_records_become_one_that_covers_them() {
        let mut known = Vec::new();
        (0..20).for_each(|at| push(&mut known, skipped(10 * at, 10 * at + 5)));
        assert_eq!(known.len(), RECORDS_MAX);
        assert_eq!((known[0], known[1]), (skipped(0, 45), skipped(50, 55)));
    }
}
