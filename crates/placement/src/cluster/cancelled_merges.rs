//! Region merges that an administrator cancelled.
//!
//! Invariant: a merge that was cancelled is abandoned by every later placement leader too, and no
//! scheduler plans one with that region again for [`PAUSE_S`] seconds after it has ended. So the
//! record is committed before the answer, and kept while the region is prepared to merge: an order to
//! prepare may have been on its way.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use stele_types::{Error, RegionId, RegionPhase, Result};

/// Seconds in which no scheduler merges a region of which a merge was cancelled. Each leader counts
/// by its own clock from when it first knows that the region is not prepared to merge.
pub const PAUSE_S: u64 = 600;
/// Limit for the descriptor that is recorded with a cancelled merge.
const REGION_BYTES_MAX: usize = 256 << 10;
const CANCELLED_MAX: usize = 1 << 12;

impl Cluster {
    /// Whether an administrator cancelled the merge of the region into another one lately.
    pub fn has_cancelled_merge(&self, region: RegionId) -> bool {
        self.cancelled_merges.contains_key(&region)
    }

    /// Plans to record that the merge of a region into another one is cancelled. Fails with `Busy`
    /// beyond the limit.
    pub fn plan_cancelled_merge(&self, region: RegionId) -> Result<Vec<PairChange>> {
        if self.has_cancelled_merge(region) {
            return Ok(Vec::new());
        }
        if self.cancelled_merges.len() >= CANCELLED_MAX {
            return Err(Error::Busy(format!(
                "{CANCELLED_MAX} merges were cancelled in the last {PAUSE_S} s; try again later"
            )));
        }
        // A record of a region that the next leader does not know would be deleted.
        let mut changes = self.plan_regions(&[region], REGION_BYTES_MAX);
        changes.push(pairs::cancelled_merge(region, true));
        Ok(changes)
    }

    /// Plans to forget that the merge of a region was cancelled: an administrator orders another one.
    pub fn plan_merge_again(&self, region: RegionId) -> Vec<PairChange> {
        let is_cancelled = self.has_cancelled_merge(region);
        is_cancelled.then(|| pairs::cancelled_merge(region, false)).into_iter().collect()
    }

    /// Notes since when the regions of cancelled merges are not prepared to merge. Called periodically.
    pub fn note_cancelled_merges(&mut self, now: Millis) {
        for (region, ended) in &mut self.cancelled_merges {
            let info = self.regions.get(*region);
            match info.map(|info| info.region.phase) {
                Some(RegionPhase::Merging { .. }) => *ended = None,
                _ => _ = ended.get_or_insert(now),
            }
        }
    }

    /// Plans the deletion of records that are no longer needed. Called periodically.
    pub fn plan_cancelled_merges(&self, now: Millis) -> Vec<PairChange> {
        let is_over = |ended: Millis| now.seconds_since(ended) >= PAUSE_S;
        let ended = self.cancelled_merges.iter().filter(|(region, ended)| {
            self.regions.get(**region).is_none() || ended.is_some_and(is_over)
        });
        ended.map(|(region, _)| pairs::cancelled_merge(*region, false)).collect()
    }

    pub(super) fn fold_cancelled_merge(&mut self, region: RegionId, is_cancelled: bool) {
        match is_cancelled {
            true => _ = self.cancelled_merges.entry(region).or_default(),
            false => _ = self.cancelled_merges.remove(&region),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::founded;
    use crate::region_info::RegionReport;
    use stele_types::{LogIndex, RegionEpoch, Term};

    const REGION: RegionId = RegionId(2);

    fn report(cluster: &mut Cluster, version: u64, phase: RegionPhase) {
        let mut region = cluster.regions().get(REGION).unwrap().region.clone();
        (region.epoch.version, region.phase) = (version, phase);
        let leader = region.peers[0];
        let report = RegionReport { region, leader, term: Term(5), ..RegionReport::default() };
        cluster.observe(report, Millis(1)).unwrap();
    }

    /// Returns how many records are deleted at this second.
    fn deleted(cluster: &mut Cluster, second: u64) -> usize {
        let now = Millis(second * 1000);
        cluster.note_cancelled_merges(now);
        cluster.plan_cancelled_merges(now).len()
    }

    #[test]
    fn a_record_of_a_cancelled_merge_stays_while_it_is_prepared_and_for_a_pause_after_it() {
        let (_, mut cluster) = founded();
        let changes = cluster.plan_cancelled_merge(REGION).unwrap();
        cluster.apply(&changes).unwrap();
        assert!(cluster.plan_cancelled_merge(REGION).unwrap().is_empty(), "it is recorded");
        // The order to prepare was on its way.
        assert_eq!(deleted(&mut cluster, 1), 0);
        let (prepared, term) = (LogIndex(8), Term(5));
        let target_epoch = RegionEpoch::default();
        let phase = RegionPhase::Merging { target: RegionId(9), prepared, term, target_epoch };
        report(&mut cluster, 50, phase);
        assert_eq!(deleted(&mut cluster, 2 * PAUSE_S), 0);
        report(&mut cluster, 51, RegionPhase::Normal);
        assert_eq!(deleted(&mut cluster, 3 * PAUSE_S), 0);
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S - 1), 0);
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S), 1);
        let changes = cluster.plan_merge_again(REGION);
        cluster.apply(&changes).unwrap();
        assert!(
            !cluster.has_cancelled_merge(REGION) && cluster.plan_merge_again(REGION).is_empty()
        );
        // A region that is gone needs none.
        let changes = cluster.plan_cancelled_merge(RegionId(77)).unwrap();
        cluster.apply(&changes).unwrap();
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S), 1);
    }

    #[test]
    fn cancelled_merges_are_bounded() {
        let (_, mut cluster) = founded();
        for region in 0..CANCELLED_MAX as u64 {
            cluster.fold_cancelled_merge(RegionId(100 + region), true);
        }
        assert!(matches!(cluster.plan_cancelled_merge(REGION), Err(Error::Busy(_))));
    }
}
