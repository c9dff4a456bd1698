//! Checks that replicas with the same applied index hold the same pairs.

use crate::world::World;
use std::collections::BTreeMap;
use stele_storage::{EngineView, Pair, ScanOptions, StateMachine};
use stele_types::{LogIndex, Region, RegionEpoch, RegionId};

/// Seconds after their expiry, in the cluster's time, before which merges drop no pairs.
const KEPT_S: u64 = 3_600;

/// Region and applied index.
type State = (RegionId, LogIndex);

impl World {
    pub(super) fn check_replicas(&mut self) {
        let mut first: BTreeMap<State, (u64, RegionEpoch, Vec<Pair>)> = BTreeMap::new();
        for number in self.serving() {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(core) = slot.core() else { continue };
            let reports = core.regions();
            for report in reports {
                let id = (report.region.id, report.applied);
                let Some(pairs) = self.pairs_of(number, &report.region) else { continue };
                let known = first.get(&id);
                let Some((other, epoch, theirs)) = known else {
                    first.insert(id, (number, report.region.epoch, pairs));
                    continue;
                };
                if *epoch != report.region.epoch || *theirs != pairs {
                    let text = difference(theirs, &pairs);
                    let (region, applied) = id;
                    self.fail(format!(
                        "stores {other} and {number} differ in region {region} at entry {applied} \
                         (epochs {epoch:?} and {:?}): {text}",
                        report.region.epoch
                    ));
                    return;
                }
            }
        }
    }

    /// Returns the pairs of a region on a store, without those that merges may have dropped; `None` if it
    /// cannot read them.
    pub(crate) fn pairs_of(&mut self, number: u64, region: &Region) -> Option<Vec<Pair>> {
        let view = self.engine(number)?.view().ok()?;
        let mut pairs = Vec::new();
        let dropped_s = self.latest_cluster_s.saturating_sub(KEPT_S);
        let is_kept = |pair: &Pair| pair.expires_at_s == 0 || pair.expires_at_s > dropped_s;
        for range in region.engine_ranges() {
            match view.scan(&ScanOptions::new(range, usize::MAX)) {
                Ok(found) => pairs.extend(found.into_iter().filter(is_kept)),
                Err(error) => {
                    self.check_read_error(number, &error);
                    return None;
                }
            }
        }
        Some(pairs)
    }
}

fn difference(one: &[Pair], other: &[Pair]) -> String {
    let show = |pair: Option<&Pair>| {
        pair.map_or("nothing".to_owned(), |pair| {
            let value = String::from_utf8_lossy(pair.value.get(..8).unwrap_or(&pair.value));
            format!("{:?}={value}", pair.key)
        })
    };
    let at = one.iter().zip(other).position(|(a, b)| a != b);
    let at = at.unwrap_or(one.len().min(other.len()));
    format!("{} against {}", show(one.get(at)), show(other.get(at)))
}
